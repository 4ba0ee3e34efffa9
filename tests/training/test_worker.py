"""A worker in this process, with real runs: what the scheduler sends it last, and a scheduler that is gone."""

import errno
import queue
import threading

import pytest
from datasets import Dataset

from rftui import messages, paths
from rftui.automl import RFLoraConfig, RFModelConfig, RFSFTConfig
from rftui.automl.grid import expand
from rftui.checkpoints import newest_checkpoint
from rftui.config.spec import Spec
from rftui.link import LinkLost
from rftui.runs import Run
from rftui.training import saving
from rftui.training.worker import Worker
from tests.fidelity.cases import rows
from tests.training.engine import TINY


class Link:
    """The scheduler's end of the link is this test."""

    def __init__(self):
        self.asked, self.said = queue.Queue(), queue.Queue()

    def tasks(self):
        asked = self.asked.get()
        if asked is None:
            self.asked.put(None)
            raise LinkLost
        return asked

    def report(self, message):
        self.said.put(message)

    def ask(self, *messages):
        self.asked.put(list(messages))

    def until(self, kind):
        """The first report of this kind."""
        while not isinstance(message := self.said.get(timeout=120), kind):
            assert not isinstance(message, messages.Failed), message.traceback
        return message


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A worker with a run that saves at each chunk end, and its link."""
    for name, value in (("RFTUI_THREADS", "1"), ("RFTUI_DEVICE", "cpu")):
        monkeypatch.setenv(name, value)
    experiment = paths.create(tmp_path, "e")
    args = RFSFTConfig(per_device_train_batch_size=4, max_length=48, logging_steps=1, save_strategy="chunk")
    peft = RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    run_configs = expand(RFModelConfig(TINY, peft_config=peft, training_args=args))
    Dataset.from_list(rows()).save_to_disk(str(experiment.data(1) / "train"))
    Spec(run_configs, None, num_chunks=4).save(experiment.spec(1))
    link = Link()
    working = Worker(experiment, link)
    thread = threading.Thread(target=working.work, daemon=True)
    thread.start()
    link.until(messages.Ready)
    link.ask(messages.Turn(Run(1, "a", config=run_configs[0].config)))
    link.until(messages.TurnEnded)
    yield experiment, link, thread
    link.asked.put(None)
    thread.join(60)


def ended(thread):
    thread.join(60)
    return not thread.is_alive()


def test_it_ends_with_a_checkpoint_when_it_is_told_to(worker):
    experiment, link, thread = worker
    link.ask(messages.Quit())
    halted = link.until(messages.Halted)
    assert ended(thread)
    assert str(newest_checkpoint(experiment.run(1).checkpoints)) == halted.path


def test_what_is_asked_together_with_the_end_is_carried_out(worker):
    experiment, link, thread = worker
    link.ask(messages.Quit(), messages.SnapshotWeights(1, [2]))
    assert link.until(messages.WeightsReady).clones == [2] and experiment.run(2).start.is_dir()
    assert ended(thread)


@pytest.mark.parametrize("order", [messages.Halt(1, save=False), messages.Retry(1)])
def test_a_run_that_cannot_be_saved_as_everything_ends_still_listens(worker, monkeypatch, order):
    """To what is said when there is room again, or when nobody will wait for it."""
    experiment, link, thread = worker
    full, commit = [True], saving.commit

    def guarded(*how):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        commit(*how)

    monkeypatch.setattr(saving, "commit", guarded)
    link.ask(messages.Turn(Run(1, "a")))
    link.until(messages.Unsaved)
    link.ask(messages.Quit())
    if isinstance(order, messages.Retry):
        full.clear()
    link.ask(order)
    halted = link.until(messages.Halted)
    assert bool(halted.path) == isinstance(order, messages.Retry) and ended(thread)


def test_it_ends_at_the_next_step_when_its_scheduler_is_gone(worker):
    experiment, link, thread = worker
    link.ask(messages.Turn(Run(1, "a")))
    link.until(messages.Stepped)
    link.asked.put(None)
    assert ended(thread)
