"""The promise: interleaved runs give the bytes that plain TRL alone gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rftui.paths import ExperimentDir
from rftui.scheduler.store import Store

HERE = Path(__file__).parent
TINYCHAT = HERE.parents[1] / "sample_experiments" / "tinychat"
COMPARED = ("loss", "grad_norm", "learning_rate", "entropy", "mean_token_accuracy", "num_tokens", "train_loss")

RUNS = [
    ({"r": 4, "lora_alpha": 8, "lora_dropout": 0.05}, {"learning_rate": 5e-3, "per_device_train_batch_size": 4}),
    (
        {"r": 8, "lora_alpha": 16, "lora_dropout": 0.1},
        {"learning_rate": 1e-3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3},
    ),
    ({"r": 16, "lora_alpha": 8, "lora_dropout": 0.0}, {"learning_rate": 2e-3, "per_device_train_batch_size": 8}),
    (
        {"r": 8, "lora_alpha": 32, "lora_dropout": 0.2},
        {"learning_rate": 8e-4, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 4},
    ),
]
COMMON = {"num_train_epochs": 2, "logging_steps": 2, "max_length": 64, "warmup_steps": 2, "seed": 42}
TARGETS = ["q_proj", "v_proj"]

SCRIPT = """
import json, sys
from datasets import Dataset
from rftui import Experiment
from rftui.automl import List, RFGridSearch, RFLoraConfig, RFModelConfig, RFSFTConfig

case = json.load(open(sys.argv[1]))
rows = Dataset.from_list(json.load(open(case["rows"])))
configs = List([
    RFModelConfig(model_name=case["model"], peft_config=RFLoraConfig(**peft), training_args=RFSFTConfig(**args))
    for peft, args in case["runs"]
])
experiment = Experiment(experiment_name="fidelity")
experiment.run_fit(RFGridSearch(configs), None, rows, rows.select(range(8)), num_chunks=case["chunks"], seed=42)
experiment.end()
"""


def rows(count):
    return [
        {
            "prompt": [{"role": "user", "content": f"What is {n} plus {n * 7 % 11}?"}],
            "completion": [{"role": "assistant", "content": f"It is {n + n * 7 % 11}, " + "I think. " * (n % 5)}],
        }
        for n in range(count)
    ]


def train(tmp_path, chunks=8, devices="cpu:2", runs=RUNS):
    """Train `runs` under rftui, headless; the experiment's directory."""
    (tmp_path / "rows.json").write_text(json.dumps(rows(61)))
    case = {"model": str(TINYCHAT), "rows": str(tmp_path / "rows.json"), "chunks": chunks}
    case["runs"] = [(peft | {"target_modules": TARGETS}, COMMON | args) for peft, args in runs]
    (tmp_path / "case.json").write_text(json.dumps(case))
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"RFTUI_HOME": str(tmp_path / "home"), "RFTUI_DEVICES": devices}
    done = subprocess.run(
        [sys.executable, "script.py", "case.json"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ExperimentDir(tmp_path / "home" / "fidelity")


def plain(tmp_path, number, case):
    """Train the case as plain TRL in its own process; (adapter bytes, history)."""
    out = tmp_path / f"plain-{number}"
    out.mkdir()
    (out / "case.json").write_text(json.dumps(case))
    subprocess.run([sys.executable, str(HERE / "plain.py"), str(out / "case.json"), str(out)], check=True)
    return (out / "adapter_model.safetensors").read_bytes(), json.loads((out / "history.json").read_text())


def curves_of(history):
    curves: dict[str, list[tuple[int, float]]] = {}
    for entry in history:
        for name in COMPARED:
            if name in entry:
                curves.setdefault(name, []).append((entry["step"], entry[name]))
    return curves


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("fidelity")
    return tmp_path, train(tmp_path)


@pytest.mark.parametrize("number", range(len(RUNS)))
def test_each_run_has_the_bytes_and_the_losses_of_plain_trl(trained, number):
    tmp_path, experiment = trained
    peft, args = RUNS[number]
    case = {
        "model": str(TINYCHAT),
        "rows": str(tmp_path / "rows.json"),
        "seed": 42,
        "threads": max(1, (os.cpu_count() or 1) // 2),
        "training_args": COMMON | args,
        "peft_config": peft | {"target_modules": TARGETS, "task_type": "CAUSAL_LM"},
    }
    adapter, history = plain(tmp_path, number, case)
    store = Store.read(experiment.db)
    run = store.runs()[number]
    ours = store.curves(run.id)[run.id]
    expected = curves_of(history)
    assert set(expected) >= {"loss", "grad_norm", "learning_rate"}
    assert {name: ours.get(name) for name in expected} == expected
    assert (Path(run.final) / "adapter_model.safetensors").read_bytes() == adapter


def test_the_runs_really_took_turns_on_two_workers(trained):
    _, experiment = trained
    store = Store.read(experiment.db)
    turns = store.turns()
    assert len({turn["device"] for turn in turns}) == 2
    assert all(run.chunks == 16 and run.chunk == 16 for run in store.runs())
    started = [turn["run"] for turn in turns]
    firsts = [started.index(run.id) for run in store.runs()]
    assert max(firsts) < min(i for i, run in enumerate(started) if started.index(run) != i), "a run lapped another"
