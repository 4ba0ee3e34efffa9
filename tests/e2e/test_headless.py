"""Training without a screen: what it prints, what it leaves, and how it ends when it is interrupted or a run fails."""

import re
import signal
import sqlite3
from pathlib import Path

import pytest

from rftui.store import Store
from tests.e2e.program import LONG, TINYCHAT

pytestmark = pytest.mark.slow

FIELDS = (
    "id name state chunk chunks step total_steps epoch device parent knobs metrics error checkpoint final"
).split()


def test_progress_is_printed_and_the_end_is_told(undisturbed):
    assert re.search(r"\d+%  chunk \d/3  1 running, 1 waiting  .*steps/s  ETA ", undisturbed.output)
    assert "Run 1 done" in undisturbed.output and "Run 2 done" in undisturbed.output
    assert "Traceback" not in undisturbed.output and "\x1b" not in undisturbed.output


def test_show_tells_all_of_every_run(undisturbed):
    shown = undisturbed.show()
    assert (shown["name"], shown["state"]) == ("tiny", "done") and Path(shown["path"]).is_dir()
    assert [list(run) for run in shown["runs"]] == [FIELDS, FIELDS]
    for run, rank in zip(shown["runs"], (4, 8), strict=True):
        assert (run["state"], run["step"], run["total_steps"], run["epoch"]) == ("done", 96, 96, 1.0)
        assert (run["chunk"], run["chunks"], run["error"], run["parent"]) == (3, 3, None, None)
        assert {"loss", "eval_loss", "learning_rate", "grad_norm"} <= set(run["metrics"])
        assert run["knobs"] == {"peft_config.r": rank}
    curves = undisturbed.show("r4")["curves"]
    assert [step for step, _ in curves["loss"]] == list(range(1, 97))
    assert [step for step, _ in curves["eval_loss"]] == [32, 64, 96]


def test_every_run_takes_a_chunk_before_any_takes_the_next(undisturbed):
    turns = Store.read(undisturbed.home / "tiny" / "experiment.db").turns()
    assert [(turn["run"], turn["chunk"]) for turn in turns] == [(run, chunk) for chunk in range(3) for run in (1, 2)]


def test_no_port_was_opened_and_no_process_is_left(undisturbed):
    assert undisturbed.listened == []
    assert undisturbed.processes() == []


def test_the_adapters_load_with_peft_and_generate(undisturbed):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for run in undisturbed.show()["runs"]:
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(TINYCHAT), run["final"])
        tokenizer = AutoTokenizer.from_pretrained(run["final"])
        messages = [{"role": "user", "content": "What is 3 plus 3?"}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        made = model.generate(**prompt, max_new_tokens=4, do_sample=False)[0, prompt["input_ids"].shape[1] :]
        assert tokenizer.decode(made).strip().startswith("It"), "it learned how every answer begins"


def test_mlflow_has_each_run_with_its_knobs_and_curves(undisturbed):
    with sqlite3.connect(undisturbed.home / "mlflow.db") as db:
        runs = [uuid for (uuid,) in db.execute("SELECT run_uuid FROM runs WHERE status = 'FINISHED'")]
        params = db.execute("SELECT value, run_uuid FROM params WHERE key = 'peft_config.r' ORDER BY 1").fetchall()
        assert [value for value, _ in params] == ["4", "8"] and {uuid for _, uuid in params} == set(runs)
        for run, (_, uuid) in enumerate(params, 1):
            for metric, curve in undisturbed.show(run)["curves"].items():
                sent = db.execute(
                    "SELECT step, value FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step", (uuid, metric)
                )
                assert [list(point) for point in sent] == curve, metric


def test_an_interrupted_training_goes_on_to_the_same_weights(program, undisturbed):
    child = program.start("run", program.script, "--headless", "--", *LONG)
    program.until(lambda: program.show(1)["step"] > 3)
    child.send_signal(signal.SIGINT)
    output = child.communicate(timeout=120)[0]
    assert child.returncode == 130, output
    assert "rftui open tiny" in output and "Traceback" not in output
    interrupted = program.show()
    assert interrupted["state"] == "interrupted" and program.nothing_left()
    assert {run["state"] for run in interrupted["runs"]} <= {"queued", "waiting"}
    assert 3 < interrupted["runs"][0]["step"] < 96
    program.call("open", "tiny", "--headless")
    for run in (1, 2):
        assert program.adapter(run) == undisturbed.adapter(run)
        assert program.show(run)["curves"] == undisturbed.show(run)["curves"]
    assert "nothing left to train" in program.call("open", "tiny", "--headless")


CREATE = """
def create_model(config):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    if config["peft_config"]["r"] == 8:
        raise ValueError("no rank 8 today")
    name = config["model_name"]
    return AutoModelForCausalLM.from_pretrained(name, dtype="float32"), AutoTokenizer.from_pretrained(name)
"""


def test_a_run_that_raises_fails_alone(program):
    program.edit("create_model = None", CREATE)
    printed = program.call("run", program.script, "--", 12, 4, code=1)  # plain lines: stdout is no terminal
    assert "no rank 8 today" in printed and "Traceback" not in printed and "\x1b" not in printed
    one, two = program.show()["runs"]
    assert (one["state"], one["step"], one["error"]) == ("done", 3, None)
    assert (two["state"], two["error"]) == ("failed", "ValueError: no rank 8 today")
    assert "Traceback" in (program.home / "tiny" / "runs" / "2" / "log.txt").read_text()
