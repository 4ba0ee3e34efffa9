"""Which process is killed when: drawn from a seed, so that a number reproduces it."""

import random
from dataclasses import dataclass

from tests.faults.experiment import RUNS, STEPS

VICTIMS = ("scheduler", "worker", "loader", "front", "tracker", "all")

_STARTING = ("scheduler", "worker", "front", "all")
"""Those that are there before the first step."""

KILLS_AT_ONCE = 8
"""Kills of one experiment."""


@dataclass(frozen=True)
class Moment:
    """`kind` says what is waited for before the `delay` (seconds): "step", that the steps of all runs in the store
    together are `count`; "start", that a scheduler serves which was started after the last kill; "save", that a
    checkpoint is being written; "done", that `count` runs are done."""

    kind: str
    count: int = 0
    delay: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}{f' {self.count}' if self.count else ''} + {self.delay:.2f} s"


@dataclass(frozen=True)
class Kill:
    """`draw` (0..1) picks one of several processes of the kind."""

    victim: str
    moment: Moment
    draw: float

    def __str__(self) -> str:
        return f"{self.victim} at {self.moment}"


@dataclass
class Plan:
    """What happens in one experiment. `viewers`: whether the n-th front is a viewer; `pauses`: seconds before it is
    started; `stop_at`: the steps at which the run that is stopped on the way is."""

    kills: list[Kill]
    viewers: list[bool]
    pauses: list[float]
    stop_at: int


def plan(seed: int, number: int) -> Plan:
    """The plan of the campaign's experiment `number`; every kind of victim is in it."""
    draw = random.Random(f"{seed}/{number}")
    victims = [*VICTIMS, *draw.sample(VICTIMS, KILLS_AT_ONCE - len(VICTIMS))]
    draw.shuffle(victims)
    steps = sorted(draw.sample(range(1, STEPS), len(victims)))
    kills = []
    for index, (victim, step) in enumerate(zip(victims, steps, strict=True)):
        kind = draw.choice(["step", "step", "step", "save"])
        if victim in _STARTING and (index == 0 or victims[index - 1] in ("scheduler", "all")):
            kind = draw.choice(["step", "start"])
        if index == len(victims) - 1:
            kind = draw.choice(["step", "done"])
        delay = draw.choice([0.0, draw.expovariate(5)])
        moment = Moment(kind, step, delay)
        if kind == "start":
            moment = Moment(kind, 0, draw.uniform(0, 6))
        elif kind == "save":
            moment = Moment(kind, 0, draw.uniform(0, 0.05))
        elif kind == "done":
            # Killed together at the very end, nobody is left to send the rest to MLflow before it is opened again.
            moment = Moment(kind, draw.randint(1, 2 if victim == "all" else RUNS + 1), draw.uniform(0, 1))
        kills.append(Kill(victim, moment, draw.random()))
    many = range(4 * len(victims))
    return Plan(
        kills,
        [draw.random() < 0.5 for _ in many],
        [draw.choice([0.0, draw.uniform(0, 2)]) for _ in many],
        draw.randint(1, STEPS),
    )
