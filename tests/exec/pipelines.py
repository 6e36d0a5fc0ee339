"""Draw random pipelines for the virtual cluster: demands, costs and losses of their tasks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from dml.exec.memory.memory_shares import PARTITIONS_PER_WORKER
from dml.exec.scheduler.policy import Demand, Fault, Seq, StreamingPolicy
from dml.verify.simulate.virtual_cluster import ClusterTrace, TaskTruth, VirtualCluster
from tests.exec.schedule_bound import Bound, lower_bound

PART = 10**8  # bytes of the largest partition
MOST_SLICES = 1_000  # of a pipeline: more only take longer


@dataclass(frozen=True, slots=True)
class Kind:
    """What a stage is like: its tasks differ around it."""

    seconds: float
    spread: float  # sigma of a lognormal factor on the seconds of a slice
    least_size: float  # of the largest partition
    slices: tuple[int, ...]  # of a task: one of them
    parked_bytes: int


@dataclass(frozen=True, slots=True)
class Losing(StreamingPolicy):
    """The usual policy where workers die: which slices are lost depends on their place alone."""

    seed: int = 0
    chance: float = 0.0
    lost_retries: int = 8

    def fault(self, seq: Seq, k: int, failures: int) -> Fault:
        """A loss, at most three times."""
        if not self.chance or failures >= 3:
            return ""
        drawn = random.Random(repr((self.seed, seq, k, failures))).random()
        return "lose" if drawn < self.chance else ""

    def losses(self, seq: Seq, k: int) -> int:
        """How often a slice is lost before it comes back."""
        times = 0
        while self.fault(seq, k, times):
            times += 1
        return times


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A chain of stages that do what ``seed`` says, on slots and within a limit."""

    seed: int
    demands: tuple[Demand, ...]
    kinds: tuple[Kind, ...]
    slots: dict[str, float]
    limit_bytes: int
    units: int
    ordered: bool
    consume_s: float
    policy: Losing
    _known: dict[Seq, TaskTruth] = field(default_factory=dict, repr=False)

    def truth(self, seq: Seq) -> TaskTruth:
        """What the task at ``seq`` does, whenever it is asked."""
        if seq not in self._known:
            self._known[seq] = self._drawn(seq)
        return self._known[seq]

    def _drawn(self, seq: Seq) -> TaskTruth:
        draw, kind = random.Random(repr((self.seed, seq))), self.kinds[len(seq) - 1]
        count = draw.choice(kind.slices)
        parts = []
        for _ in range(max(1, count)):
            seconds = kind.seconds * draw.lognormvariate(-(kind.spread**2) / 2, kind.spread)
            parts.append((seconds, int(PART * draw.uniform(kind.least_size, 1.0))))
        if not count:
            return TaskTruth(parts[0][0], slices=0)
        return TaskTruth(0.0, parked_bytes=kind.parked_bytes, parts=tuple(parts))

    def run(self) -> ClusterTrace:
        """What happens on the virtual cluster."""
        return VirtualCluster(
            self.demands,
            [self.truth] * len(self.demands),
            self.slots,
            self.limit_bytes,
            self.policy,
            ordered=self.ordered,
            consume_s=self.consume_s,
            watched=False,
        ).run(self.units)

    def bound(self) -> Bound:
        """What no schedule beats."""
        return lower_bound(
            self.demands,
            [self.truth] * len(self.demands),
            self.slots,
            self.limit_bytes,
            self.units,
            ordered=self.ordered,
            consume_s=self.consume_s,
            losses=self.policy.losses,
        )


def drawn(seed: int, *, tight: bool = False) -> Pipeline:
    """A pipeline of ``seed``: all that it is depends on that number alone.

    It has the memory that a run of its size has, or ``tight``, no more than a partition needs.
    """
    draw = random.Random(repr(("pipeline", seed)))
    slots = {
        "cpu": float(draw.choice((1, 2, 4, 8, 16))),
        "gpu": float(draw.choice((1, 2, 4))),
        "disk": draw.choice((1.0, 1.5, 3.0)),
    }
    stages = draw.choice((1, 2, 2, 3, 3, 4, 5, 6))
    demands, kinds, per_unit, units = [], [], 1.0, draw.choice((8, 20, 40, 60))
    for stage in range(stages):
        kind = _kind(draw, stage, per_unit * units)
        per_unit *= sum(kind.slices) / len(kind.slices)
        kinds.append(kind)
        demands.append(_demand(draw, stage, kind, slots))
    way = sum(each.output_bytes + each.open_bytes for each in demands)
    consume_s = 0.0
    if draw.random() < 0.3:  # more or less what the rest of the pipeline takes
        consume_s = draw.choice((0.01, 0.1, 0.5)) * max(kind.seconds for kind in kinds)
    return Pipeline(
        seed,
        tuple(demands),
        tuple(kinds),
        slots,
        way if tight else way + _usual(draw, demands, slots),
        units,
        draw.random() < 0.6,
        consume_s,
        Losing(seed=seed, chance=draw.choice((0.0, 0.0, 0.0, 0.02, 0.1))),
    )


def _kind(draw: random.Random, stage: int, tasks: float) -> Kind:
    choices = [(1,), (1,), (1, 2), (2, 4), (0, 1, 1), (0, 0, 1, 3)]
    if tasks * 10 < MOST_SLICES:
        choices += [(5,), (10,), (1, 1, 1, 30)]
    if not stage:
        choices += [(5,), (10,), (1, 20)]
    return Kind(
        draw.choice((0.05, 0.2, 1.0, 3.0)),
        draw.choice((0.0, 0.0, 0.3, 0.5, 1.0)),
        draw.choice((0.01, 0.3, 0.8, 1.0)),
        draw.choice([each for each in choices if tasks * max(each) < MOST_SLICES] or [(1,)]),
        draw.choice((0, 0, 0, PART // 2, PART)),
    )


def _demand(draw: random.Random, stage: int, kind: Kind, slots: dict[str, float]) -> Demand:
    asked = [("cpu", 1.0)]  # reading takes one processor, always
    if stage:
        asked = [("cpu", draw.choice((1.0, 1.0, 1.0, 1.0, 0.25, 0.5, 2.0, 3.0)))]
    if stage and draw.random() < 0.4:
        asked = [draw.choice((("gpu", 1.0), ("gpu", 0.5), ("gpu", 0.25), ("disk", 0.5)))]
        if draw.random() < 0.3:
            asked.append(("cpu", draw.choice((0.5, 1.0))))
    asked = [(name, min(amount, slots[name])) for name, amount in asked]
    return Demand(
        f"s{stage}",
        tuple(asked),
        PART,
        kind.parked_bytes,
        max_parallel=draw.choice((None,) * 6 + (1, 2)),
        bounded=True,
    )


def _usual(draw: random.Random, demands: Sequence[Demand], slots: dict[str, float]) -> int:
    """What a run has, which divides its memory into so many partitions, or more."""
    workers = int(slots["cpu"] + slots["gpu"])
    return int(draw.choice((1.0, 1.5, 3.0)) * PARTITIONS_PER_WORKER * workers * len(demands) * PART)
