"""What is wrong with the rows that a trainer would tokenise: all of them, by Arrow, a column at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from rftui.training.rows import Need

_SHOWN = 5
_ROLES, _CONTENTS = ("role", "from"), ("content", "value")


def bad_rows(dataset: Dataset, need: Need) -> list[int]:
    """The rows of `dataset`, whose columns meet the need, that cannot be trained on: what is wanted is null or empty,
    or a message has no role."""
    return sorted({row for problem in _problems(dataset, need) if problem.fatal for row in problem.rows})


def row_faults(dataset: Dataset, need: Need, what: str) -> tuple[list[str], list[str]]:
    """Faults and notices, one line each, about the rows of `dataset`, called `what`, whose columns meet the need."""
    faults: list[str] = []
    notices: list[str] = []
    for problem in _problems(dataset, need):
        shown = ", ".join(map(str, problem.rows[:_SHOWN])) + ", ..." * (len(problem.rows) > _SHOWN)
        count = f": {len(problem.rows)} of {len(dataset)} (rows {shown}, counted from 0)" if problem.rows else ""
        remedy = f"; {_REMEDY}" if problem.fatal and problem.rows else ""
        (faults if problem.fatal else notices).append(f"{what} has {problem.told}{count}{remedy}")
    return faults, notices


_REMEDY = "complete them, or leave them out with run_fit(..., drop_bad_rows=True)"


class _Problem(NamedTuple):
    """What is wrong, with these rows, or where there are none with the column itself; not `fatal`: it can train."""

    told: str
    rows: list[int]
    fatal: bool = True


def _problems(dataset: Dataset, need: Need) -> list[_Problem]:
    table = dataset.with_format("arrow")[:]
    found: list[_Problem] = []
    broken: list[_Problem] = []
    for name in need.read(dataset.column_names):
        column = table.column(name)
        if _is_list(column.type) or _is_text(column.type) or pa.types.is_null(column.type):
            found.append(_Problem(f"rows without {name}", _where(pc.is_null(column))))
        elif pa.types.is_primitive(column.type):
            broken.append(_Problem(f"{column.type} in the column {name}, which must be text or messages", []))
        if _is_list(column.type):
            empty = pc.fill_null(pc.equal(pc.list_value_length(column), 0), False)
            found.append(_Problem(f"rows whose {name} is empty", _where(empty)))
            if pa.types.is_struct(column.type.value_type):
                fields = {field.name for field in column.type.value_type}
                if any(not fields & set(names) for names in (_ROLES, _CONTENTS)):
                    told = f"{name} without role and content (they have {', '.join(sorted(fields))})"
                    broken.append(_Problem(told, []))
                else:
                    found += _of_messages(column, name, fields)
    return [*broken, *(problem for problem in found if problem.rows)]


def _where(bad: Any) -> list[int]:
    rows: list[int] = pc.indices_nonzero(bad).to_pylist()
    return rows


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _of_messages(column: Any, name: str, fields: set[str]) -> list[_Problem]:
    role, content = (next(field for field in names if field in fields) for names in (_ROLES, _CONTENTS))
    without_role: set[int] = set()
    without_content: set[int] = set()
    start = 0
    for chunk in column.chunks:
        messages, rows = pc.list_flatten(chunk), pc.list_parent_indices(chunk)
        silent = pc.is_null(pc.struct_field(messages, content))
        for other in fields & {"tool_calls", "function_call"}:
            silent = pc.and_(silent, pc.is_null(pc.struct_field(messages, other)))
        roleless = pc.is_null(pc.struct_field(messages, role))
        without_role |= {start + row for row in rows.filter(roleless).to_pylist()}
        without_content |= {start + row for row in rows.filter(silent).to_pylist()}
        start += len(chunk)
    return [
        _Problem(f"{name} without a {role}", sorted(without_role)),
        _Problem(f"{name} whose {content} is null, which train as empty ones", sorted(without_content), fatal=False),
    ]
