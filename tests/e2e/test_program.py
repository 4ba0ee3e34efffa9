"""The whole program without a screen: training, what is shown of it, ops from the shell, interruption."""

import json
import signal
import sqlite3
from pathlib import Path

import pytest

from rftui.store import Store

pytestmark = pytest.mark.slow


FIELDS = (
    "id name state chunk chunks step total_steps epoch device parent knobs metrics error checkpoint final"
).split()


def listening(processes):
    return [c for process in processes for c in process.net_connections("inet") if c.status == "LISTEN"]


def test_a_training_from_its_start_to_what_it_leaves(program):
    child = program.start("run", program.script, "--headless", "--", 48, 4)
    busy = program.until(
        lambda: len(found := program.processes()) >= 4 and found
    )  # rftui, scheduler, worker, tracking
    assert listening(busy) == []
    output = child.communicate(timeout=300)[0]
    assert child.returncode == 0, output
    assert "ETA" in output and "steps/s" in output and "Run 2 done" in output
    shown = program.show()
    assert shown["name"] == "tiny" and shown["state"] == "done" and Path(shown["path"]).is_dir()
    for run in shown["runs"]:
        assert set(FIELDS) <= set(run)
        assert (run["state"], run["step"], run["chunk"]) == ("done", 12, run["chunks"])
        assert {"loss", "eval_loss", "learning_rate"} <= set(run["metrics"])
        assert run["knobs"] == {"peft_config.r": run["knobs"]["peft_config.r"]}
    curves = program.show(1)["curves"]
    assert [step for step, _ in curves["loss"]] == list(range(1, 13)) and len(curves["eval_loss"]) == 3
    turns = [(turn["run"], turn["chunk"]) for turn in Store.read(program.home / "tiny" / "experiment.db").turns()]
    assert turns == [(run, chunk) for chunk in range(3) for run in (1, 2)], "a run lapped another"
    assert program.until(lambda: not program.processes()), "a process was left behind"
    with sqlite3.connect(program.home / "mlflow.db") as db:
        params = db.execute("SELECT key, value FROM params WHERE key = 'peft_config.r'").fetchall()
        losses = db.execute("SELECT count(*) FROM metrics WHERE key = 'loss'").fetchone()
    assert sorted(params) == [("peft_config.r", "4"), ("peft_config.r", "8")] and losses == (24,)


def test_a_finished_adapter_loads_with_peft_and_generates(program):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.e2e.program import TINYCHAT

    program.call("run", program.script, "--headless", "--", 12, 4)
    final = program.show()["runs"][0]["final"]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(TINYCHAT), final)
    tokenizer = AutoTokenizer.from_pretrained(final)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert model.generate(**prompt, max_new_tokens=4).shape[1] > prompt["input_ids"].shape[1]


def adapter(program, run):
    return (Path(program.show(run)["final"]) / "adapter_model.safetensors").read_bytes()


def test_stop_resume_interrupt_and_open_end_in_the_same_bytes(program, tmp_path_factory):
    from tests.e2e.program import Program

    rows, batch, steps = 120, 2, 60
    child = program.start("run", program.script, "--headless", "--", rows, batch)
    program.until(lambda: program.show(1)["step"] > 3)
    assert "stops at its next step" in program.call("stop", "tiny", 1)
    stopped = program.until(lambda: (run := program.show(1))["state"] == "stopped" and run)
    assert 3 < stopped["step"] < steps and Path(stopped["checkpoint"]).is_dir()
    assert "already stopped" in program.call("stop", "tiny", 1, code=1)
    assert f"from step {stopped['step']}" in program.call("resume", "tiny", 1)
    program.until(lambda: program.show(1)["step"] > stopped["step"])
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=120)
    assert child.returncode == 130
    interrupted = program.show()
    assert interrupted["state"] == "interrupted"
    assert all(run["state"] in ("waiting", "queued", "done") for run in interrupted["runs"])
    program.call("open", "tiny", "--headless")
    undisturbed = Program(tmp_path_factory.mktemp("undisturbed"))
    undisturbed.call("run", undisturbed.script, "--headless", "--", rows, batch)
    for run in (1, 2):
        assert adapter(program, run) == adapter(undisturbed, run)
        assert program.show(run)["curves"] == undisturbed.show(run)["curves"]


def test_clones_from_the_shell_are_checked_and_the_typed_learning_rate_trains(program):
    program.call("run", program.script, "--headless", "--", 48, 4)
    base = program.show(1)["curves"]["loss"]
    refused = program.call("clone", "tiny", 2, "--set", "r=4", "--set", "epochs=2", "--warm", code=1)
    assert "r" in refused and "Traceback" not in refused
    assert "learning_rate" in program.call("clone", "tiny", 2, "--set", "learnin_rate=1", code=2)
    said = program.call("clone", "tiny", 1, "--set", "lr=1e-3", "--set", "epochs=2", "--warm", "--json")
    clone = json.loads(said)["run"]
    done = program.until(lambda: (run := program.show(clone))["state"] == "done" and run)
    assert done["parent"] == 1 and done["step"] == 12
    assert {rate for _, rate in done["curves"]["learning_rate"]} == {1e-3}
    assert done["curves"]["loss"][0][1] < base[0][1] - 0.5, "it starts from its parent's weights, not the base's"
    program.until(lambda: not program.processes())
    program.call("delete", "tiny", clone, "--yes")
    program.until(lambda: program.show(clone)["state"] == "deleted")


BAD = {
    "raises": ("raise RuntimeError('the rows are gone')", 2, "the rows are gone"),
    "nothing": ("print('hello')", 2, "run_fit"),
    "knob": ("lerning_rate=1e-3", 2, "learning_rate"),
    "modules": ("target_modules=['query_key_value']", 2, "q_proj"),
    "model": ("model_name='/nowhere/model'", 2, "/nowhere/model"),
    "empty": ("rows=[]", 2, "train_dataset"),
    "column": ("rows=[{'question': 'x'}]", 2, "question"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_clear_line(program, kind):
    change, code, word = BAD[kind]
    text = program.script.read_text()
    if kind in ("raises", "nothing"):
        text = change
    elif kind == "knob":
        text = text.replace("learning_rate=5e-3", change)
    elif kind == "modules":
        text = text.replace('target_modules=["q_proj", "v_proj"]', change)
    elif kind == "model":
        text = text.replace("model_name=", "model_name='/nowhere/model' or ")
    else:
        text = text.replace("configs = ", change + "\nconfigs = ")
    program.script.write_text(text)
    output = program.call("run", program.script, "--headless", "--", 12, 4, code=code)
    assert word in output and "Traceback" not in output
    assert program.until(lambda: not program.processes())


def test_a_run_that_raises_fails_alone(program):
    text = program.script.read_text()
    text = text.replace("create_model = None", CREATE)
    program.script.write_text(text)
    program.call("run", program.script, "--headless", "--", 12, 4, code=1)
    one, two = program.show()["runs"]
    assert (one["state"], two["state"]) == ("done", "failed")
    assert "no rank 8 today" in two["error"]


CREATE = """
def create_model(config):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    if config["peft_config"]["r"] == 8:
        raise ValueError("no rank 8 today")
    name = config["model_name"]
    return AutoModelForCausalLM.from_pretrained(name, dtype="float32"), AutoTokenizer.from_pretrained(name)

"""
