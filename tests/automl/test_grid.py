"""Grids: what expands, what does not, and what the runs are told apart by."""

import os
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.automl.grid import expand
from rftui.automl.sources import RunSource, source
from rftui.errors import UserError
from rftui.naming import NAME_WIDTH, run_name
from rftui.runs import Run

VALUES = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text("ab.-/", max_size=5), st.none())
NAMES = st.sampled_from(["learning_rate", "seed", "optim", "max_steps", "weight_decay"])


def one(**args):
    return RFModelConfig("m", peft_config=RFLoraConfig(r=8), training_args=RFSFTConfig(**args))


@settings(deadline=None)
@given(axes=st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=3), max_size=4), data=st.data())
def test_a_grid_is_the_product_of_its_lists(axes, data):
    fixed = data.draw(st.dictionaries(st.sampled_from(["bf16", "packing"]), VALUES))
    run_configs = expand(one(**{name: List(values) for name, values in axes.items()}, **fixed))
    assert len(run_configs) == prod(map(len, axes.values()))
    made = [run_config.config["training_args"] for run_config in run_configs]
    assert all({name: args[name] for name in fixed} == fixed for args in made)
    for name, values in axes.items():
        assert {repr(args[name]) for args in made} == set(map(repr, values))
    for run_config in run_configs:
        assert run_config.knobs == {f"training_args.{name}": run_config.config["training_args"][name] for name in axes}


@settings(deadline=None)
@given(st.lists(st.dictionaries(NAMES, VALUES, min_size=1), min_size=1, max_size=12))
def test_run_names_are_unique_and_short(several):
    taken: set[str] = set()
    for number, knobs in enumerate(several, 1):
        name = run_name({f"training_args.{key}": value for key, value in knobs.items()}, number, taken)
        assert name not in taken and 0 < len(name) <= NAME_WIDTH
        taken.add(name)


def test_the_last_list_varies_fastest_and_lists_nest():
    group = RFGridSearch(
        List([RFModelConfig(List(["a", "b"]), peft_config=List([RFLoraConfig(r=List([4, 8])), None])), one()])
    )
    made = [run_config.config for run_config in group.propose([])]
    assert [(config["model_name"], (config["peft_config"] or {}).get("r")) for config in made] == [
        ("a", 4), ("a", 8), ("a", None), ("b", 4), ("b", 8), ("b", None), ("m", 8),
    ]  # fmt: skip


def test_a_plain_list_is_a_value():
    run_configs = expand(RFModelConfig("m", peft_config=RFLoraConfig(target_modules=["q_proj", "v_proj"])))
    assert [run_config.config["peft_config"] for run_config in run_configs] == [
        {"target_modules": ["q_proj", "v_proj"]}
    ]
    assert run_configs[0].knobs == {}


def test_target_modules_can_be_swept_and_dicts_hold_lists():
    targets = List([["q_proj", "v_proj"], "all-linear"])
    config = RFModelConfig(
        "m", model_kwargs={"dtype": List(["auto", "float32"])}, peft_config={"target_modules": targets}
    )
    assert [list(run_config.knobs.values()) for run_config in expand(config)] == [
        [["q_proj", "v_proj"], "auto"],
        [["q_proj", "v_proj"], "float32"],
        ["all-linear", "auto"],
        ["all-linear", "float32"],
    ]


def test_the_knobs_of_whole_configs_are_the_fields_in_which_they_differ():
    group = List([one(learning_rate=1e-3, fp16=True), one(learning_rate=1e-4, fp16=True)])
    assert [run_config.knobs for run_config in expand(group)] == [
        {"training_args.learning_rate": 1e-3},
        {"training_args.learning_rate": 1e-4},
    ]
    adapters = List([RFLoraConfig(r=8, lora_alpha=16), RFLoraConfig(r=32, lora_alpha=16)])
    assert [run_config.knobs for run_config in expand(RFModelConfig("m", peft_config=adapters))] == [
        {"peft_config.r": 8},
        {"peft_config.r": 32},
    ]


def test_functions_are_knobs_by_name_and_secrets_are_hidden():
    def short(row): ...
    def long(row): ...

    config = RFModelConfig("m", formatting_func=List([short, long]), model_kwargs={"token": List(["hf_abcdefgh"])})
    run_configs = expand(config)
    assert [run_config.knobs for run_config in run_configs] == [
        {"formatting_func": name, "model_kwargs.token": "[redacted]"} for name in ("short", "long")
    ]
    assert [run_config.config["formatting_func"] for run_config in run_configs] == [short, long]
    assert run_configs[0].config["model_kwargs"]["token"] == "hf_abcdefgh"


def test_a_copy_is_independent_and_any_attribute_sticks():
    first = one(learning_rate=List([1e-3, 1e-4]))
    second = first.copy()
    second.training_args.learning_rate = 1e-5
    second.peft_config.r = 64
    second.my_own = "x"
    assert [run_config.config["training_args"]["learning_rate"] for run_config in expand([first, second])] == [
        1e-3,
        1e-4,
        1e-5,
    ]
    assert first.peft_config.r == 8 and not hasattr(first, "my_own")
    assert expand(second)[0].config["my_own"] == "x"
    assert "learning_rate=1e-05" in repr(second)


def test_renamed_arguments_are_translated_with_a_notice():
    args = {
        "warmup_ratio": 0.1,
        "max_seq_length": 9,
        "evaluation_strategy": "steps",
        "no_cuda": True,
        "logging_dir": "x",
    }
    run_config = expand(RFModelConfig("m", training_args=args, model_kwargs={"use_gradient_checkpointing": True}))[0]
    assert run_config.config["training_args"] == {
        "warmup_steps": 0.1,
        "max_length": 9,
        "eval_strategy": "steps",
        "use_cpu": True,
        "gradient_checkpointing": True,
    }
    assert run_config.config["model_kwargs"] == {} and len(run_config.notices) == 6


def test_everything_that_is_wrong_is_told_at_once():
    wrong = RFModelConfig("m", peft_config=RFSFTConfig())
    with pytest.raises(UserError) as fault:
        expand([one(), wrong, "m", RFGridSearch(one(), trainer_type="MTL")])
    assert len(fault.value.lines) == 3
    assert "RFLoraConfig" in str(fault.value) and "'m'" in str(fault.value) and "MTL" in str(fault.value)


@pytest.mark.parametrize("make", [lambda: List([]), lambda: List("abc"), lambda: List(3), lambda: expand([])])
def test_nothing_to_choose_from_is_a_fault(make):
    with pytest.raises(UserError):
        make()


def test_an_unknown_argument_of_a_model_config_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'training_args'"):
        RFModelConfig("m", traning_args={})


LR, R, TARGETS = "training_args.learning_rate", "peft_config.r", "peft_config.target_modules"


@pytest.mark.parametrize(
    ("knobs", "name"),
    [
        ({LR: 5e-4, R: 16, TARGETS: ["q_proj", "v_proj"]}, "lr5e-4-r16-qv"),
        ({"model_name": "owner/Some-Model", "training_args.packing": False}, "Some-Model-no-packing"),
        ({LR: 0.05, "training_args.hub_token": "hf_abcdefgh"}, "lr0.05"),
        ({}, "run 3"),
    ],
)
def test_run_names_are_readable(knobs, name):
    assert run_name(knobs, 3) == name


def plain(value):
    kinds = (dict, list, str, int, float, bool, type(None))
    assert type(value) in kinds, repr(value)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        plain(item)


def test_scalars_of_numpy_and_torch_are_numbers_wherever_they_stand():
    config = RFModelConfig(
        "m",
        model_kwargs={"use_cache": np.bool_(False), "deep": [{"x": torch.tensor(2.5)}]},
        peft_config=List([{"r": np.int32(4)}, RFLoraConfig(r=torch.tensor(8), lora_dropout=np.float32(0.5))]),
        training_args={
            "learning_rate": List(np.logspace(-4, -3, 2)),
            "per_device_train_batch_size": List(np.arange(1, 3)),
            "bf16": np.bool_(False),
            "optim": np.str_("adamw_torch"),
        },
        generation_config={"max_new_tokens": np.int64(3)},
    )
    made = expand(config)
    assert len(made) == 8
    for run_config in made:
        plain(run_config.config)
        plain(run_config.knobs)
    assert made[0].config["training_args"]["learning_rate"] == float(np.logspace(-4, -3, 2)[0])
    assert {run_config.config["peft_config"]["r"] for run_config in made} == {4, 8}
    assert not made[0].notices


def test_scalars_in_trls_own_objects_are_numbers():
    from trl import SFTConfig

    args = SFTConfig(per_device_train_batch_size=np.int64(4), seed=torch.tensor(3), use_cpu=True, bf16=False)
    plain(expand(RFModelConfig("m", training_args=args))[0].config)


def test_numbers_written_as_text_are_read_and_said():
    args = {"learning_rate": List(["1e-4", 1e-3]), "max_steps": "1e2", "warmup_ratio": "0.1", "eos_token": "7"}
    made = expand(RFModelConfig("m", peft_config={"r": "8", "lora_alpha": "x"}, training_args=args))
    first, second = (run_config.config["training_args"] for run_config in made)
    assert (first["learning_rate"], first["max_steps"], first["warmup_steps"]) == (1e-4, 100, 0.1)
    assert type(first["max_steps"]) is int and first["eos_token"] == "7" and second["learning_rate"] == 1e-3
    assert made[0].config["peft_config"] == {"r": 8, "lora_alpha": "x"}, "what is no number is a fault of the check"
    assert made[0].knobs == {"training_args.learning_rate": 1e-4}
    assert "training_args.learning_rate is text, '1e-4': taken as the number 0.0001" in made[0].notices
    assert not any("learning_rate" in notice for notice in made[1].notices)


def test_paths_are_names_where_rftui_reads_them_and_paths_for_the_users_own_function():
    config = RFModelConfig(
        List([Path("/m"), Path("/n")]), tokenizer=Path("/t"), training_args={"chat_template_path": Path("/c.jinja")}
    )
    config.corpus = Path("/data")
    made = expand(config)
    assert [run_config.config["model_name"] for run_config in made] == ["/m", "/n"]
    assert made[0].config["tokenizer"] == "/t" and made[0].knobs == {"model_name": "/m"}
    assert made[0].config["training_args"]["chat_template_path"] == "/c.jinja"
    assert made[0].config["corpus"] == Path("/data")


@pytest.mark.parametrize("value", ["a\udc80", Path(os.fsdecode(b"/m/\xe9")), List(["a", "\ud800"])])
def test_text_that_is_not_utf8_is_named(value):
    with pytest.raises(UserError, match="model_name is .*not valid UTF-8") as fault:
        expand(RFModelConfig(value))
    fault.value.lines[0].encode()


def test_a_grid_proposes_all_of_itself_once():
    group = RFGridSearch(RFModelConfig("m", training_args=RFSFTConfig(learning_rate=List([1e-4, 1e-3]))))
    assert isinstance(group, RunSource) and source(group) is group
    first = group.propose([])
    assert len(first) == 2 and group.propose([Run(1, "a"), Run(2, "b")]) == []
    assert [made.knobs for made in source(group.configs).propose([])] == [made.knobs for made in first]
