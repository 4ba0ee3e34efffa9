"""A worker in this process, with real runs: what the scheduler sends it last, and a scheduler that is gone."""

import errno
import queue
import shutil
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

    def close(self):
        self.said.put("closed")

    def ask(self, *messages):
        self.asked.put(list(messages))

    def until(self, kind):
        """The first report of this kind."""
        while not isinstance(message := self.said.get(timeout=120), kind):
            assert not isinstance(message, messages.Failed), message.traceback
        return message


class Crew:
    """A worker in a thread of this process, whose runs save at each chunk end; `how` is what `Worker` takes."""

    def __init__(self, home, create=None, **how):
        self.experiment = paths.create(home, "e")
        args = RFSFTConfig(per_device_train_batch_size=4, max_length=48, logging_steps=1, save_strategy="chunk")
        peft = RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"])
        run_configs = expand(RFModelConfig(TINY, peft_config=peft, training_args=args))
        Dataset.from_list(rows()).save_to_disk(str(self.experiment.data(1) / "train"))
        Spec(run_configs, create, num_chunks=4).save(self.experiment.spec(1))
        self.link = Link()
        working = Worker(self.experiment, self.link, **how)
        self.thread = threading.Thread(target=working.work, daemon=True)
        self.thread.start()
        self.link.until(messages.Ready)

    def end(self):
        self.link.asked.put(None)
        self.thread.join(60)


@pytest.fixture
def crew(tmp_path, monkeypatch):
    """Makes a worker."""
    for name, value in (("RFTUI_THREADS", "1"), ("RFTUI_DEVICE", "cpu")):
        monkeypatch.setenv(name, value)
    made = []

    def make(*args, **how):
        made.append(Crew(tmp_path, *args, **how))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def worker(crew):
    """A worker with a run that had its first turn, and its link."""
    made = crew()
    made.link.ask(messages.Turn(Run(1, "a")))
    made.link.until(messages.TurnEnded)
    return made.experiment, made.link, made.thread


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


def test_what_goes_wrong_with_a_message_fails_the_run_concerned_and_no_other(crew):
    made = crew()
    made.experiment.run(1).path.write_text("a file where the run's folder should be")
    made.link.ask(messages.Turn(Run(1, "a")))
    failed = made.link.said.get(timeout=60)
    assert isinstance(failed, messages.Failed) and failed.run == 1 and failed.error.startswith("FileExistsError")
    assert "\n" not in failed.error
    made.link.ask(messages.Turn(Run(2, "b")))
    assert made.link.until(messages.TurnEnded).run == 2


def test_configs_that_cannot_be_checked_are_a_fault(crew):
    made = crew()
    shutil.rmtree(made.experiment.data(1))
    made.link.ask(messages.Check(1, [Run(1, "a")]))
    [(run, text)] = made.link.until(messages.Checked).faults
    assert run is None and text.startswith("the configs could not be checked: FileNotFoundError")


def dies(config):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_worker_whose_device_can_do_nothing_any_more_ends(crew):
    """With the lock held: no other run trains there and fails of it."""
    ended = queue.Queue()
    made = crew(dies, probe=lambda device: "CUDA error: an illegal memory access", end=ended.put)
    made.link.ask(messages.Turn(Run(1, "a")), messages.Turn(Run(2, "b")))
    failed = made.link.said.get(timeout=60)
    assert isinstance(failed, messages.Failed) and failed.cause == "device"
    assert made.link.said.get(timeout=60) == "closed" and ended.get(timeout=60) == 1
    assert made.link.said.empty()


def test_a_run_that_fails_on_a_sound_device_fails_alone(crew):
    made = crew(dies)
    made.link.ask(messages.Turn(Run(1, "a")))
    failed = made.link.said.get(timeout=60)
    assert failed.cause == "" and f"in dies ({__file__}, line" in failed.error
    assert failed.error.endswith(f"; see {made.experiment.run(1).log}") and made.thread.is_alive()
