"""The scheduler's fake workers, slow enough for commands to come in between, and ended by what the program raises."""

import queue
import threading
import time
import traceback

import fake_worker
from fake_worker import FakeWorker

from rftui.link import WorkerLink


class PacedWorker(FakeWorker):
    """Trains slowly enough for commands to come in between; an exception of the program ends it, as a process."""

    def __init__(self, world, experiment, address, ended):
        threading.Thread.__init__(self, daemon=True)
        self.world, self.experiment, self.ended = world, experiment, ended
        self.tasks, self.killed = queue.SimpleQueue(), threading.Event()
        self.steps, self.training, self.turn_began = {}, None, 0
        self._address = address
        self._log = experiment.logs / f"worker-{address[1]}.txt"
        self._log.touch()

    def run(self):
        try:
            self.link = WorkerLink(*self._address)
            threading.Thread(target=self.read, daemon=True).start()
            super().run()
        except Exception as error:
            self._write(error)
            self.ended(1)

    def work(self):
        try:
            super().work()
        except Exception as error:
            self._write(error)
            raise fake_worker.Died from error

    def read(self):
        try:
            super().read()
        except Exception as error:
            self._write(error)
            self.tasks.put(None)

    def _write(self, error):
        """To its log, as an exception that ends a process."""
        with self._log.open("a") as log:
            log.write(f"{traceback.format_exception_only(error)[-1]}\n")

    def step(self, run):
        time.sleep(0.015)
        super().step(run)
