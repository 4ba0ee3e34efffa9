"""The check of configs before anything trains: every fault of every run at once, one line each."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from datasets import Dataset
from peft import LoraConfig

from rftui.chunks import chunks_per_epoch
from rftui.config.managed import MANAGED, OWN, REFUSED
from rftui.config.nearest import nearest
from rftui.config.spec import Spec, configured, plain_value, shared_names
from rftui.config.validate import value_fault
from rftui.errors import UserError
from rftui.messages import Field
from rftui.runs import Run
from rftui.training import process_state
from rftui.training.arguments import arguments, config_class
from rftui.training.data import formatted
from rftui.training.fields import describe
from rftui.training.models import Models
from rftui.training.row_faults import row_faults
from rftui.training.rows import Formatting, Need, conversational, formatting, sample, try_all

Lines = list[tuple[int | None, str]]

_LOOSE = {"training_args.eval_strategy", "training_args.save_strategy", "peft_config.init_lora_weights"}
"""Knobs that take more words than a form offers; what is wrong with them is said when their class is constructed."""


def check(spec: Spec, runs: list[Run], train: Dataset, evaluation: Dataset | None, device: str) -> tuple[Lines, Lines]:
    """Faults and notices about the configs of these runs of one fit, each with its run, or None for all the runs.

    Loads configs and tokenizers but no weights, and calls no `create_model_fn`. `device` is "cpu" or "cuda:N". Leaves
    the process's random generators and accelerate's state as they were.
    """
    before = process_state.capture()
    try:
        models = Models()
        seen: dict[Any, tuple[list[str], list[str]]] = {}
        found = [(run.id, *_check(spec, run, train, evaluation, device, models, seen)) for run in runs]
    finally:
        process_state.restore(before)
    return (
        _format_lines([(run, faults) for run, faults, _ in found]),
        _format_lines([(run, notices) for run, _, notices in found]),
    )


def _format_lines(lines: list[tuple[int, list[str]]]) -> Lines:
    """What is said of every run is said once."""
    common = [line for line in lines[0][1] if all(line in of_run for _, of_run in lines)] if len(lines) > 1 else []
    told: Lines = [(None, line) for line in dict.fromkeys(common)]
    return told + [(run, line) for run, of_run in lines for line in dict.fromkeys(of_run) if line not in common]


def _check(
    spec: Spec,
    run: Run,
    train: Dataset,
    evaluation: Dataset | None,
    device: str,
    models: Models,
    seen: dict[Any, tuple[list[str], list[str]]],
) -> tuple[list[str], list[str]]:
    run_config = spec.run_configs[run.config_index]
    config = configured(run_config, run.changes)
    notices = list(run_config.notices)
    faults = [*_knob_faults(run_config.algo, config)]
    if not faults:
        faults += _collected(lambda: _construct(spec, run_config.algo, config, train, evaluation, device, notices))
    need = Need(run_config.algo, config)
    function = formatting(spec, run.config_index, train.column_names)
    if function is not config["formatting_func"]:
        notices.append(f"its rows need a formatting_func and it has none: using its sibling's {plain_value(function)}")
    rows: list[dict[str, Any]] = []
    for dataset, what in ((train, "train_dataset"), (evaluation, "eval_dataset")):
        if dataset is not None:
            faults += _collected(lambda: rows.append(_rows(dataset, function, need, what, seen, faults, notices)))  # noqa: B023
    if spec.create_model_fn is None:
        chats, shared = any(conversational(row) for row in rows), shared_names(spec, run)
        faults += models.faults(config, notices, chats=chats, shared=shared)
    if config["training_args"].get("assistant_only_loss") and rows and not conversational(rows[0]):
        faults.append("training_args.assistant_only_loss needs conversations; these rows are plain text")
    return faults, notices


def _rows(
    dataset: Dataset,
    function: Formatting | None,
    need: Need,
    what: str,
    seen: dict[Any, tuple[list[str], list[str]]],
    faults: list[str],
    notices: list[str],
) -> dict[str, Any]:
    """The first row as the trainer gets it; what is wrong with it and the others goes to `faults` and `notices`.

    `seen` holds what was found for other runs, since calling a function on all rows takes its time. Raises UserError.
    """
    first = sample(dataset, function, need, what)
    key = (what, function, need.algo, need.text_field)
    if key not in seen:
        said = None if function is None else try_all(dataset, function, need, what)
        made, left = formatted(dataset, function, need)
        wrong, told = row_faults(made, need, what) if left is None else ([], [])
        before = dataset.column_names if function is None or said else list(first)
        if foreign := need.foreign([*dict.fromkeys([*before, *([] if left is None else dataset.column_names)])], left):
            told = [
                f"{what} has columns that would be taken for tokenised rows, and text beside them: "
                f"{', '.join(foreign)} are left out (to train on input_ids, remove the text)",
                *told,
            ]
        seen[key] = wrong, [*([said] if said else []), *told]
    wrong, told = seen[key]
    faults += wrong
    notices += told
    return first


def _collected(step: Callable[[], None]) -> Iterable[str]:
    try:
        step()
    except UserError as fault:
        return fault.lines
    return ()


@cache
def _described(algo: str) -> dict[str, Field]:
    return {field.name: field for field in describe([algo])[algo]}


def _knob_faults(algo: str, config: dict[str, Any]) -> Iterable[str]:
    described = _described(algo)
    sections: dict[str, tuple[type, set[str]]] = {
        "training_args": (config_class(algo), OWN | set(MANAGED) | set(REFUSED)),
        "peft_config": (LoraConfig, set()),
    }
    for section, (kind, extra) in sections.items():
        known = {field.name for field in dataclasses.fields(kind) if field.init} | extra
        for key, value in (config[section] or {}).items():
            name = f"{section}.{key}"
            field = described.get(name)
            if key not in known:
                yield f"{name} is not an argument of {kind.__name__}{nearest(key, known)}"
            elif field and name not in _LOOSE and (reason := value_fault(field, plain_value(value))):
                yield f"{name} {reason}"


def _construct(
    spec: Spec,
    algo: str,
    config: dict[str, Any],
    train: Dataset,
    evaluation: Dataset | None,
    device: str,
    notices: list[str],
) -> None:
    """Raises UserError with what TRL's and PEFT's own classes say about the config."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        per_epoch = chunks_per_epoch(len(train), spec.num_chunks, spec.chunk_size)
        kwargs, lora, told, _ = arguments(
            algo,
            config,
            output_dir=folder,
            device=device,
            seed=spec.seed,
            rows=len(train),
            eval_rows=len(evaluation or ()),
            per_epoch=per_epoch,
        )
        notices += told
        lines = []
        for section, kind, given in (("training_args", config_class(algo), kwargs), ("peft_config", LoraConfig, lora)):
            try:
                if given is not None:
                    kind(**given)
            except Exception as error:
                # The classes raise all kinds of errors; what they say is meant for the user.
                lines.append(f"{section}: {' '.join(str(error).split())}")
    if lines:
        raise UserError(*lines)
