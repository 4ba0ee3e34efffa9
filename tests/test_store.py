"""The store: what is kept, how it is read while it is written, and what is never in it."""

import json
import math
import sqlite3

import pytest

from rftui import store as store_module
from rftui.automl.verdicts import End, Verdict
from rftui.curves import Curves
from rftui.errors import UserError
from rftui.messages import Clone, Reply, Stop
from rftui.runs import Run
from rftui.store import Store, Unwritten
from tests.counted import steps_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "experiment.db"


@pytest.fixture
def store(path):
    store = Store.create(path)
    yield store
    store.close()


def test_fits_and_runs_are_numbered_from_one_and_come_back_as_they_were(store, path):
    assert store.add_fit(num_chunks=4, chunk_size=None, seed=1, rows=9, eval_rows=0) == 1
    assert store.add_fit(num_chunks=None, chunk_size=3, seed=2, rows=9, eval_rows=2) == 2
    first = Run(0, "a", config={"training_args": {"learning_rate": 1e-4}}, metrics={"loss": math.nan})
    assert (store.add_run(first), store.add_run(Run(0, "b"))) == (1, 2)
    first.step = 7
    store.save_run(first)
    store.commit()
    with_reader = Store.read(path)
    assert [run.name for run in with_reader.runs()] == ["a", "b"]
    back = with_reader.run(1)
    assert (back.step, back.config) == (7, first.config) and math.isnan(back.metrics["loss"])
    assert with_reader.run(3) is None
    assert [(fit["id"], fit["chunk_size"], fit["eval_rows"]) for fit in with_reader.fits()] == [
        (1, None, 0),
        (2, 3, 2),
    ]


def test_a_reader_works_in_the_middle_of_a_write_and_cannot_write(store, path):
    store.add_points([(1, "loss", 1, 2.0)])
    store.commit()
    store.add_points([(1, "loss", 2, 1.0)])
    reader = Store.read(path)
    assert reader.curves() == {1: {"loss": [(1, 2.0)]}}
    store.commit()
    assert reader.curves() == {1: {"loss": [(1, 2.0), (2, 1.0)]}}
    with pytest.raises(Unwritten, match="readonly"):
        reader.set_meta("state", "x")


def test_a_store_that_its_writer_has_closed_can_be_read(path):
    Store.create(path).close()
    assert Store.read(path).runs() == []


def test_points_are_kept_once_and_nan_and_inf_survive(store):
    store.add_points([(1, "loss", 2, math.nan), (1, "loss", 1, math.inf), (2, "loss", 1, -math.inf)])
    store.add_points([(1, "loss", 1, 5.0)])
    curves = store.curves()
    assert curves[1]["loss"][0] == (1, math.inf) and math.isnan(curves[1]["loss"][1][1])
    assert curves[2]["loss"] == [(1, -math.inf)]
    assert store.last_values(2) == {"loss": -math.inf}


def test_what_is_rewound_can_be_written_again_under_new_numbers(store, path):
    store.add_points([(1, "loss", step, float(step)) for step in range(1, 6)] + [(2, "loss", 5, 0.0)])
    store.rewind(1, 3)
    store.add_points([(1, "loss", 4, 40.0)])
    store.commit()
    assert store.curves(1)[1]["loss"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
    assert store.curves(2) == {2: {"loss": [(5, 0.0)]}}
    assert sqlite3.connect(path).execute("SELECT seq FROM metrics WHERE run = 1 AND step = 4").fetchone() == (7,)


def test_all_curves_come_back_thinned_as_if_they_had_been_kept_in_memory(store):
    points = [
        (run, metric, step, math.sin(step)) for run in (1, 2) for metric in ("loss", "b") for step in range(3000)
    ]
    kept = Curves()
    for point in points:
        kept.add(*point)
    store.add_points(points)
    found = store.thinned()
    assert {run: set(curves) for run, curves in found.items()} == {1: {"loss", "b"}, 2: {"loss", "b"}}
    for run, metric, *_ in points[::3000]:
        assert found.points(run, metric) == kept.points(run, metric)


def test_only_what_is_missing_is_added_and_told(store):
    store.add_points([(1, "loss", 1, 1.0), (1, "loss", 3, math.nan)])
    again = [(1, "loss", 1, 9.0), (1, "loss", 2, 2.0), (1, "loss", 3, 9.0), (1, "loss", 4, 4.0), (1, "loss", 4, 9.0)]
    assert store.add_missing(again) == [(1, "loss", 2, 2.0), (1, "loss", 4, 4.0)]
    assert store.add_missing(again) == [] and store.counts(1) == {"loss": 4}


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.last_values(1),
        lambda store: store.end_chunk(1, 3, 40),
        lambda store: store.rewind(1, 38),
        lambda store: store.add_missing([(1, "loss", step, 0.0) for step in range(30, 50)]),
        lambda store: store.add_points([(1, name, 50, 0.0) for name in ("loss", "grad_norm", "entropy")]),
        lambda store: store.events_since(0),
        lambda store: store.accepted("c9"),
    ],
)
def test_a_step_costs_the_same_however_much_was_logged(tmp_path, ask):
    """Of other runs, and of the run itself before its last chunk end."""

    def made(name, runs, metrics):
        store = Store.create(tmp_path / name)
        for run in range(1, runs + 1):
            store.add_points([(run, metric, step, 1.0) for metric in metrics for step in range(1, 41)])
            store.end_chunk(run, 2, 35)
            store.settle(store.journal(Stop(run, id=f"c{run}")), Reply(f"c{run}", True, "stops"))
        return store

    names = ("loss", "grad_norm", "entropy")
    few, many = made("few", 2, names), made("many", 200, names)
    assert steps_of(many, ask) <= steps_of(few, ask) + 5


def test_a_long_run_ends_its_chunks_as_fast_as_a_short_one(tmp_path):
    def ending(length):
        store = Store.create(tmp_path / str(length))
        store.add_points([(1, name, step, 1.0) for name in ("loss", "lr") for step in range(1, length + 1)])
        store.end_chunk(1, 1, length - 10)

        def asked(store):
            store.last_values(1)
            store.end_chunk(1, 2, length)
            store.rewind(1, length - 5)

        return steps_of(store, asked)

    assert ending(20_000) <= ending(200) + 5


def test_the_journal_and_events_come_in_order_and_secrets_are_not_in_them(store, path):
    entry = store.journal(Clone(1, {"model_kwargs.token": "hf_abcdefgh", "peft_config.r": 4}, id="c1"))
    store.settle(entry, Reply("c1", True, "cloned", 4, runs=[4, 5]))
    for number in range(5):
        store.log(f"line {number}", run=1, level="notice")
    store.commit()
    command, ok, reply = sqlite3.connect(path).execute("SELECT command, ok, reply FROM journal").fetchone()
    assert "hf_abcdefgh" not in command and '"peft_config.r": 4' in command and ok == 1
    assert store.accepted("c1") == Reply(**json.loads(reply)) and json.loads(reply)["runs"] == [4, 5]
    assert store.accepted("c2") is None
    assert [event.text for event in store.events(2)] == ["line 3", "line 4"]


def test_turns_tell_where_they_began_and_ended(store):
    run = Run(3, "a", turns=1, chunk=2, step=10)
    store.end_turn(store.begin_turn(run, "cpu0"), 15)
    (turn,) = store.turns()
    assert {key: turn[key] for key in ("run", "turn", "chunk", "device", "step_from", "step_to")} == {
        "run": 3, "turn": 1, "chunk": 2, "device": "cpu0", "step_from": 10, "step_to": 15,
    }  # fmt: skip
    assert turn["started"] <= turn["ended"]


def test_a_newer_or_broken_or_missing_file_is_refused_in_one_line(path, tmp_path):
    store = Store.create(path)
    store.set_meta("version", "99")
    store.close()
    with pytest.raises(UserError, match="newer rftui") as fault:
        Store.read(path)
    assert len(fault.value.lines) == 1
    path.with_name("broken").write_text("not a database, but long enough to be taken for one" * 100)
    for name in ("broken", "missing"):
        with pytest.raises(UserError, match="cannot be read"):
            Store(path.with_name(name))
    assert not (tmp_path / "missing").exists()


def test_the_file_is_private(store, path):
    assert path.stat().st_mode & 0o777 == 0o600


def fill_up(store):
    """The disk takes no more pages of this database."""
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")


def test_what_a_full_disk_did_not_take_is_not_there_and_is_told_in_one_line(store, path):
    store.set_meta("state", "running")
    store.commit()
    fill_up(store)
    store.set_meta("state", "lost")
    with pytest.raises(Unwritten, match="cannot be written: database or disk is full, with .* MB free") as fault:
        store.log("x" * 100_000)
        store.commit()
    assert len(fault.value.lines) == 1 and fault.value.code == 1
    assert store.meta("state") == Store.read(path).meta("state") == "running"
    store._db.execute("PRAGMA max_page_count = 1000")
    store.log("x" * 100_000)
    store.commit()
    assert len(Store.read(path).events()) == 1, "it goes on where there is room again"


def test_a_store_that_cannot_be_written_can_be_closed(path):
    store = Store.create(path)
    fill_up(store)
    with pytest.raises(Unwritten):
        store.log("x" * 100_000)
    store.close()
    with pytest.raises(sqlite3.ProgrammingError):
        store.meta("state")


def test_a_commit_outlasts_a_loss_of_power(store):
    (level,) = store._db.execute("PRAGMA synchronous").fetchone()
    assert level == 2, "FULL"


def test_a_store_is_made_whole_or_not_at_all(path, monkeypatch):
    monkeypatch.setattr(store_module, "_SCHEMA", "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT); nonsense;")
    with pytest.raises(Unwritten, match="nonsense"):
        Store.create(path)
    assert not path.exists()
    monkeypatch.undo()
    Store.create(path).close()
    assert Store.read(path).runs() == [] and list(path.parent.glob("*.new*")) == []


def test_a_number_is_given_once_also_by_the_next_scheduler(store, path):
    assert [store.new_incarnation(), store.new_incarnation()] == [1, 2]
    assert Store(path).new_incarnation() == 3, "it is committed before anyone uses it"


def test_a_chunks_values_are_those_of_its_points_and_are_noted_once(store):
    store.add_points([(1, "loss", step, float(step)) for step in range(1, 5)] + [(2, "loss", 1, 9.0)])
    store.add_points([(1, "eval_loss", 2, 7.0), (1, "eval_loss", 4, 6.0)])
    store.end_chunk(1, 1, 2)
    store.end_chunk(1, 2, 4)
    store.add_points([(1, "loss", 5, 100.0)])
    store.end_chunk(1, 2, 5)
    assert store.chunk_ends() == {
        1: {1: End(2, {"loss": 1.5, "eval_loss": 7.0}), 2: End(4, {"loss": 3.5, "eval_loss": 6.0})}
    }
    store.add_points([(3, "loss", 1, math.nan)])
    store.end_chunk(3, 1, 1)
    assert math.isnan(store.chunk_ends()[3][1].values["loss"])


def test_chunk_ends_are_rewound_with_the_run_and_decisions_are_not(store):
    store.add_points([(1, "loss", step, float(step)) for step in range(1, 5)])
    store.end_chunk(1, 1, 2)
    store.end_chunk(1, 2, 4)
    store.decide("halving", Verdict(1, 2, "stop", "it is the worst"))
    store.rewind(1, 3)
    assert list(store.chunk_ends()[1]) == [1] and store.decisions("halving") == {(1, 2): "stop"}
    store.add_points([(1, "loss", 4, 40.0)])
    store.end_chunk(1, 2, 4)
    assert store.chunk_ends()[1][2].values == {"loss": 21.5}
    assert store.decisions("median") == {}
    with pytest.raises(Unwritten, match="UNIQUE"):
        store.decide("halving", Verdict(1, 2, "keep"))


@pytest.fixture
def old(path):
    """A store of version 1."""
    store = Store.create(path)
    store.add_run(Run(0, "a", step=3))
    store.set_meta("version", "1")
    store.close()
    for newer in ("TABLE chunk_ends", "TABLE decisions", "INDEX metrics_by_step", "INDEX journal_by_command"):
        sqlite3.connect(path).execute(f"DROP {newer}")
    return path


def test_an_older_file_is_brought_up_to_date_before_it_is_written(old):
    reader = Store.read(old)
    assert reader.run(1).step == 3 and reader.meta("version") == "1", "whoever only reads leaves it alone"
    store = Store(old)
    assert store.meta("version") == "3" and store.chunk_ends() == {} == store.decisions("halving")
    store.end_chunk(1, 1, 3)
    store.close()
    assert Store.read(old).chunk_ends() == {1: {1: End(3, {})}}
    assert Store(old).meta("version") == "3"


def test_a_file_of_version_2_gets_its_indexes(path):
    store = Store.create(path)
    store.set_meta("version", "2")
    store.close()
    for newer in ("metrics_by_step", "journal_by_command"):
        sqlite3.connect(path).execute(f"DROP INDEX {newer}")
    names = "SELECT name FROM sqlite_master WHERE type = 'index' AND name NOT LIKE 'sqlite%' ORDER BY name"
    Store(path).close()
    assert [name for (name,) in sqlite3.connect(path).execute(names)] == ["journal_by_command", "metrics_by_step"]


def test_an_older_file_stays_as_it_was_where_it_cannot_be_brought_up_to_date(old, monkeypatch):
    monkeypatch.setitem(store_module._ADDED, 2, store_module._ADDED[2] + "nonsense;")
    with pytest.raises(Unwritten, match="nonsense"):
        Store(old)
    monkeypatch.undo()
    assert Store.read(old).meta("version") == "1"
    assert Store(old).chunk_ends() == {}


def test_a_value_that_cannot_be_kept_costs_nothing_else_of_its_transaction(store):
    store.when_full = lambda trouble: pytest.fail("the disk is not full")
    store.set_meta("kept", "1")
    with pytest.raises(sqlite3.Error):
        store.set_meta("not kept", object())
    store.commit()
    assert store.meta("kept") == "1"
