"""A run's config as YAML, and what was changed in it."""

from __future__ import annotations

import pytest
from fakes import FIELDS, made
from hypothesis import given, settings
from hypothesis import strategies as st

from rftui.config.validate import value_fault
from rftui.errors import UserError
from rftui.messages import Field
from rftui.redaction import HIDDEN
from rftui.runs import changed
from rftui.tui.screens.clone_yaml import from_yaml, to_yaml

LR, R, TARGETS = "training_args.learning_rate", "peft_config.r", "peft_config.target_modules"
SCHED, KWARGS, BF16 = "training_args.lr_scheduler_type", "training_args.lr_scheduler_kwargs", "training_args.bf16"
LENGTH, SAVE = "training_args.max_length", "training_args.save_strategy"
ALL = [
    *FIELDS,
    Field(LENGTH, "int", 1024, optional=True),
    Field(SAVE, "choice", "no", ["no", "chunk"]),
]
BY_NAME = {field.name: field for field in ALL}


def read(text: str, run=None):
    return from_yaml(text, run or made(7), ALL)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("training_args: {learning_rate: 1e-4}", {LR: [1e-4]}),
        ("training_args: {learning_rate: 2e-4}", {}),
        ("training_args: {learning_rate: 0.0002}", {}),
        ("training_args: {learning_rate: 1}", {LR: [1.0]}),
        ("training_args: {learning_rate: [1e-4, 5.0E-4, '1e-4']}", {LR: [1e-4, 5e-4]}),
        ("training_args.learning_rate: 1e-4", {LR: [1e-4]}),
        ("peft_config: {r: 16}", {}),
        ("peft_config: {r: [8, 16]}", {R: [8, 16]}),
        ("peft_config: {target_modules: [q_proj, v_proj]}", {}),
        ("peft_config: {target_modules: [q_proj]}", {TARGETS: [["q_proj"]]}),
        ("peft_config: {target_modules: all-linear}", {TARGETS: ["all-linear"]}),
        ("peft_config: {target_modules: [[q_proj], all-linear]}", {TARGETS: [["q_proj"], "all-linear"]}),
        ("peft_config: {target_modules: null}", {TARGETS: [None]}),
        ("training_args: {lr_scheduler_type: [cosine, constant]}", {SCHED: ["cosine", "constant"]}),
        ("training_args: {save_strategy: no}", {SAVE: ["no"]}),
        ("training_args: {bf16: yes}", {BF16: [True]}),
        ("training_args: {bf16: [true, false]}", {BF16: [True, False]}),
        ("training_args: {max_length: [512, null]}", {LENGTH: [512, None]}),
        ("training_args: {lr_scheduler_kwargs: {num_cycles: 2}}", {KWARGS: ['{"num_cycles": 2}']}),
        ("model_name: [a, b]", {"model_name": ["a", "b"]}),
        ("model_name: 7", {"model_name": ["7"]}),
        (f"model_kwargs: {{token: '{HIDDEN}'}}", {}),
        ("", None),
        ("# nothing\n", None),
    ],
)
def test_the_differences(text, found):
    assert read(text) == found
    for name, values in (found or {}).items():
        assert all(value_fault(BY_NAME[name], value) is None for value in values)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("training_args: {learning_rate: fast}", ["must be a number"]),
        ("training_args: {learning_rate: []}", ["needs a value"]),
        ("training_args: {learning_rate: null}", ["must be a number, not None"]),
        ("training_args: {learning_rate: true}", ["must be a number"]),
        ("training_args: {learnin_rate: 1}\nnonsense: 2", ["did you mean", "nonsense is not a known setting"]),
        ("training_args: {output_dir: /x}", ["cannot be set"]),
        ("training_args: {lr_scheduler_type: cosin}", ["did you mean 'cosine'"]),
        ("peft_config: null", ["peft_config is not a known setting"]),
        ("a: [1", ["not valid YAML (line"]),
        ("a: b: c", ["not valid YAML (line 1)"]),
        ("a: \x07", ["not valid YAML"]),
        ("just words", ["not a config"]),
        ("!!python/object:os.system {}", ["not valid YAML"]),
    ],
)
def test_faults_have_a_line_each(text, lines):
    with pytest.raises(UserError) as fault:
        read(text)
    assert len(fault.value.lines) == len(lines)
    for told, line in zip(fault.value.lines, lines, strict=True):
        assert line in told and "\n" not in told


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=9)
    | st.sampled_from(
        ["1e-4", "no", "null", "~", "2026-11-30", "0x10", "1_000", "1:30", "- a", "#", "[x", "'", ".5", "="]
    )
)
NAMES = st.text("abcde", min_size=1, max_size=4)
CONFIGS = st.dictionaries(NAMES, st.recursive(SCALARS, lambda each: st.lists(each, max_size=3)), max_size=4)


@settings(deadline=None)
@given(st.dictionaries(NAMES, CONFIGS | SCALARS, max_size=4))
def test_what_is_not_touched_is_no_difference(config):
    run = made(7)
    run.config = run.config | config
    assert from_yaml(to_yaml(run, {}), run, ALL) == {}


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            LR: st.lists(st.floats(1e-9, 10.0), min_size=1, max_size=3, unique=True),
            R: st.lists(st.integers(1, 99), min_size=1, max_size=3, unique=True),
            SCHED: st.lists(st.sampled_from(["cosine", "constant", "polynomial"]), min_size=1, unique=True),
            BF16: st.just([True]),
            TARGETS: st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=2, unique_by=str),
            LENGTH: st.lists(st.integers(1, 99) | st.none(), min_size=1, max_size=2, unique=True),
        },
    )
)
def test_what_the_form_changed_comes_back(changes):
    run = made(7)
    before = {LR: [2e-4], R: [16], TARGETS: [["q_proj", "v_proj"]]}
    text = to_yaml(run, {name: found[0] if len(found) == 1 else found for name, found in changes.items()})
    assert from_yaml(text, run, ALL) == {n: found for n, found in changes.items() if found != before.get(n)}


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_read_or_told_to_be_wrong(text):
    try:
        found = read(text)
    except UserError as fault:
        assert fault.lines and not any("\n" in line for line in fault.lines)
    else:
        assert found is None or set(found) <= set(BY_NAME)


def test_secrets_are_hidden():
    run = made(7)
    run.config = changed(run.config, {"training_args.hub_token": "hf_abcdefgh1234"})
    assert "hf_abc" not in to_yaml(run, {}) and read(to_yaml(run, {}), run) == {}
