"""`Experiment`: what it refuses, what it writes, and how it tells."""

import os
import subprocess
import sys
import types
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict, load_from_disk

import rftui.scheduler
from rftui import connect, paths
from rftui import fit as fit_module
from rftui.automl import (
    List,
    RFEarlyStopping,
    RFGridSearch,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
    RFSuccessiveHalving,
    rules,
)
from rftui.config.spec import Spec
from rftui.errors import UserError
from rftui.experiment import Experiment

ROWS = [{"text": f"row {n}"} for n in range(40)]
CONFIGS = RFGridSearch(
    RFModelConfig("m", peft_config=RFLoraConfig(r=8), training_args=RFSFTConfig(learning_rate=List([1e-3, 1e-4])))
)


class Store:
    """Stands in for the scheduler's store: keeps what it is told."""

    kept: dict = {}

    def __init__(self, path):
        self.path = path
        self.fits, self.rows, self.said, self.meta = self.kept.setdefault(path, ([], [], [], {}))

    create = read = classmethod(lambda cls, path: cls(path))

    def add_fit(self, **fit):
        self.fits.append(fit)
        return len(self.fits)

    def add_run(self, run):
        self.rows.append(run)
        run.id = len(self.rows)
        return run.id

    def set_meta(self, key, value):
        self.meta[key] = value

    def log(self, text, run=None, level="notice"):
        self.said.append(text)

    def runs(self):
        return self.rows

    def close(self): ...


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """The calls of a scheduler that does nothing; in an interactive session, where faults are raised."""
    calls: list = []

    def run(directory, **how):
        calls.append((directory, how))
        run.started(directory, Store(directory.db).rows)
        if run.fault:
            raise run.fault
        return run.code

    run.code, run.fault, run.started = 0, None, lambda made, rows: None
    loop, store = types.SimpleNamespace(run=run), types.SimpleNamespace(Store=Store)
    monkeypatch.setattr(rftui.scheduler, "loop", loop, raising=False)
    monkeypatch.setitem(sys.modules, "rftui.store", store)
    monkeypatch.setattr(paths, "_taken", {})
    monkeypatch.setattr(Store, "kept", {})
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setenv("RFTUI_HOME", str(tmp_path / "home"))
    calls.append(run)
    return calls


def store_of(experiment):
    return Store(experiment.path / "experiment.db")


def test_a_fit_is_written_and_handed_to_the_scheduler(trained, monkeypatch, tmp_path):
    monkeypatch.setenv("RFTUI_DEVICES", "cpu:2")
    monkeypatch.setenv("RFTUI_VIEWER", "1")
    monkeypatch.setenv("RFTUI_RENDEZVOUS", str(tmp_path / "there"))
    with Experiment("first") as experiment:
        runs = experiment.run_fit(CONFIGS, None, Dataset.from_list(ROWS), ROWS[:2], 2, 7)
    assert not [name for name in os.environ if name.startswith("RFTUI_")]
    assert [(run.id, run.name, run.config_index, run.fit) for run in runs] == [
        (1, "lr1e-3", 0, 1),
        (2, "lr1e-4", 1, 1),
    ]
    directory, how = trained[1]
    assert directory.path == experiment.path == tmp_path / "home" / "first"
    assert how == {"fit": 1, "rendezvous": tmp_path / "there", "devices": "cpu:2", "viewer": True}
    assert store_of(experiment).fits == [{"num_chunks": 2, "chunk_size": None, "seed": 7, "rows": 40, "eval_rows": 2}]
    assert load_from_disk(directory.data(1) / "train").to_list() == ROWS
    assert load_from_disk(directory.data(1) / "eval").to_list() == ROWS[:2]
    spec = Spec.load(directory.spec(1))
    assert (spec.num_chunks, spec.seed, spec.has_eval, len(spec.run_configs)) == (2, 7, True, 2)


def test_the_home_is_still_known_when_a_script_connects_after_it_made_its_experiment(trained, tmp_path):
    experiment = Experiment("first")
    experiment.run_fit(CONFIGS, train_dataset=ROWS)
    experiment.path.joinpath("experiment.db").touch()
    assert connect("first").experiment.path == experiment.path == tmp_path / "home" / "first"


def test_a_second_fit_is_in_the_same_experiment_and_a_second_experiment_is_not(trained):
    experiment = Experiment("same")
    assert [run.id for run in experiment.run_fit(CONFIGS, train_dataset=ROWS)] == [1, 2]
    assert [run.id for run in experiment.run_fit(CONFIGS, train_dataset=ROWS)] == [3, 4]
    other = Experiment("same")
    other.run_fit(CONFIGS, train_dataset=ROWS)
    assert (experiment.name, other.name) == ("same", "same-2")
    assert "rftui open same" in store_of(other).said[0]  # which the scheduler prints


def test_other_spellings_and_the_fit_of_few_rows(trained):
    experiment = Experiment(experiment_name="spelt", mode="fit")
    experiment.run_fit(
        param_config=CONFIGS, create_model_func=len, train_dataset=ROWS[:3], num_shards=4, chunk_size=2, seed=0
    )
    said = store_of(experiment).said
    assert any("num_chunks 4 wins over chunk_size 2" in line for line in said)
    assert any("3 rows make 3 chunks" in line for line in said)
    assert any("optimizer steps" in line for line in said)
    one = Experiment("one")
    one.run_fit(CONFIGS, train_dataset=ROWS[:1])
    assert any("1 rows make 1 chunk," in line for line in store_of(one).said)


@pytest.mark.parametrize(
    ("dataset", "remedy"),
    [
        (None, "needs a train_dataset"),
        ([], "no rows"),
        (Dataset.from_list([]), "no rows"),
        (
            DatasetDict(train=Dataset.from_list(ROWS), test=Dataset.from_list(ROWS)),
            r"pick one, as in dataset\['train'\]",
        ),
        (Dataset.from_list(ROWS).to_iterable_dataset(), "IterableDataset"),
        ("rows.jsonl", "must be a datasets.Dataset"),
        ([{"a": 1}, {"a": 2}, {"a": "x"}], r"cannot be made a Dataset: row 2 .* column 'a'"),
        ([{"a": "x"}, {"a": "\udc80"}], r"row 1 .* column 'a': 'utf-8' codec"),
        ([{"a": 1, 2: 3}], "a column called 2"),
        (Dataset.from_list(ROWS).with_transform(lambda batch: batch), r"train_dataset has a transform set.*\.map"),
        (Dataset.from_list([{"a": 1, "b": 2}]).with_format("torch", columns=["a"]), "only the columns a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_datasets_that_cannot_be_trained_on(trained, dataset, remedy):
    experiment = Experiment("refused")
    with pytest.raises(UserError, match=remedy):
        experiment.run_fit(CONFIGS, None, dataset)
    assert experiment.path is None and len(trained) == 1


def test_every_key_of_every_row_is_kept_whichever_row_comes_first(trained):
    rows = [
        {"text": "a", "m": [{"role": "user"}]},
        MappingProxyType({"answer": "b", "m": ({"role": "user", "content": "c"},), "text": "d"}),
    ]
    for given in (rows, rows[::-1], tuple(rows)):
        experiment = Experiment("unlike")
        experiment.run_fit(CONFIGS, None, given, rows)
        kept = load_from_disk(trained[-1][0].data(1) / "train").to_list()
        wanted = [
            {"text": "a", "answer": None, "m": [{"role": "user", "content": None}]},
            {"text": "d", "answer": "b", "m": [{"role": "user", "content": "c"}]},
        ]
        assert kept == (wanted[::-1] if given[0] is rows[1] else wanted)
        assert load_from_disk(trained[-1][0].data(1) / "eval").to_list() == wanted


def test_bad_rows_are_left_out_where_the_user_says_so(trained):
    rows = [{"text": "a"}, {"text": None}, {"text": "c"}]
    experiment = Experiment("whole")
    experiment.run_fit(CONFIGS, None, rows)
    assert store_of(experiment).fits[0]["rows"] == 3, "they are for the check to tell"
    experiment = Experiment("dropped")
    experiment.run_fit(CONFIGS, None, rows, rows[1:], drop_bad_rows=True)
    fit, said = store_of(experiment).fits[0], store_of(experiment).said
    assert (fit["rows"], fit["eval_rows"]) == (2, 1)
    assert load_from_disk(trained[-1][0].data(1) / "train").to_list() == [rows[0], rows[2]]
    assert any(
        line.startswith("1 of the 3 rows of train_dataset are left out") and "(rows 1," in line for line in said
    )
    assert any(line.startswith("1 of the 2 rows of eval_dataset are left out") for line in said)
    with pytest.raises(UserError, match="no row that can be trained on"):
        Experiment("none").run_fit(CONFIGS, None, [{"text": None}], drop_bad_rows=True)


def test_a_format_that_only_changes_the_container_is_kept(trained):
    Experiment("format").run_fit(CONFIGS, None, Dataset.from_list(ROWS).with_format("numpy"))
    kept = load_from_disk(trained[-1][0].data(1) / "train")
    assert kept.format["type"] == "numpy" and kept.with_format(None).to_list() == ROWS


def test_numbers_of_a_fit_as_users_hold_them(trained):
    experiment = Experiment("numbers")
    experiment.run_fit(CONFIGS, None, ROWS, None, np.int64(2), torch.tensor(7), chunk_size="20")
    fit = store_of(experiment).fits[0]
    assert (fit["num_chunks"], fit["seed"], fit["chunk_size"]) == (2, 7, 20)
    assert all(type(fit[name]) is int for name in ("num_chunks", "seed", "chunk_size"))
    assert "chunk_size is text, '20': taken as the number 20" in store_of(experiment).said


def test_the_disk_is_asked_for_the_rows_that_are_written(trained, monkeypatch):
    whole = Dataset.from_dict({"text": ["x" * 1000] * 2000})
    free = fit_module._TOO_LITTLE + 1_000_000
    monkeypatch.setattr(fit_module.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    Experiment("few").run_fit(CONFIGS, None, whole.select(range(0, 2000, 20)))
    with pytest.raises(UserError, match="MB are free"):
        Experiment("all").run_fit(CONFIGS, None, whole)


def test_a_home_whose_name_is_not_utf8_is_refused_before_anything_starts(trained, monkeypatch, tmp_path):
    monkeypatch.setenv("RFTUI_HOME", str(tmp_path / os.fsdecode(b"h\xe9")))
    with pytest.raises(UserError, match=r"not UTF-8.*--home") as fault:
        Experiment("f").run_fit(CONFIGS, None, ROWS)
    fault.value.lines[0].encode()
    assert len(trained) == 1 and not list(tmp_path.iterdir())


def test_all_faults_come_together(trained):
    lock = __import__("threading").Lock()
    with pytest.raises(UserError) as fault:
        Experiment("f").run_fit(CONFIGS, ROWS, [], num_chunks=0, seed=-1, num_chunk=3, chunk_size=True)
    told = str(fault.value)
    assert len(fault.value.lines) == 6
    assert "did you mean 'num_chunks'" in told and "create_model_fn is list" in told and "no rows" in told
    with pytest.raises(UserError, match="'lock'"):
        Experiment("f").run_fit(CONFIGS, lambda config: lock, ROWS)


def test_rules_are_checked_with_the_rest_and_kept_with_the_experiment(trained):
    with pytest.raises(UserError) as fault:
        Experiment("f").run_fit(CONFIGS, None, [], rules=[RFEarlyStopping(0), "halving"])
    assert [line.split(";")[0] for line in fault.value.lines] == [
        "RFEarlyStopping: patience must be a whole number, 1 or more, not 0",
        "rules holds 'halving'",
        "train_dataset has no rows",
    ]
    experiment = Experiment("f")
    experiment.run_fit(CONFIGS, None, ROWS, rules=RFSuccessiveHalving(3))
    store = store_of(experiment)
    assert "Rule halving is on: after chunk 1, 3, 9, ... the best 1 in 3 go on, at first half" in store.said
    kept = rules.read(store.meta["rules"])
    assert kept == rules.switches(RFSuccessiveHalving(3))[0]
    for run in store.rows:
        run.chunks = 4
    experiment.run_fit(CONFIGS, None, ROWS, rules=[RFEarlyStopping()])
    kept = rules.read(store_of(experiment).meta["rules"])
    assert {name: switch.on for name, switch in kept.items()} == {"halving": False, "median": False, "early": True}
    assert kept["early"].after == {1: 4, 2: 4}, "what another fit left is not its business"


def test_nothing_to_train_another_mode_and_an_ended_experiment(trained):
    with pytest.raises(UserError, match="at least one RFModelConfig"):
        Experiment("f").run_fit(train_dataset=ROWS)
    with pytest.raises(UserError, match="mode"):
        Experiment("f", mode="evals")
    ended = Experiment("f")
    ended.end()
    with pytest.raises(UserError, match="ended"):
        ended.run_fit(CONFIGS, None, ROWS)


def test_an_interrupted_training_says_how_it_goes_on(trained):
    trained[0].code = 130
    with pytest.raises(UserError, match="rftui open") as fault:
        Experiment("f").run_fit(CONFIGS, None, ROWS)
    assert fault.value.code == 130


def test_faults_leave_no_experiment_so_that_the_next_try_has_its_name(trained, tmp_path):
    trained[0].fault = UserError("run 1 a: no such module", "run 2 b: no such module")
    experiment = Experiment("f")
    with pytest.raises(UserError) as fault:
        experiment.run_fit(CONFIGS, None, ROWS)
    assert fault.value.lines == trained[0].fault.lines
    assert experiment.path is None and list((tmp_path / "home").iterdir()) == []
    trained[0].fault = None
    experiment.run_fit(CONFIGS, None, ROWS)
    assert experiment.name == "f"


def test_no_experiment_that_has_trained_is_removed_whatever_the_exit_code(trained):
    trained[0].fault = UserError("the database was written by a newer rftui")
    for number, started in enumerate((lambda made, rows: (made.path / "runs" / "1").mkdir(), _given_a_turn)):
        experiment = Experiment(f"f{number}")
        trained[0].started = started
        with pytest.raises(UserError):
            experiment.run_fit(CONFIGS, None, ROWS)
        assert experiment.path and experiment.path.is_dir()


def _given_a_turn(made, rows):
    made.db.touch()
    rows[0].turns = 1


def test_while_a_fit_is_written_the_experiment_is_seen_to_be_loading(trained, monkeypatch):
    seen = []
    monkeypatch.setattr(fit_module.Fit, "write", lambda fit, directory, store: seen.append(directory.alive()) or 1)
    Experiment("f").run_fit(CONFIGS, None, ROWS)
    assert seen == [True]


def test_faults_of_a_later_fit_leave_what_was_trained_before(trained):
    experiment = Experiment("f")
    experiment.run_fit(CONFIGS, None, ROWS)
    trained[0].fault = UserError("run 3 a: no such module")
    with pytest.raises(UserError):
        experiment.run_fit(CONFIGS, None, ROWS)
    assert experiment.path and experiment.path.is_dir()


def test_a_scheduler_that_cannot_go_on_leaves_the_experiment(trained):
    trained[0].fault = UserError("worker cpu could not start", code=1)
    experiment = Experiment("f")
    with pytest.raises(UserError):
        experiment.run_fit(CONFIGS, None, ROWS)
    assert experiment.path and experiment.path.is_dir()


def test_a_failed_run_does_not_end_the_script(trained):
    trained[0].code = 1
    assert len(Experiment("f").run_fit(CONFIGS, None, ROWS)) == 2


SCRIPT = """
from rftui import Experiment
from rftui.automl import RFModelConfig
Experiment("x", mode={mode!r}).run_fit(RFModelConfig("m"), None, [])
"""


def script(tmp_path, mode, **environment):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(mode=mode))
    return subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(("mode", "line"), [("evals", "mode 'evals'"), ("fit", "train_dataset has no rows")])
def test_a_plain_script_ends_with_a_line_and_a_code(tmp_path, mode, line):
    done = script(tmp_path, mode)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rftui: ") and line in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_a_worker_that_imports_the_script_starts_nothing(tmp_path):
    done = script(tmp_path, "fit", RFTUI_WORKER="cpu:0")
    assert done.returncode == 1 and '__name__ == "__main__"' in done.stderr


@pytest.mark.parametrize(("free", "outcome"), [(2**20, "refused"), (2**30, "told"), (2**40, "fine")])
def test_the_disk_is_looked_at_before_a_fit(trained, monkeypatch, free, outcome):
    usage = types.SimpleNamespace(free=free)
    monkeypatch.setattr(fit_module.shutil, "disk_usage", lambda path: usage)
    experiment = Experiment("f")
    if outcome == "refused":
        with pytest.raises(UserError, match="only 1.0 MB are free .* --home DIR"):
            experiment.run_fit(CONFIGS, None, ROWS)
        assert experiment.path is None and len(trained) == 1
        return
    experiment.run_fit(CONFIGS, None, ROWS)
    assert any("only 1.1 GB are free" in line for line in store_of(experiment).said) == (outcome == "told")
