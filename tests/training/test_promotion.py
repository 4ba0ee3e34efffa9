"""A config that moves to another base model trains the same kind of modules there, in a batch that fits."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig

from rftui import messages
from rftui.automl import RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.config.generation import rows_per_step
from rftui.training import promotion
from rftui.training.promotion import promoted
from tests.training.engine import TINY, Engine, of

CPU = torch.device("cpu")
ROOMY = 10**15


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directories that hold nothing but a model's configuration."""
    small = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    made = {
        "llama": LlamaConfig(**small, num_attention_heads=4),
        "gpt2": GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4),
        "neox": GPTNeoXConfig(**small, num_attention_heads=4),
    }
    folders = {}
    for name, config in made.items():
        folders[name] = str(tmp_path_factory.mktemp(name))
        config.save_pretrained(folders[name])
    return folders


def config(model, targets=("q_proj", "v_proj"), peft=True, **args):
    targets = list(targets) if isinstance(targets, tuple) else targets
    return {
        "model_name": model,
        "model_kwargs": {},
        "tokenizer": None,
        "peft_config": {"r": 8, "target_modules": targets} if peft else None,
        "training_args": args,
    }


@pytest.mark.parametrize(
    ("model", "targets", "expected"),
    [
        ("llama", ("q_proj", "v_proj"), ["q_proj", "v_proj"]),
        ("gpt2", ("q_proj", "v_proj"), ["c_attn"]),
        ("gpt2", ("q_proj", "down_proj"), ["c_attn", "c_proj"]),
        ("neox", ("q_proj", "o_proj", "up_proj"), ["query_key_value", "dense", "dense_h_to_4h"]),
        ("llama", ("c_attn",), ["k_proj", "q_proj", "v_proj"]),
        ("llama", ("something",), "all-linear"),
        ("gpt2", ("q_proj", "something"), ["c_attn", "something"]),
        ("gpt2", "all-linear", "all-linear"),
        ("gpt2", r".*\.q_proj", "all-linear"),
        ("gpt2", None, None),
    ],
)
def test_target_modules_go_by_their_names_in_the_new_model(models, monkeypatch, model, targets, expected):
    monkeypatch.setattr(promotion, "_free", lambda device: ROOMY)
    changes, said = promoted(config(models[model], targets), "old", "SFT", CPU)
    given = list(targets) if isinstance(targets, tuple) else targets
    assert changes == ({"peft_config.target_modules": expected} if expected != given else {})
    assert "M parameters" in said[-1] and "GB free for a batch of 8" in said[-1]


def test_a_model_that_trains_all_its_weights_has_no_target_modules(models, monkeypatch):
    monkeypatch.setattr(promotion, "_free", lambda device: ROOMY)
    assert promoted(config(models["gpt2"], peft=False), "old", "SFT", CPU)[0] == {}


def test_a_tokenizer_of_the_old_model_follows_to_the_new_one(models, monkeypatch):
    monkeypatch.setattr(promotion, "_free", lambda device: ROOMY)
    moved = config(models["llama"])
    assert promoted(moved | {"tokenizer": "old"}, "old", "SFT", CPU)[0] == {"tokenizer": models["llama"]}
    assert promoted(moved | {"tokenizer": "mine"}, "old", "SFT", CPU)[0] == {}


@pytest.mark.parametrize("algo", ["SFT", "DPO", "GRPO"])
@settings(max_examples=25, deadline=None)
@given(
    batch=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]),
    accumulation=st.integers(1, 4),
    share=st.floats(0.001, 2.0),
    generations=st.sampled_from([2, 3, 4]),
)
def test_a_smaller_batch_keeps_the_rows_of_a_step(models, algo, batch, accumulation, share, generations):
    args = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
    if algo == "GRPO":
        args |= {"num_generations": generations}
        if batch * accumulation % generations:
            return
    moved = config(models["llama"], **args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promotion, "_free", lambda device: ROOMY)
        whole = promoted(moved, "old", algo, CPU)
        need = promotion._bytes(moved, algo, _model(models), batch)
        patch.setattr(promotion, "_free", lambda device: int(share * need))
        changes, said = promoted(moved, "old", algo, CPU)
    assert whole[0] == {}
    after = args | {name.removeprefix("training_args."): value for name, value in changes.items()}
    assert rows_per_step(algo, after) == rows_per_step(algo, args)
    assert after["per_device_train_batch_size"] <= batch
    if share > 1.2:
        assert changes == {}
    elif share < 0.5 and batch > 1 and algo != "GRPO":
        assert after["per_device_train_batch_size"] < batch and "instead of" in said[-1]


def _model(models):
    return promotion.without_weights("llama", promotion.load_config(models["llama"], ()))


def test_a_clone_on_another_base_is_fitted_as_it_begins_and_says_so(tmp_path, monkeypatch):
    """The tiny model under another name, in which a sibling's modules have to be found."""
    other = tmp_path / "other"
    shutil.copytree(TINY, other)
    args = {
        "learning_rate": 5e-3,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "max_length": 48,
        "seed": 1,
    }
    group = RFModelConfig(
        TINY, peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]), training_args=RFSFTConfig(**args)
    )
    engine = Engine(tmp_path / "home", group, num_chunks=2, eval_rows=0)
    monkeypatch.setattr(promotion, "_free", lambda device: 1)
    run = engine.start(2, config_index=0, changes={"model_name": str(other), "peft_config.target_modules": ["c_attn"]})
    seen = engine.train(2)
    [adapted] = of(seen, messages.Adapted)
    assert adapted.changes == {
        "peft_config.target_modules": ["k_proj", "q_proj", "v_proj"],
        "training_args.per_device_train_batch_size": 1,
        "training_args.gradient_accumulation_steps": 4,
    }
    assert run.config["training_args"]["gradient_accumulation_steps"] == 4
    assert any("may not fit" in note.text for note in of(seen, messages.Note))
    assert of(seen, messages.Finished)[0].step == 7, "26 rows, 4 a step, as without the fitting"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    args = {"per_device_train_batch_size": 4, "max_steps": 1, "max_length": 48, "seed": 1}
    group = RFModelConfig(
        TINY, peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]), training_args=RFSFTConfig(**args)
    )
    return Engine(tmp_path_factory.mktemp("home"), group, num_chunks=2, eval_rows=0)


@pytest.mark.parametrize("own_function", [False, True])
@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"peft_config.target_modules": ["q_proj", "FAKE"]}, ["has no FAKE", "its linear modules are q_proj"]),
        ({"peft_config.modules_to_save": ["lm_haed"]}, ["no module lm_haed", "did you mean 'lm_head'"]),
        ({"peft_config.layers_to_transform": [99]}, ["layer 99"]),
    ],
)
def test_a_clone_that_names_what_its_model_lacks_fails_before_it_trains(engine, changes, parts, own_function):
    create = lambda config: AutoModelForCausalLM.from_pretrained(config["model_name"])  # noqa: E731
    engine.make_models_by(create if own_function else None)
    engine.start(2, config_index=0, changes=changes)
    engine.turn(2)
    seen = engine.until(2, messages.Failed)
    assert [type(message) for message in seen] == [messages.Failed]
    assert all(part in seen[-1].error for part in parts) and "\n" not in seen[-1].error


def test_a_clone_on_a_model_that_is_not_there_fails_with_the_reason(engine):
    engine.make_models_by(None)
    engine.start(3, config_index=0, changes={"model_name": "./nowhere"})
    engine.turn(3)
    [failed] = engine.until(3, messages.Failed)
    assert "model_name './nowhere': no directory" in failed.error
