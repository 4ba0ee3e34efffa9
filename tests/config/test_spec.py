"""A spec's file: what travels, what is refused, and the changes of clones."""

import functools
import json
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rftui.automl import List, RFModelConfig, RFSFTConfig
from rftui.automl.grid import expand
from rftui.config.spec import RunConfig, Spec, configured, plain
from rftui.errors import UserError
from rftui.runs import flatten

SCRIPT = """
import sys
from pathlib import Path
from helper import Upper
from rftui.automl import RFModelConfig
from rftui.automl.grid import expand
from rftui.config.spec import Spec

suffix = "!"
def shout(row):
    return {"text": Upper(row["text"]).value + suffix}

if __name__ == "__main__":
    run_configs = expand(RFModelConfig("m", formatting_func=shout))
    Spec(run_configs, create_model_fn=lambda config: shout).save(Path(sys.argv[1]))
"""
HELPER = """
class Upper:
    def __init__(self, text):
        self.value = text.upper()
"""


def run_config(**config):
    base = {"model_name": "m", "model_kwargs": {}, "peft_config": {"r": 8}, "training_args": {"learning_rate": 1e-3}}
    return RunConfig("SFT", base | config)


def test_a_scripts_functions_and_the_modules_beside_it_travel_by_value(tmp_path):
    script = tmp_path / "there" / "script.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    (script.parent / "helper.py").write_text(HELPER)
    path = tmp_path / "fits" / "spec.pkl"
    subprocess.run([sys.executable, str(script), str(path)], check=True, cwd=tmp_path)
    script.unlink()
    (script.parent / "helper.py").unlink()
    spec = Spec.load(path)
    assert spec.run_configs[0].config["formatting_func"]({"text": "a"}) == {"text": "A!"}
    assert spec.create_model_fn({})({"text": "b"}) == {"text": "B!"}
    assert spec.cwd == str(tmp_path) and spec.argv[1:] == [str(path)]
    assert path.stat().st_mode & 0o777 == 0o600 and [p.name for p in path.parent.iterdir()] == ["spec.pkl"]


def test_what_others_may_write_is_not_loaded(tmp_path):
    path = tmp_path / "spec.pkl"
    Spec([run_config()]).save(path)
    path.chmod(0o666)
    with pytest.raises(UserError, match="written by others"):
        Spec.load(path)


@pytest.mark.parametrize("content", [b"", b"[]\nnonsense", b'["/x"]'])
def test_a_damaged_spec_is_a_fault_and_not_a_traceback(tmp_path, content):
    path = tmp_path / "spec.pkl"
    path.write_bytes(content)
    with pytest.raises(UserError):
        Spec.load(path)
    with pytest.raises(UserError, match="cannot read"):
        Spec.load(tmp_path / "none.pkl")


def test_what_cannot_travel_is_named_with_its_holder(tmp_path):
    lock, table = threading.Lock(), bytes(11_000_000)

    def held(row):
        return lock

    def heavy(row):
        return table[0]

    spec = Spec(
        [run_config(formatting_func=held), run_config(compute_metrics=functools.partial(heavy))], create_model_fn=heavy
    )
    with pytest.raises(UserError) as fault:
        spec.save(tmp_path / "spec.pkl")
    create, formatting, metrics = fault.value.lines
    assert "create_model_fn (heavy)" in create and "10 MB" in create and "'table' (bytes)" in create
    assert "formatting_func (held)" in formatting and "'lock'" in formatting
    assert "compute_metrics" in metrics and "'table'" in metrics
    assert not os.listdir(tmp_path)


def test_a_plain_config_is_json_without_secrets():
    token = "hf_SECRETSECRET"
    config = plain(run_config(formatting_func=len, model_kwargs={"token": token, "x": {3, 1}}, tokenizer=object()))
    assert json.loads(json.dumps(config)) == config
    assert config["formatting_func"] == "len" and config["model_kwargs"]["x"] == [1, 3]
    assert token not in json.dumps(config)


CHANGES = st.dictionaries(
    st.sampled_from(["training_args.learning_rate", "peft_config.r", "model_name", "model_kwargs.a.b", "new.knob"]),
    st.one_of(st.integers(), st.text(max_size=3), st.none()),
)


@settings(deadline=None)
@given(CHANGES)
def test_changes_are_set_and_all_else_stays(changes):
    original = run_config(formatting_func=len)
    before = flatten(original.config)
    after = flatten(configured(original, changes))
    assert flatten(original.config) == before
    assert {name: after[name] for name in changes} == changes
    untouched = {name: value for name, value in before.items() if value != {} and name not in changes}
    assert untouched.items() <= after.items()


def test_a_changed_dtype_goes_to_the_name_the_script_used():
    config = configured(run_config(model_kwargs={"torch_dtype": "auto"}), {"model_kwargs.dtype": "float32"})
    assert config["model_kwargs"] == {"torch_dtype": "float32"}


def test_notices_and_knobs_travel(tmp_path):
    config = RFModelConfig("m", training_args=RFSFTConfig(warmup_ratio=List([0.1, 0.2])))
    Spec(expand(config)).save(tmp_path / "spec.pkl")
    first, second = Spec.load(tmp_path / "spec.pkl").run_configs
    assert first.knobs == {"training_args.warmup_steps": 0.1} and first.notices and second.config["model_name"] == "m"


COUNTERS = """
import functools, sys
from pathlib import Path
from rftui.automl import RFModelConfig
from rftui.automl.grid import expand
from rftui.config.spec import Spec

seen = []

class Counter:
    made = 0
    def __init__(self):
        self.calls = 0
    def __call__(self, row):
        type(self).made += 1
        self.calls += 1
        return self.calls, type(self).made

@functools.lru_cache(maxsize=4)
def load(name):
    return [name]

def create(config, kept={}):
    seen.append(1)
    kept.setdefault("calls", []).append(1)
    load("m").append(1)
    return len(seen), len(kept["calls"]), len(load("m"))

if __name__ == "__main__":
    run_configs = expand(RFModelConfig("m", formatting_func=Counter()))
    Spec(run_configs, create_model_fn=create).save(Path(sys.argv[1]))
"""


def test_each_load_makes_what_functions_keep_anew(tmp_path):
    """Globals, defaults, closures, objects, classes and caches: as a process of its own would have them."""
    script, path = tmp_path / "script.py", tmp_path / "spec.pkl"
    script.write_text(COUNTERS)
    subprocess.run([sys.executable, str(script), str(path)], check=True, cwd=tmp_path)
    for _ in range(2):
        spec = Spec.load(path)
        count = spec.run_configs[0].config["formatting_func"]
        assert [count({}), count({})] == [(1, 1), (2, 2)]
        assert [spec.create_model_fn({}), spec.create_model_fn({})] == [(1, 1, 2), (2, 2, 3)]
