"""This file says how fast a run could be at best: what no schedule whatever can beat."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dml.exec.policy import EPSILON, Demand, Seq
from dml.exec.virtual import Truth

# Slots hold slices like boxes hold things: where few of one kind fit, less than all of a resource
# can be used. Each step counts slices a little differently, and none counts more than there is.
STEPS = (1, 2, 3, 4, 5)
UNBOUNDED = 1 << 62


@dataclass(slots=True)
class _Slice:
    """One slice: when it could start at the earliest, and what must still follow its end."""

    stage: int
    seconds: float
    nbytes: int
    head_s: float = 0.0
    tail_s: float = 0.0
    least_bytes: int = 0  # of the partition, or of what becomes of it, whichever is less


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds that a run takes at least, by the reason why; ``bottleneck`` is the strongest."""

    reasons: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """The most that any of the reasons proves."""
        return max(self.reasons.values(), default=0.0)

    @property
    def bottleneck(self) -> str:
        """The reason that proves most."""
        return max(self.reasons, key=lambda name: self.reasons[name], default="nothing to do")


class _Task(NamedTuple):
    """Seconds of its own slices, and until nothing of it is left; the least that comes of it."""

    own_s: float
    all_s: float
    least_bytes: int


@dataclass(slots=True)
class _Work:
    """Every slice of a run, and when partitions could come to the consumer at the earliest."""

    demands: Sequence[Demand]
    truth: Sequence[Truth | Callable[[Seq], Truth]]
    losses: Callable[[Seq, int], int]
    consume_s: float
    arrivals: list[float] = field(default_factory=list)
    tasks: list[list[_Slice]] = field(default_factory=list)
    made_byte_s: float = 0.0  # of outputs in the making, and of what generators hold
    held_byte_s: list[float] = field(default_factory=list)  # of inputs, by the stage they are of

    def add(self, seq: Seq, start_s: float) -> _Task:
        """Take in a task and all that follows from it."""
        stage = len(seq) - 1
        known = self.truth[stage]
        truth = known if isinstance(known, Truth) else known(seq)
        own: list[tuple[_Slice, float]] = []
        now = start_s
        for k, (once_s, nbytes) in enumerate(truth.each()):
            seconds = once_s * (1 + self.losses(seq, k))
            made = _Slice(stage, seconds, nbytes or 0, now)
            now += seconds
            after_s = 0.0
            if nbytes is not None:
                below = self._follow((*seq, k), now)
                after_s, made.least_bytes = below.all_s, min(nbytes, below.least_bytes)
                self.held_byte_s[stage] += made.nbytes * below.own_s
            self.made_byte_s += seconds * self._room(stage, nbytes, truth.parked_bytes, k)
            own.append((made, after_s))
        rest_s = 0.0
        for made, after_s in reversed(own):
            made.tail_s = max(after_s, rest_s)
            rest_s = made.seconds + made.tail_s
        self.tasks.append([made for made, _ in own])
        return _Task(now - start_s, rest_s, sum(made.least_bytes for made, _ in own))

    def _room(self, stage: int, nbytes: int | None, parked_bytes: int, k: int) -> int:
        """Bytes that slice ``k`` takes while it runs: those promised, since nobody knows others."""
        demand = self.demands[stage]
        output, opened = nbytes or 0, parked_bytes if k else 0
        if demand.bounded:
            output = max(output, demand.output_bytes)
            opened = opened if k else demand.open_bytes
        return output + opened

    def _follow(self, place: Seq, now: float) -> _Task:
        """What becomes of a partition."""
        if len(place) <= len(self.truth):
            return self.add(place, now)
        self.arrivals.append(now)
        return _Task(self.consume_s, self.consume_s, UNBOUNDED)


def lower_bound(
    demands: Sequence[Demand],
    truth: Sequence[Truth | Callable[[Seq], Truth]],
    slots: Mapping[str, float],
    limit_bytes: int,
    units: int,
    *,
    ordered: bool = True,
    consume_s: float = 0.0,
    losses: Callable[[Seq, int], int] = lambda _seq, _k: 0,
) -> Bound:
    """What no schedule of these tasks can beat, whoever makes it and whatever it knows.

    - *chain*: slices of a task follow each other, and what a task takes must have been made;
    - *work on* a resource: its slices need so many seconds of so much of it, no sooner than the
      first of them can start, and what follows the last of them comes after;
    - *pool of* a stage: the same for a bound on its slices at once;
    - *consumer*: takes partitions one after another, in their order if there is one;
    - *memory*: room for a partition is taken while it is made, and while it is worked on; a slice
      has the room that its stage promises to keep to, since nobody knows its size before.

    ``losses`` says how often a slice is lost before it comes back; each time costs its seconds.
    """
    work = _Work(demands, truth, losses, consume_s)
    work.held_byte_s += [0.0] * len(demands)
    chain_s = max((work.add((unit,), 0.0).all_s for unit in range(units)), default=0.0)
    reasons = {"chain": chain_s, "consumer": _consumer_s(work, ordered=ordered)}
    reasons["memory"] = (work.made_byte_s + sum(work.held_byte_s)) / limit_bytes
    if ordered:
        reasons["memory in order"] = _in_order_s(work, len(demands), limit_bytes)
    slices = [one for task in work.tasks for one in task]
    for name, seconds in _resources(demands, slices, slots):
        reasons[name] = max(seconds, reasons.get(name, 0.0))
    return Bound(reasons)


def _consumer_s(work: _Work, *, ordered: bool) -> float:
    now = 0.0
    for arrival_s in work.arrivals if ordered else sorted(work.arrivals):
        now = max(now, arrival_s) + work.consume_s
    return now


def _in_order_s(work: _Work, stages: int, limit_bytes: int) -> float:
    """Seconds that memory asks for where nothing of a task may go before all of the last one has.

    Let g be the seconds between the ends of two tasks that stand side by side. What must follow
    the making of a partition in t seconds was made no later than t before the end of its task, so
    it or what came of it is held for t - g at least. Of all g that add up to a run of C seconds,
    those are taken that hold least; that, and what is held in the making, is at most C limits.
    """
    found = 0.0
    for stage in range(stages):
        pieces, held = list[tuple[float, float]](), work.made_byte_s + sum(work.held_byte_s[:stage])
        for task in work.tasks:
            if task and task[0].stage == stage:
                slope, before_s = 0.0, 0.0
                for one in sorted(task, key=lambda one: one.tail_s, reverse=True):
                    pieces.append((slope, before_s - one.tail_s))
                    held += one.least_bytes * one.tail_s
                    slope, before_s = slope + one.least_bytes, one.tail_s
                pieces.append((slope, before_s))
        found = max(found, _least_s(sorted(pieces, reverse=True), held, limit_bytes))
    return found


def _least_s(pieces: Sequence[tuple[float, float]], held: float, limit_bytes: int) -> float:
    """When ``limit_bytes`` a second have made up for ``held``, which pieces lower for a time."""
    now = 0.0
    for slope, length_s in pieces:
        wanted = (held - limit_bytes * now) / (slope + limit_bytes)
        if wanted <= length_s:
            return now + max(wanted, 0.0)
        now, held = now + length_s, held - slope * length_s
    return max(now, held / limit_bytes)


def _resources(
    demands: Sequence[Demand], slices: Sequence[_Slice], slots: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    """Seconds by resource and by pool, for all stages, and for those from each one to another."""
    by_stage = [[each for each in slices if each.stage == i] for i in range(len(demands))]
    for first in range(len(demands)):
        for last in range(first, len(demands)):
            for name, total in slots.items():
                shares = {
                    stage: dict(demands[stage].resources).get(name, 0.0) / total
                    for stage in range(first, last + 1)
                }
                used = [one for stage, share in shares.items() if share for one in by_stage[stage]]
                if used:
                    yield f"work on {name}", _packed_s(used, shares)
        most, own = demands[first].max_parallel, by_stage[first]
        if most is not None and own:
            yield f"pool of {demands[first].name}", _between_s(own, _sum_s(own) / most)


def _packed_s(used: Sequence[_Slice], shares: Mapping[int, float]) -> float:
    stages = {stage: _sum_s([one for one in used if one.stage == stage]) for stage in shares}
    fullest = 0.0
    for step in STEPS:
        for weight in (_as_it_is, _rounded, _large_only):
            found = sum(weight(shares[stage], step) * stages[stage] for stage in shares)
            fullest = max(fullest, found)
    return _between_s(used, fullest)


# Weights of a share of a resource, 0 to 1, such that slices which fit together add up to at most 1.


def _as_it_is(share: float, _step: int) -> float:
    return share


def _rounded(share: float, step: int) -> float:
    """With ``step`` + 1 of a share above one, only ``step`` of them fit."""
    exact = (step + 1) * share
    if abs(exact - round(exact)) < 10 * EPSILON:
        return share
    return math.floor(exact) / step


def _large_only(share: float, step: int) -> float:
    """Beside one that takes more than all but a part, only smaller ones than that part fit."""
    part = 1.0 / (2 * step)
    if share > 1.0 - part + EPSILON:
        return 1.0
    return 0.0 if share < part - EPSILON else share


def _between_s(used: Sequence[_Slice], seconds: float) -> float:
    """All of ``seconds`` lie after the earliest start, and before the least that must follow."""
    return min(one.head_s for one in used) + seconds + min(one.tail_s for one in used)


def _sum_s(slices: Sequence[_Slice]) -> float:
    return sum(one.seconds for one in slices)
