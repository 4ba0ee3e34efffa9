"""`eject`: what it refuses, and what it says it wrote."""

import sys

import pytest
from datasets import Dataset, disable_progress_bars

from rftui import training
from rftui.automl import RFModelConfig, RFSFTConfig
from rftui.automl.grid import expand
from rftui.checkpoints import CHECKPOINT_MARKER
from rftui.config.spec import Spec
from rftui.runs import Run
from rftui.store import Store


def commit(folder):
    folder.mkdir(parents=True)
    (folder / CHECKPOINT_MARKER).write_text(
        '{"step": 3, "epoch": 0.75, "row": 6, "rows": 8, "evaluate": false, "threads": 1, "files": {}}'
    )


@pytest.fixture
def trained(make):
    """An experiment: run 1 is done, 2 a warm clone of it with a checkpoint, 3 has begun, 4 failed, 5 is deleted."""
    runs = [
        Run(0, "a", state="done", total_steps=3),
        Run(0, "b", state="stopped", parent=1, warm=True, start_step=3, start_row=6, total_steps=5),
        Run(0, "c", state="running", step=1),
        Run(0, "d", state="failed"),
        Run(0, "e", state="deleted"),
    ]
    experiment = make(*runs)
    run_configs = expand(RFModelConfig("model", training_args=RFSFTConfig(per_device_train_batch_size=2)))
    Spec(run_configs).save(experiment.spec(1))
    disable_progress_bars()  # they would count as what the command says
    Dataset.from_list([{"text": str(number)} for number in range(8)]).save_to_disk(str(experiment.data(1) / "train"))
    commit(experiment.run(1).final)
    commit(experiment.run(2).start)
    commit(experiment.run(2).checkpoints / "step-3")
    return experiment


def test_it_says_what_it_wrote_and_how_to_run_it(told, trained, tmp_path):
    code, out, err = told("eject", "exp", "a")
    assert (code, err) == (0, "Loading torch and TRL...\n") and out == (
        "wrote exp-run1.py and exp-run1_files/, run 1 (a) in plain TRL, which makes its final/ again: "
        "python exp-run1.py [OUT]\n"
    )
    assert (tmp_path / "exp-run1.py").is_file() and (tmp_path / "exp-run1_files" / "train").is_dir()
    code, out, _ = told("eject", "exp", "2", "-o", "the clone.py")
    assert code == 0 and "run 2 (b) after run 1 in plain TRL, which makes its checkpoint at step 3 again" in out
    assert out.endswith(": python 'the clone.py' [OUT]\n") and (tmp_path / "the clone_files").is_dir()
    assert "def run_2(out: Path, start: Path)" in (tmp_path / "the clone.py").read_text()


def test_it_says_what_it_waits_for_before_anything_is_loaded(told, trained, monkeypatch):
    monkeypatch.delattr(training, "eject_script", raising=False)
    monkeypatch.setitem(sys.modules, "rftui.training.eject_script", None)
    code, out, err = told("eject", "exp", "a")
    assert (code, out) == (1, "") and err.splitlines()[0] == "Loading torch and TRL..."


def test_nothing_is_overwritten(told, trained, tmp_path):
    for taken in ("exp-run1.py", "mine.py"):
        (tmp_path / taken).write_text("mine")
    (tmp_path / "other_files").mkdir()
    for arguments in ([], ["-o", "mine.py"], ["-o", "other.py"], ["-o", "."]):
        code, out, err = told("eject", "exp", "1", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1) and "exists already" in err and "-o FILE" in err
    assert (tmp_path / "mine.py").read_text() == "mine" and not list((tmp_path / "other_files").iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nothing", "1"], 1, "no experiment 'nothing'"),
        (["exp", "9"], 1, "no run '9'"),
        (
            ["exp", "3"],
            1,
            "run 3 c has no checkpoint yet, so there are no weights to reproduce; rftui stop exp 3",
        ),
        (["exp", "4"], 1, "run 4 d has no checkpoint yet, so there are no weights to reproduce\n"),
        (["exp", "5"], 1, "cannot eject run 5: deleted"),
        (["exp", "1", "-o", "missing/file.py"], 2, "there is no directory"),
        (["exp"], 2, "RUN"),
    ],
)
def test_what_cannot_be_ejected_is_told_in_one_line(told, trained, tmp_path, arguments, code, text):
    before = set(tmp_path.iterdir())
    done, out, err = told("eject", *arguments)
    assert (done, out, err.count("\n")) == (code, "", 1) and text in err
    assert set(tmp_path.iterdir()) == before


def test_a_script_of_an_experiment_whose_start_is_torn_is_refused(told, trained):
    (trained.run(2).start / CHECKPOINT_MARKER).unlink()
    code, _, err = told("eject", "exp", "2")
    assert (code, err.count("\n")) == (1, 2) and "not whole" in err.splitlines()[1]


def test_the_last_turn_tells_the_device(told, trained, monkeypatch):
    store = Store(trained.db)
    run = store.runs()[0]
    for device in ("cpu", "gpu0"):
        store.begin_turn(run, device)
    store.close()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = told("eject", "exp", "1")
    assert code == 1 and "trained on a GPU" in err
