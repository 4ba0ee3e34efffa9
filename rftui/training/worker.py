"""A worker: the process that trains on one device. Started by the scheduler as `python -m rftui.training.worker`."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rftui import messages
from rftui.errors import UserError
from rftui.link import LinkLost, WorkerLink
from rftui.paths import ExperimentDir
from rftui.training import lifeline

if TYPE_CHECKING:
    from rftui.training.run_thread import RunThread


def main() -> int:
    lifeline.begin()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    experiment = ExperimentDir(Path(os.environ["RFTUI_EXPERIMENT"]))
    try:
        link = WorkerLink(experiment, os.environ["RFTUI_WORKER"], int(os.environ["RFTUI_INCARNATION"]))
    except LinkLost as error:
        print(error, file=sys.stderr)
        return 1
    lifeline.end_with_scheduler(link.lost)
    Worker(experiment, link).work()
    link.close()
    return 0


class Worker:
    """Carries out the scheduler's messages until `Quit`; every run has a thread of its own.

    When a run fails, `probe` says why the device can do nothing any more, if that is so; then the process is `end`ed.
    """

    def __init__(
        self,
        experiment: ExperimentDir,
        link: WorkerLink,
        probe: Callable[[Any], str] | None = None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        import datasets
        import torch
        import transformers

        from rftui.training import failures, process_state
        from rftui.training.base_models import BaseModels
        from rftui.training.trainers import TrainerBuilder
        from rftui.training.turnstile import Turnstile

        # Every trainer collects garbage as it begins, and again as it ends: 0.3 s each time if that looks through the
        # half a million objects that the imports have made.
        gc.collect()
        gc.freeze()
        torch.set_num_threads(int(os.environ["RFTUI_THREADS"]))
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
        self._device = torch.device("cuda:0" if os.environ["RFTUI_DEVICE"] == "cuda" else "cpu")
        self._experiment = experiment
        self._link = link
        self._turnstile = Turnstile(process_state.capture, process_state.restore)
        self._builder = TrainerBuilder(experiment, BaseModels(self._device), self._device)
        self._threads: dict[int, RunThread] = {}
        self._gauge = threading.Event()
        self._probe = probe or failures.device_fault
        self._end = end

    def work(self) -> None:
        """Until `Quit`, or until the scheduler is gone: then the process ends after its present step."""
        self._link.report(messages.Ready(os.getpid()))
        threading.Thread(target=self._report_gauge, name="gauge", daemon=True).start()
        if last := self._obey():
            for run in self._threads:
                self._order(run, messages.Halt(run, save=last.save))
            # A run that cannot be saved still waits to be told what to do.
            threading.Thread(target=self._obey, name="last orders", daemon=True).start()
        for thread in self._threads.values():
            thread.join()
        self._gauge.set()

    def _obey(self) -> messages.Quit | None:
        """Carry out what the scheduler asks, until it says `Quit`; None where it is gone."""
        try:
            while True:
                asked = self._link.tasks()
                for message in asked:
                    self._guarded(message)
                if last := next((message for message in asked if isinstance(message, messages.Quit)), None):
                    return last
        except LinkLost:
            self._turnstile.close()
            return None

    def _guarded(self, message: Any) -> None:
        """Carry it out; what goes wrong is told of the run or the configs concerned, and costs no other run."""
        try:
            self._carry_out(message)
        except Exception as error:
            from rftui.training import failures

            traceback.print_exc()
            why = failures.line(error)
            match message:
                case messages.Turn():
                    log = self._experiment.run(message.run.id).log
                    failed = messages.Failed(message.run.id, failures.line(error, log), traceback.format_exc())
                    self._link.report(failed)
                case messages.SnapshotWeights(run, clones):
                    self._link.report(messages.WeightsReady(run, clones))  # those without a start/ fail
                case messages.Check(fit):
                    self._link.report(messages.Checked(fit, [(None, f"the configs could not be checked: {why}")], []))
                case messages.Describe():
                    self._link.report(messages.Note(f"the knobs could not be described: {why}", level="error"))
                case _:
                    raise

    def _broken(self, why: str) -> None:
        """The device can do nothing any more: end, so that no other run fails of it; the scheduler starts another
        worker."""
        print(f"the device {self._device} can do nothing any more: {why}", file=sys.stderr, flush=True)
        self._turnstile.close()
        self._link.close()
        self._end(1)

    def _carry_out(self, message: Any) -> None:
        match message:
            case messages.Describe(algos):
                from rftui.training.schema import describe

                self._link.report(messages.Schema(describe(algos)))
            case messages.Check():
                self._check(message)
            case messages.Turn():
                self._turn(message)
            case messages.Halt(run) | messages.SnapshotWeights(run) | messages.Retry(run):
                self._order(run, message)

    def _check(self, message: messages.Check) -> None:
        from rftui.training import data
        from rftui.training.schema import check

        try:
            train, evaluation = data.load(self._experiment, message.fit)
            spec = self._builder.spec(message.fit)
            faults, notices = check(spec, message.runs, train, evaluation, str(self._device))
        except UserError as fault:
            faults, notices = [(None, line) for line in fault.lines], []
        self._link.report(messages.Checked(message.fit, faults, notices))

    def _turn(self, message: messages.Turn) -> None:
        from rftui.training.run_thread import RunThread

        run = message.run
        thread = self._threads.get(run.id)
        if thread is None or thread.slot.left:
            directory = self._experiment.run(run.id)
            directory.path.mkdir(parents=True, exist_ok=True)
            thread = RunThread(
                run,
                self._turnstile,
                self._link.report,
                lambda: self._builder.build(run),
                directory,
                Path(message.resume) if message.resume else None,
                self._device,
                self._probe,
                self._broken,
            )
            self._threads[run.id] = thread
            thread.start()
        self._turnstile.train(thread.slot)

    def _order(self, run: int, order: messages.Halt | messages.SnapshotWeights | messages.Retry) -> None:
        thread = self._threads.get(run)
        if thread is None or not self._turnstile.order(thread.slot, order):
            if isinstance(order, messages.SnapshotWeights) and thread:
                thread.snapshot_last(order)

    def _report_gauge(self) -> None:
        import psutil

        process = psutil.Process()
        psutil.cpu_percent()
        while not self._gauge.wait(2.0):
            used, total = process.memory_info().rss, psutil.virtual_memory().total
            load: float | None = psutil.cpu_percent() / 100
            if self._device.type == "cuda":
                import torch

                try:
                    free, total = torch.cuda.mem_get_info(self._device)
                except RuntimeError:  # a device that can do nothing any more
                    continue
                used, load = total - free, _gpu_load(self._device)
            self._link.report(messages.Gauge(used, total, load))


def _gpu_load(device: Any) -> float | None:
    import torch

    try:
        return torch.cuda.utilization(device) / 100
    except (ModuleNotFoundError, RuntimeError):
        return None  # needs NVIDIA's own Python package


if __name__ == "__main__":
    sys.exit(main())
