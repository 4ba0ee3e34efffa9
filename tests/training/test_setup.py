"""`setup_fn`: what the script would register or patch reaches each worker, once, before anything is made."""

import os
from pathlib import Path

import pytest
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rftui import messages
from rftui.automl import RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.automl.grid import expand
from rftui.config.spec import Spec
from rftui.errors import UserError
from rftui.training import failures
from rftui.training.setup import Setup
from tests.fidelity.cases import TINYCHAT
from tests.training.engine import Engine


class MyConfig(LlamaConfig):
    model_type = "my-llama"


class MyModel(LlamaForCausalLM):
    config_class = MyConfig


def register():
    AutoConfig.register("my-llama", MyConfig)
    AutoModelForCausalLM.register(MyConfig, MyModel)


def makes_my_model(config):
    given = AutoConfig.from_pretrained(TINYCHAT).to_dict() | {"num_hidden_layers": 1}
    given.pop("model_type")
    model = AutoModelForCausalLM.from_config(MyConfig(**given))
    assert type(model) is MyModel
    return model, AutoTokenizer.from_pretrained(TINYCHAT)


@pytest.fixture(autouse=True)
def forget():
    yield
    transformers.CONFIG_MAPPING._extra_content.pop("my-llama", None)


def config(name=str(TINYCHAT)):
    args = RFSFTConfig(per_device_train_batch_size=8, max_length=48, num_train_epochs=1)
    peft = RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    return RFModelConfig(name, peft_config=peft, training_args=args)


def test_what_it_registers_is_known_as_models_are_made(tmp_path):
    engine = Engine(tmp_path, [config(), config()], makes_my_model, eval_rows=0, setup=register)
    for number in (1, 2):  # the second finds the class of the first
        engine.start(number)
        assert isinstance(engine.train(number)[-1], messages.Finished)


def test_without_it_the_failure_says_how_to_hand_it_over(tmp_path):
    engine = Engine(tmp_path, config(), makes_my_model, eval_rows=0)
    engine.start(1)
    error = engine.train(1)[-1].error
    assert "run_fit(setup_fn=...)" in error and "makes_my_model" in error and "\n" not in error


def spec(folder, name, setup):
    path = folder / name
    Spec(expand(config()), setup_fn=setup).save(path)
    return path


def test_it_is_run_once_in_a_process_and_another_ones_fit_is_refused(tmp_path):
    calls = tmp_path / "calls"
    calls.write_text("")

    def first():
        calls.write_text(calls.read_text() + "1")

    def second():
        calls.write_text(calls.read_text() + "2")

    setup = Setup()
    for _ in range(2):
        assert setup.load(spec(tmp_path, "a", first)).run_configs
    assert setup.load(spec(tmp_path, "b", first)).run_configs and calls.read_text() == "1"
    for other in (second, None):
        with pytest.raises(UserError, match="another run_fit has set this worker up"):
            setup.load(spec(tmp_path, "c", other))
    assert calls.read_text() == "1"


def broken():
    return {}["loss"]


def test_one_that_raises_is_told_before_anything_trains(tmp_path):
    setup, path = Setup(), spec(tmp_path, "a", broken)
    for _ in range(2):
        with pytest.raises(UserError, match=rf"setup_fn raised KeyError: 'loss' in broken \({__file__}, line \d+\)"):
            setup.load(path)


def noting():
    Path("worked_here").touch()


def test_it_runs_and_every_run_is_built_in_the_directory_of_its_own_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        spec = Spec(expand(config()), setup_fn=noting, cwd=str(tmp_path / name), sys_path=[])
        spec.save(tmp_path / f"{name}.pkl")
    setup = Setup()
    for name in ("one", "two", "one"):
        setup.load(tmp_path / f"{name}.pkl")
        assert os.getcwd() == str(tmp_path / name)
    assert (tmp_path / "one" / "worked_here").exists() and not (tmp_path / "two" / "worked_here").exists()


def test_without_the_scripts_directory_no_run_trains_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Spec(expand(config()), cwd=str(tmp_path / "gone"), sys_path=[]).save(tmp_path / "spec.pkl")
    setup = Setup()
    for _ in range(2):
        with pytest.raises(UserError, match="the script's directory .*gone cannot be entered") as fault:
            setup.load(tmp_path / "spec.pkl")
        assert failures.cause(fault.value) == "directory"
    (tmp_path / "gone").mkdir()
    assert setup.load(tmp_path / "spec.pkl") and os.getcwd() == str(tmp_path / "gone")
