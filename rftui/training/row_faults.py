"""What is wrong with the rows that a trainer would tokenise: all of them, by Arrow, a column at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from rftui.training.rows import Need

_SHOWN = 5
_ROLES, _CONTENTS = ("role", "from"), ("content", "value")


def row_faults(dataset: Dataset, need: Need, what: str) -> tuple[list[str], list[str]]:
    """Faults and notices, one line each, about the rows of `dataset`, called `what`, whose columns meet the need."""
    table = dataset.with_format("arrow")[:]
    faults: list[str] = []
    notices: list[str] = []
    for name in need.read(dataset.column_names):
        column = table.column(name)
        if _is_list(column.type) or _is_text(column.type) or pa.types.is_null(column.type):
            _tell(faults, pc.is_null(column), f"{what} has rows without {name}", _REMEDY)
        elif pa.types.is_primitive(column.type):
            faults.append(f"{what} holds {column.type} in the column {name}; it must be text or messages")
        if _is_list(column.type):
            empty = pc.fill_null(pc.equal(pc.list_value_length(column), 0), False)
            _tell(faults, empty, f"{what} has rows whose {name} is empty", _REMEDY)
            if pa.types.is_struct(column.type.value_type):
                _tell_of_messages(column, name, what, faults, notices)
    return faults, notices


_REMEDY = "leave them out, with dataset.filter, or complete them"


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _tell_of_messages(column: Any, name: str, what: str, faults: list[str], notices: list[str]) -> None:
    fields = {field.name for field in column.type.value_type}
    role, content = (next((field for field in of if field in fields), None) for of in (_ROLES, _CONTENTS))
    if role is None or content is None:
        faults.append(f"{what} has {name} without role and content (they have {', '.join(sorted(fields))})")
        return
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
    _tell_rows(faults, sorted(without_role), len(column), f"{what} has {name} without a {role}", _REMEDY)
    told = f"{what} has {name} whose {content} is null"
    _tell_rows(notices, sorted(without_content), len(column), told, "they train as empty ones")


def _tell(lines: list[str], bad: Any, told: str, remedy: str) -> None:
    _tell_rows(lines, pc.indices_nonzero(bad).to_pylist(), len(bad), told, remedy)


def _tell_rows(lines: list[str], rows: list[int], total: int, told: str, remedy: str) -> None:
    if rows:
        shown = ", ".join(map(str, rows[:_SHOWN])) + ", ..." * (len(rows) > _SHOWN)
        lines.append(f"{told}: {len(rows)} of {total} (rows {shown}, counted from 0); {remedy}")
