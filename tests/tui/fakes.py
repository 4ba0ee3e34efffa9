"""A scheduler that is not there: what a viewer is given is what the test puts in, what it sends is kept."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import asdict

from rftui.automl import rules
from rftui.automl.suggest import suggestion
from rftui.curves import Curves, Thinned
from rftui.link import LinkLost
from rftui.messages import Command, Device, Event, ExperimentInfo, Field, Reply, Rule, Snapshot, Update
from rftui.runs import Run

NOW = 1_790_000_000.0

FIELDS = [
    Field("training_args.learning_rate", "float", 2e-5, help="The initial learning rate for AdamW."),
    Field("training_args.num_train_epochs", "float", 3.0, help="Total number of training epochs."),
    Field("training_args.per_device_train_batch_size", "int", 8, help="The batch size per device."),
    Field("training_args.gradient_accumulation_steps", "int", 1, help="Batches that make one optimizer step."),
    Field("training_args.max_steps", "int", -1, help="Optimizer steps; -1 leaves it to the epochs."),
    Field("training_args.warmup_steps", "float", 0, help="Steps of linear warm-up; below 1 a share of all steps."),
    Field("training_args.lr_scheduler_type", "choice", "linear", ["linear", "cosine", "constant", "polynomial"]),
    Field("training_args.seed", "int", 42),
    Field("training_args.bf16", "bool", False),
    Field("peft_config.r", "int", 8, help="Lora attention dimension (the rank)."),
    Field("peft_config.lora_alpha", "int", 8, help="Lora alpha."),
    Field("peft_config.lora_dropout", "float", 0.0, help="Lora dropout."),
    Field("peft_config.target_modules", "list", None, optional=True, help="Modules that get an adapter."),
    Field("training_args.weight_decay", "float", 0.0, help="Weight decay coefficient applied by the optimizer."),
    Field("training_args.adam_beta1", "float", 0.9, help="The exponential decay rate for the first moment estimates."),
    Field("training_args.adam_beta2", "float", 0.999, help="The exponential decay rate of the second moments."),
    Field("training_args.optim", "choice", "adamw", ["adamw", "sgd", "adafactor"], help="The optimizer to use."),
    Field("training_args.lr_scheduler_kwargs", "text", None, optional=True, help="Additional scheduler parameters."),
    Field("model_name", "text", help="A directory, or a name on the Hugging Face hub."),
]


def some_rules(**on: bool) -> list[Rule]:
    """Every rule there is, as its defaults are."""
    return [Rule(name, on.get(name, False), kind().about, asdict(kind())) for name, kind in rules.RULES.items()]


def config(lr: float = 2e-4, r: int = 16, **more: object) -> dict[str, object]:
    """A run's configuration as the scheduler sends it."""
    return {
        "model_name": "tinychat",
        "training_args": {"learning_rate": lr, "num_train_epochs": 4.0, "per_device_train_batch_size": 8, **more},
        "peft_config": {"r": r, "lora_alpha": 2 * r, "target_modules": ["q_proj", "v_proj"]},
    }


def made(id: int, state: str = "running", *, lr: float = 2e-4, r: int = 16, step: int = 100, **more: object) -> Run:
    """A run some way into its training."""
    run = Run(id, f"sft-lr{lr:g}-r{r}", state=state, chunk=step // 25, chunks=16, step=step, total_steps=400)
    run.epoch = step / 100
    run.grid = {"rows": 800, "per_epoch": 4, "batch": 8, "steps": 400} if step else {}
    run.config = config(lr, r)
    run.knobs = {"training_args.learning_rate": lr, "peft_config.r": r}
    run.metrics = {"loss": 2.0 - step / 250 + id / 10, "eval_loss": 2.1 - step / 250 + id / 10} if step else {}
    run.device = "cpu" if state == "running" else None
    for name, value in more.items():
        setattr(run, name, value)
    return run


def curve(run: Run, every: int = 5) -> list[tuple[int, float]]:
    """A falling loss up to where the run is."""
    return [(step, 1.0 + run.id / 10 + 1.5 / (1 + step / 40)) for step in range(every, run.step + 1, every)]


def some_runs() -> list[Run]:
    """One run in each state that a user meets."""
    return [
        made(1, "running"),
        made(2, "waiting", lr=1e-4),
        made(3, "stopped", lr=1e-3, r=64, step=75),
        made(4, "done", lr=5e-5, r=8, step=400),
        made(5, "failed", lr=1e-2, step=33, error="the loss is nan at step 33"),
        made(6, "queued", lr=3e-4, step=0),
        made(7, "waiting", lr=4e-4, step=50, parent=1, warm=True, start_step=60, name="sft-lr4e-4 (warm)"),
    ]


def thinned(curves: dict[int, dict[str, list[tuple[int, float]]]]) -> Curves:
    """Curves as the scheduler sends them."""
    return Curves(
        {run: {metric: Thinned(points) for metric, points in of_run.items()} for run, of_run in curves.items()}
    )


def snapshot(runs: list[Run] | None = None, *, state: str = "running", **more: object) -> Snapshot:
    runs = some_runs() if runs is None else runs
    curves = {run.id: {"loss": curve(run), "eval_loss": curve(run, 25)} for run in runs if run.step}
    events = [
        Event(1, NOW - 60, "run 3 sft-lr0.001-r64 stopped by key", 3),
        Event(2, NOW - 30, "run 5 failed: the loss is nan at step 33", 5, "error"),
        Event(3, NOW, "run 1 ended chunk 4/16", 1),
    ]
    devices = [Device("cpu", "ready", 4121, 1, int(1.9e9), int(16e9), 0.62)]
    info = ExperimentInfo("tinychat-sft", "/nowhere/tinychat-sft", state, pid=4120, eta=2460.0, rows=800)
    info.steps_per_second = 3.4
    info.rules = some_rules(halving=True)
    whole = Snapshot(10, info, runs, curves, events, devices, {"SFT": FIELDS})
    for name, value in more.items():
        setattr(whole, name, value)
    for run in runs:  # as the scheduler does
        of_run = whole.curves.get(run.id, {})
        run.suggestion = suggestion(run, lambda metric, of_run=of_run: of_run.get(metric, []))  # type: ignore[misc]
    whole.curves = thinned(whole.curves)
    return whole


class FakeViewer:
    """`give` is what the scheduler sends next; `sent` is what was pressed; `lose` ends the link."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.closed = False
        self.refreshed = 0
        self.on_refresh: Callable[[], object] = lambda: None
        self.answered = False
        self.coming: queue.Queue[object] = queue.Queue()
        self.lost = False
        self._given = self._taken = self._handled = 0

    @property
    def drained(self) -> bool:
        """Whether the app has got all that was given: it came back for more."""
        return self._handled == self._given

    def give(self, *messages: Snapshot | Update | Reply) -> None:
        self._given += 1
        self.coming.put(list(messages))

    def lose(self) -> None:
        self.lost = True
        self.coming.put(None)

    def reply(self, ok: bool, text: str) -> None:
        """Answer the command that was sent last."""
        self.give(Reply(self.sent[-1].id, ok, text))

    def poll(self, timeout: float) -> list[object]:
        self._handled = self._taken
        try:
            batch = self.coming.get(timeout=timeout)
        except queue.Empty:
            if not self.lost:
                return []
            batch = None
        if batch is None:
            raise LinkLost("the scheduler has ended")
        self._taken += 1
        self.answered |= any(isinstance(message, Snapshot) for message in batch)  # type: ignore[attr-defined]
        return batch  # type: ignore[return-value]

    def send(self, command: Command) -> None:
        if self.lost:
            raise LinkLost("the scheduler has ended")
        self.sent.append(command)

    def refresh(self) -> None:
        self.refreshed += 1
        self.on_refresh()

    def close(self) -> None:
        self.closed = True
        self.coming.put([])  # whoever still waits in `poll` goes on


class FakeLaunch:
    """A script that comes up when its test says so: `viewer` is set, or `exit_status`."""

    def __init__(self, viewer: FakeViewer | None = None, title: str = "train.py") -> None:
        self.viewer = viewer
        self.title = title
        self.log = None
        self.lines: list[str] = []
        self.exit_status: int | None = None
        self.started = True
        self.ended = False

    def end(self) -> None:
        self.ended = True

    def poll(self, *, brief: bool = False) -> FakeViewer | None:
        return self.viewer

    def tail(self, lines: int) -> list[str]:
        return self.lines[-lines:]
