"""The validator of form, command line and scheduler."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftui.config.validate import clone_faults, parse, resolve, sentence, value_fault
from rftui.errors import UserError
from rftui.messages import Field
from rftui.runs import DONE, FAILED, QUEUED, RUNNING, Run

FIELDS = [
    Field("training_args.learning_rate", "float", 2e-5),
    Field("training_args.num_train_epochs", "float", 3.0),
    Field("training_args.max_steps", "int", -1),
    Field("training_args.per_device_train_batch_size", "int", 8),
    Field("training_args.gradient_accumulation_steps", "int", 1),
    Field("training_args.warmup_steps", "float", 0),
    Field("training_args.max_length", "int", 1024, optional=True),
    Field("training_args.packing", "bool", False),
    Field("training_args.seed", "int", 42),
    Field("training_args.lr_scheduler_type", "choice", "linear", ["linear", "cosine", "constant"]),
    Field("training_args.fp16", "bool", False),
    Field("training_args.bf16", "bool", False),
    Field("peft_config.r", "int", 8),
    Field("peft_config.lora_dropout", "float", 0.0),
    Field("peft_config.target_modules", "list", None, optional=True),
    Field("peft_config.bias", "choice", "none", ["none", "all"]),
    Field("peft_config.init_lora_weights", "choice", True, ["true", "false", "gaussian"]),
    Field("model_name", "text", optional=False),
]
BY_NAME = {field.name: field for field in FIELDS}
LR, EPOCHS, STEPS = "training_args.learning_rate", "training_args.num_train_epochs", "training_args.max_steps"
R, TARGETS = "peft_config.r", "peft_config.target_modules"


def parent(state=RUNNING, peft=None, args=None, **fields):
    config = {"model_name": "m", "peft_config": {"r": 8, "target_modules": ["q_proj", "v_proj"]} | (peft or {})}
    config["training_args"] = {"learning_rate": 1e-3, "num_train_epochs": 2} | (args or {})
    grid = {"rows": 400, "per_epoch": 4, "batch": 8, "steps": 100}
    position = {"step": 50, "total_steps": 100, "epoch": 1.0, "checkpoint": "c", "grid": grid} | fields
    return Run(1, "one", state=state, config=config, **position)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        (LR, " 3e-4 ", 3e-4),
        (R, "16", 16),
        (R, "1.6e1", 16),
        ("training_args.packing", "Yes", True),
        ("training_args.packing", "off", False),
        ("training_args.max_length", "none", None),
        ("training_args.lr_scheduler_type", "Cosine", "cosine"),
        ("peft_config.bias", "none", "none"),
        ("peft_config.init_lora_weights", "true", True),
        ("peft_config.init_lora_weights", "False", False),
        (TARGETS, "q_proj, v_proj", ["q_proj", "v_proj"]),
        (TARGETS, "['q_proj', \"v_proj\"]", ["q_proj", "v_proj"]),
        (TARGETS, "all-linear", "all-linear"),
        (TARGETS, r".*\.q_proj", r".*\.q_proj"),
        (TARGETS, "", None),
        ("model_name", "owner/model", "owner/model"),
    ],
)
def test_parse(name, text, value):
    parsed = parse(BY_NAME[name], text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (LR, "fast"),
        (LR, "0"),
        (LR, "nan"),
        (LR, "inf"),
        (LR, "none"),
        (R, "2.5"),
        (R, "0"),
        (R, ""),
        ("model_name", ""),
    ]
    + [("peft_config.lora_dropout", "1"), ("training_args.packing", "maybe"), (STEPS, "0"), (TARGETS, "[,]")]
    + [("training_args.lr_scheduler_type", "cosin"), ("training_args.warmup_steps", "-1")],
)
def test_parse_refuses_in_one_line_that_names_the_knob(name, text):
    with pytest.raises(UserError) as fault:
        parse(BY_NAME[name], text)
    assert name in str(fault.value) and "\n" not in str(fault.value)


@settings(deadline=None)
@given(field=st.sampled_from(FIELDS), text=st.text(max_size=12))
def test_parse_gives_a_value_of_the_knob_or_a_fault(field, text):
    try:
        value = parse(field, text)
    except UserError as fault:
        assert str(fault).startswith(field.name)
    else:
        assert value_fault(field, value) is None


@settings(deadline=None)
@given(st.floats(min_value=1e-300, allow_infinity=False, allow_nan=False))
def test_what_is_shown_of_a_number_parses_back(number):
    assert parse(BY_NAME[LR], repr(number)) == number


@pytest.mark.parametrize(("name", "full"), [("learning_rate", LR), ("r", R), (LR, LR), ("lr", LR), ("epochs", EPOCHS)])
def test_knobs_go_by_their_last_name(name, full):
    assert resolve(name, FIELDS) == full


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("learnin_rate", "did you mean"),
        ("output_dir", "cannot be set"),
        ("warmup_ratio", "is now called warmup_steps"),
    ],
)
def test_an_unknown_knob_is_a_fault(name, reason):
    with pytest.raises(UserError, match=reason):
        resolve(name, FIELDS)
    assert reason in clone_faults(parent(), {f"training_args.{name}": 1}, False, FIELDS)[f"training_args.{name}"]


def test_a_name_that_two_sections_share_must_be_written_out():
    with pytest.raises(UserError, match="ambiguous"):
        resolve("r", [*FIELDS, Field("model_kwargs.r", "int")])


ROWS, DONE_3 = "training_args.max_length", {"state": DONE, "epoch": 2.0, "step": 100}


@pytest.mark.parametrize(
    ("run", "changes", "warm", "where"),
    [
        (parent(), {LR: 2e-3}, False, None),
        (parent(), {LR: 2e-3}, True, None),
        (parent(), {LR: 1e-3}, False, ""),
        (parent(), {}, False, ""),
        (parent(), {}, True, None),
        (parent(), {"training_args.seed": 1}, False, None),
        (parent(), {LR: -1}, False, LR),
        (parent(), {LR: "1e-3"}, False, LR),
        (parent(), {R: True}, False, R),
        (parent(), {"training_args.fp16": True, "training_args.bf16": True}, False, "training_args.fp16"),
        (parent(), {R: 16}, True, None),
        (parent(), {R: 4}, True, R),
        (parent(), {R: 4}, False, None),
        (parent(), {TARGETS: ["q_proj"]}, True, TARGETS),
        (parent(), {TARGETS: ["o_proj", "v_proj", "q_proj"]}, True, None),
        (parent(), {TARGETS: "all-linear"}, True, None),
        (parent(peft={"target_modules": "all-linear"}), {TARGETS: ["q_proj"]}, True, TARGETS),
        (parent(peft={"target_modules": None}), {TARGETS: ["q_proj"]}, True, TARGETS),
        (parent(), {"peft_config.bias": "all"}, True, "peft_config.bias"),
        (parent(), {"model_name": "n"}, True, "model_name"),
        (parent(), {ROWS: 64}, True, ROWS),
        (parent(), {ROWS: 64}, False, None),
        (parent(QUEUED, step=0), {LR: 2e-3}, True, ""),
        (parent(QUEUED, step=0), {LR: 2e-3}, False, None),
        (parent(FAILED, checkpoint=None), {LR: 2e-3}, True, ""),
        (parent(FAILED), {LR: 2e-3}, True, None),
        (parent(), {EPOCHS: 1}, True, EPOCHS),
        (parent(), {EPOCHS: 1}, False, None),
        (parent(), {STEPS: 50}, True, STEPS),
        (parent(**DONE_3), {LR: 2e-3}, True, EPOCHS),
        (parent(**DONE_3), {EPOCHS: 3}, True, None),
        (parent(**DONE_3), {STEPS: 101}, True, None),
        (parent(**DONE_3), {LR: 2e-3}, False, None),
        (parent(args={"max_steps": 100}, **DONE_3), {LR: 2e-3}, True, STEPS),
        (parent(), {"training_args.warmup_steps": 60}, True, "training_args.warmup_steps"),
        (parent(), {"training_args.warmup_steps": 60}, False, None),
        (parent(), {"training_args.warmup_steps": 0.5}, True, None),
        (parent(state="deleted"), {LR: 2e-3}, False, ""),
    ],
)
def test_clones(run, changes, warm, where):
    faults = clone_faults(run, changes, warm, FIELDS)
    assert list(faults) == ([] if where is None else [where]), faults


WARMUP, BATCH = "training_args.warmup_steps", "training_args.per_device_train_batch_size"
SCHED, ALPHA = "training_args.lr_scheduler_type", "peft_config.lora_alpha"
MORE = [*FIELDS, Field("training_args.optim", "text", "adamw"), Field(ALPHA, "int", 8)]


@pytest.mark.parametrize(
    ("run", "changes", "warm", "where"),
    [
        (parent(), {}, True, None),
        (parent(), {LR: 2e-3, ALPHA: 32, "peft_config.lora_dropout": 0.1}, True, None),
        (parent(), {LR: 2e-3}, False, ""),
        (parent(), {R: 16}, True, R),
        (parent(), {TARGETS: "all-linear"}, True, TARGETS),
        (parent(), {BATCH: 16}, True, BATCH),
        (parent(), {EPOCHS: 3}, True, EPOCHS),
        (parent(), {STEPS: 80}, True, STEPS),
        (parent(), {SCHED: "cosine"}, True, SCHED),
        (parent(), {WARMUP: 5}, True, WARMUP),
        (parent(), {"training_args.optim": "sgd"}, True, "training_args.optim"),
        (parent(args={"warmup_steps": 90}), {LR: 2e-3}, True, None),
        (parent(), {BATCH: 8}, True, None),
        (parent(**DONE_3), {LR: 2e-3}, True, ""),
        (parent(QUEUED, step=0), {}, True, ""),
    ],
)
def test_clones_that_continue_their_parents_schedule(run, changes, warm, where):
    faults = clone_faults(run, changes, warm, MORE, continue_schedule=True)
    assert where is None and not faults or where in faults, faults


@pytest.mark.parametrize(
    ("run", "changes", "warm", "step", "where"),
    [
        (parent(checkpoints=[20, 40]), {}, True, 20, None),
        (parent(checkpoints=[20, 40]), {}, True, 30, ""),
        (parent(checkpoints=[20, 40]), {LR: 2e-3}, False, 20, ""),
        (parent(checkpoints=[20, 40]), {EPOCHS: 0.5}, True, 20, None),
        (parent(checkpoints=[20, 40]), {EPOCHS: 0.4}, True, 20, EPOCHS),
        (parent(checkpoints=[20, 40]), {STEPS: 30}, True, 20, None),
        (parent(checkpoints=[50, 100], **DONE_3), {}, True, 50, None),
        (parent(checkpoints=[50, 100], **DONE_3), {}, True, 100, EPOCHS),
        (parent(FAILED, checkpoints=[20]), {LR: 2e-3}, True, 20, None),
    ],
)
def test_clones_from_an_earlier_checkpoint(run, changes, warm, step, where):
    faults = clone_faults(run, changes, warm, FIELDS, from_step=step)
    assert list(faults) == ([] if where is None else [where]), faults


def test_a_finished_run_has_a_schedule_to_continue_at_an_earlier_checkpoint():
    run = parent(checkpoints=[50, 100], **DONE_3)
    assert not clone_faults(run, {}, True, FIELDS, continue_schedule=True, from_step=50)
    assert "has ended" in clone_faults(run, {EPOCHS: 3}, True, FIELDS, continue_schedule=True)[""]


def test_a_run_that_trains_all_weights_has_no_adapter_to_change_warm():
    run = parent()
    run.config["peft_config"] = None
    assert R in clone_faults(run, {R: 16}, True, FIELDS)
    assert not clone_faults(run, {R: 16}, False, FIELDS)


VALUES = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=4), st.lists(st.text()))


@settings(deadline=None)
@given(
    changes=st.dictionaries(st.sampled_from([*BY_NAME, "no.knob"]), VALUES, max_size=4),
    warm=st.booleans(),
    state=st.sampled_from([QUEUED, RUNNING, DONE, FAILED]),
    step=st.integers(0, 100),
)
def test_any_clone_is_judged_without_an_error(changes, warm, state, step):
    faults = clone_faults(parent(state, step=step, epoch=step / 50), changes, warm, FIELDS)
    assert set(faults) <= {"", EPOCHS, STEPS, "training_args.warmup_steps", "training_args.fp16", *changes}
    assert "\n" not in sentence(faults).replace("\\n", "") or any("\n" in str(value) for value in changes.values())
    assert all(value_fault(BY_NAME[name], value) is None for name, value in changes.items() if not faults)
