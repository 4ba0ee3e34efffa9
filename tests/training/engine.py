"""Runs of one worker in this process: what the scheduler would send goes in, what the worker reports comes out."""

import queue

import torch
from datasets import Dataset, disable_progress_bars

from rftui import messages, paths
from rftui.automl.grid import expand
from rftui.checkpoints import newest_checkpoint
from rftui.config.spec import Spec
from rftui.runs import Run
from rftui.training import process_state
from rftui.training.base_models import BaseModels
from rftui.training.run_thread import RunThread
from rftui.training.trainers import TrainerBuilder
from rftui.training.turnstile import Turnstile
from tests.fidelity.cases import TINYCHAT, rows

TINY = str(TINYCHAT)


class Engine:
    """Trains the configs of `group` on the rows of tests/fidelity; every run has reports of its own."""

    def __init__(self, home, group, create=None, num_chunks=4, eval_rows=6, setup=None):
        disable_progress_bars()
        self.experiment = paths.create(home, "engine")
        self.run_configs = expand(group)
        train = Dataset.from_list(rows())
        train.save_to_disk(str(self.experiment.data(1) / "train"))
        if eval_rows:
            train.select(range(eval_rows)).save_to_disk(str(self.experiment.data(1) / "eval"))
        Spec(self.run_configs, create, num_chunks=num_chunks, setup_fn=setup).save(self.experiment.spec(1))
        self._turnstile = Turnstile(process_state.capture, process_state.restore)
        self.builder = TrainerBuilder(self.experiment, BaseModels(torch.device("cpu")), torch.device("cpu"))
        self._reports, self.threads = {}, {}

    def start(self, number, resume=None, **fields):
        """Build the run, from its newest checkpoint if `resume`; it is a clone where `fields` say so."""
        run_config = self.run_configs[fields.setdefault("config_index", number - 1)]
        run = Run(number, str(number), run_config.algo, config=run_config.config, **fields)
        directory = self.experiment.run(number)
        directory.path.mkdir(parents=True, exist_ok=True)
        self._reports[number] = queue.Queue()
        checkpoint = newest_checkpoint(directory.checkpoints) if resume else None
        self.threads[number] = RunThread(
            run,
            self._turnstile,
            self._reports[number].put,
            lambda: self.build(run),
            directory,
            checkpoint,
            torch.device("cpu"),
        )
        self.threads[number].start()
        return run

    def build(self, run):
        return self.builder.build(run)

    def make_models_by(self, create):
        """This very object makes the models of all runs; what they load would be copies of it."""
        load = self.builder.spec

        def spec(fit):
            loaded = load(fit)
            loaded.create_model_fn = create
            return loaded

        self.builder.spec = spec

    def turn(self, number):
        self._turnstile.train(self.threads[number].slot)

    def order(self, order):
        return self._turnstile.order(self.threads[order.run].slot, order)

    def until(self, number, *kinds, holds=lambda message: True):
        """The run's reports up to the first of one of these kinds."""
        seen = []
        while not (seen and isinstance(seen[-1], kinds) and holds(seen[-1])):
            seen.append(self._reports[number].get(timeout=60))
            if isinstance(seen[-1], messages.Failed) and messages.Failed not in kinds:
                raise AssertionError(seen[-1].traceback)
        return seen

    def train(self, number):
        """Give the run turns until it ends; all its reports."""
        seen = []
        while not (seen and isinstance(seen[-1], (messages.Finished, messages.Failed))):
            self.turn(number)
            seen += self.until(number, messages.TurnEnded, messages.Finished, messages.Failed)
        return seen


def logged(seen, metric):
    return [
        (message.step, message.values[metric]) for message in of(seen, messages.Logged) if metric in message.values
    ]


def of(seen, kind):
    return [message for message in seen if isinstance(message, kind)]
