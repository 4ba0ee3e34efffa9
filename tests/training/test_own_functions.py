"""A run's functions are its own: what they keep is nobody else's, and survives a stop."""

import json
import threading

import pytest
import torch
from datasets import Dataset, load_from_disk

from rftui import messages
from rftui.automl import RFGRPOConfig, RFLoraConfig, RFModelConfig
from rftui.training import data
from rftui.training.own_functions import OwnFunctions
from rftui.training.rows import Need
from tests.fidelity.cases import rows
from tests.training.engine import TINY, Engine, logged, of


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Counts:
    """A reward that is the number of its calls, counted in the object and in its class."""

    made = 0

    def __init__(self, lock=None):
        self.calls = 0

    def __call__(self, completions, **_):
        type(self).made += 1
        self.calls += 1
        assert self.made == self.calls
        return [float(self.calls)] * len(completions)


def closure():
    calls = []

    def counted(completions, **_):
        calls.append(1)
        return [float(len(calls))] * len(completions)

    return counted


class Locked(Counts):
    """Cannot be pickled once it was called."""

    def __call__(self, completions, **_):
        self.lock = threading.Lock()
        self.calls += 1
        return [float(self.calls)] * len(completions)


def config(reward, **args):
    given = {"per_device_train_batch_size": 8, "num_generations": 2, "max_completion_length": 4, "logging_steps": 1}
    return RFModelConfig(
        TINY,
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        training_args=RFGRPOConfig(**(given | {"num_train_epochs": 1} | args)),
        reward_funcs=reward,
    )


EVERY_STEP = [(step, float(step)) for step in range(1, 7)]


@pytest.mark.parametrize("make", [Counts, closure, lambda: Counts().__call__], ids=["object", "closure", "method"])
def test_each_run_counts_alone_and_goes_on_after_a_stop(tmp_path, make):
    """As plain TRL does: 1, 2, 3, ...; the evaluations at chunk ends are not counted."""
    reward = make()
    engine = Engine(tmp_path, [config(reward), config(reward, learning_rate=1e-3)], num_chunks=3)
    for number in (1, 2):
        engine.start(number)
    seen = []
    engine.turn(1)
    seen += engine.until(1, messages.TurnEnded)
    engine.turn(2)
    other = engine.until(2, messages.TurnEnded)
    engine.order(messages.Halt(1))
    seen += engine.until(1, messages.Halted)
    engine.start(1, resume=True)
    seen += engine.train(1)
    other += engine.train(2)
    assert logged(seen, "reward") == logged(other, "reward") == EVERY_STEP
    assert not of(seen + other, messages.Note)
    assert len(logged(seen, "eval_reward")) == 3


def test_what_cannot_be_kept_is_told_as_it_begins_anew(tmp_path):
    engine = Engine(tmp_path, config(Locked()), num_chunks=3, eval_rows=0)
    engine.start(1)
    engine.turn(1)
    engine.until(1, messages.TurnEnded)
    engine.order(messages.Halt(1))
    engine.until(1, messages.Halted)
    engine.start(1, resume=True)
    seen = engine.train(1)
    [note] = of(seen, messages.Note)
    assert "run 1: what <Locked> kept could not be saved" in note.text and "it begins anew at step 2" in note.text
    assert logged(seen, "reward")[0] == (3, 1.0)


def test_evaluations_that_cannot_have_copies_say_so(tmp_path):
    engine = Engine(tmp_path, config(Locked()), num_chunks=3)
    engine.start(1)
    [note] = of(engine.train(1), messages.Note)
    assert "evaluations call <Locked> too" in note.text


def test_metrics_functions_are_kept_too(tmp_path):
    best = []

    def metrics(pair):
        best.append(pair)
        return {"seen": len(best)}

    first = OwnFunctions({"compute_metrics": metrics})
    assert [first.metrics(1), first.metrics(2)] == [{"seen": 1}, {"seen": 2}]
    assert first.save(tmp_path) is None
    second = OwnFunctions({"compute_metrics": metrics})
    second.load(tmp_path)
    with second.copied(print):
        assert second.metrics(3) == {"seen": 3}, "what evaluations alone call goes on in them"
    assert second.metrics(4) == {"seen": 4} and len(best) == 2
    assert second.metrics.__qualname__ == "metrics"


def numbered():
    calls = []

    def number(row):
        calls.append(1)
        return {"text": str(len(calls))}

    return number


def test_formatting_functions_number_the_rows_of_each_run_from_the_first(tmp_path):
    """Not from a row more, with which it was tried, and not with rows out of a cache that it has not seen."""
    Dataset.from_list(rows()).save_to_disk(str(tmp_path))
    function, need = numbered(), Need("SFT", {"training_args": {}})
    for _ in range(2):
        own, dataset = data.copied(function), load_from_disk(str(tmp_path))
        train, evaluation = (
            data.formatted(part, own, need)[0]["text"] for part in (dataset, dataset.select(range(3)))
        )
        assert list(train) == [str(number) for number in range(1, 27)]
        assert list(evaluation) == ["27", "28", "29"]


def test_what_an_installed_module_keeps_is_not_each_runs_own_and_that_is_told():
    [notice] = OwnFunctions({"reward_funcs": [json.dumps, closure()]}).notices()
    assert notice.startswith("dumps is imported from json: what that module itself keeps is shared")
