"""This file says how fast a run could be at best: what no schedule whatever can beat."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dml.exec.packing import Boxes, Sort
from dml.exec.policy import Demand, Seq
from dml.exec.virtual import Truth

HALVINGS = 40
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
    room_bytes: int = 0  # taken while it runs: its own, and its input's


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

    def add(self, seq: Seq, start_s: float, input_bytes: int = 0) -> _Task:
        """Take in a task and all that follows from it."""
        stage = len(seq) - 1
        known = self.truth[stage]
        truth = known if isinstance(known, Truth) else known(seq)
        own: list[tuple[_Slice, float]] = []
        now = start_s
        for k, (once_s, nbytes) in enumerate(truth.each()):
            seconds = once_s * (1 + self.losses(seq, k))
            room = self._room(stage, nbytes, truth.parked_bytes, k)
            made = _Slice(stage, seconds, nbytes or 0, now, room_bytes=room + input_bytes)
            now += seconds
            after_s = 0.0
            if nbytes is not None:
                below = self._follow((*seq, k), now, nbytes)
                after_s, made.least_bytes = below.all_s, min(nbytes, below.least_bytes)
                self.held_byte_s[stage] += made.nbytes * below.own_s
            self.made_byte_s += seconds * room
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

    def _follow(self, place: Seq, now: float, nbytes: int) -> _Task:
        """What becomes of a partition."""
        if len(place) <= len(self.truth):
            return self.add(place, now, nbytes)
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
    for name, seconds in _resources(work, slots, limit_bytes):
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


def _resources(work: _Work, slots: Mapping[str, float], limit: int) -> Iterator[tuple[str, float]]:
    """Seconds by resource and by pool, for all stages, and for those from each one to another."""
    demands = work.demands
    ramps = [_Ramps.of(work.tasks, stage) for stage in range(len(demands))]
    boxes = _boxes(work, ramps, slots, limit)
    seconds = [ramp.seconds for ramp in ramps]
    for stage, demand in enumerate(demands):
        if demand.max_parallel is not None and seconds[stage]:
            weights = [float(i == stage) / demand.max_parallel for i in range(len(demands))]
            yield f"pool of {demand.name}", _spread_s(ramps, boxes, weights)
    for first, last in itertools.combinations_with_replacement(range(len(demands)), 2):
        some = [each if first <= i <= last else 0.0 for i, each in enumerate(seconds)]
        if some[first] and some[last]:
            for r, name in enumerate(slots):
                share = [each.takes[r] / slots[name] for each in boxes.sorts]
                weights = [a if b else 0.0 for a, b in zip(share, some, strict=True)]
                if any(weights):
                    yield f"work on {name}", _spread_s(ramps, boxes, weights)
            yield "work side by side", _spread_s(ramps, boxes, boxes.weigh(some))


def _boxes(
    work: _Work, ramps: Sequence[_Ramps], slots: Mapping[str, float], limit_bytes: int
) -> Boxes:
    """What slices take: of each resource, and of memory what they take at least."""
    sorts, least = list[Sort](), dict[int, int]()
    for task in work.tasks:
        for one in task:
            least[one.stage] = min(one.room_bytes, least.get(one.stage, one.room_bytes))
    for stage, (demand, ramp) in enumerate(zip(work.demands, ramps, strict=True)):
        asked, tasks = dict(demand.resources), len(ramp.heads)
        takes = [asked.get(name, 0.0) for name in slots]
        most = tasks if demand.max_parallel is None else min(tasks, demand.max_parallel)
        sorts.append(Sort((*takes, float(least.get(stage, 0))), most))
    return Boxes((*slots.values(), float(limit_bytes)), tuple(sorts))


class _Ramps(NamedTuple):
    """Of a stage: when tasks could start at the earliest, and how long before the end they end.

    So few of them are at work near the beginning and near the end; in all they take ``seconds``.
    """

    heads: Sequence[float]
    tails: Sequence[float]
    seconds: float

    @classmethod
    def of(cls, tasks: Sequence[Sequence[_Slice]], stage: int) -> _Ramps:
        """Those of one stage."""
        own = [task for task in tasks if task and task[0].stage == stage]
        heads = sorted(task[0].head_s for task in own)
        tails = sorted(min(one.tail_s for one in task) for task in own)
        return cls(heads, tails, sum(one.seconds for task in own for one in task))


Ramp = list[tuple[float, float]]
"""(when, how much may be at work from then on), both growing."""


def _spread_s(ramps: Sequence[_Ramps], boxes: Boxes, weights: Sequence[float]) -> float:
    """Seconds that slices take of which those at work at once weigh at most one together.

    Near the beginning, and near the end, not even that much can be at work.
    """
    work = sum(w * ramp.seconds for w, ramp in zip(weights, ramps, strict=True))
    used = [(w, r, int(s.most)) for w, r, s in zip(weights, ramps, boxes.sorts, strict=True) if w]
    if not work:
        return 0.0
    begin = _rising([(at, w) for w, ramp, most in used for at in ramp.heads[:most]])
    end = _rising([(at, w) for w, ramp, most in used for at in ramp.tails[:most]])
    top = begin[-1][1]
    found = (work + _lost(begin) + _lost(end)) / top
    apart = begin[-1][0] + end[-1][0]
    if found >= apart:
        return found
    low, high = work / top, apart
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _room(begin, end, middle) < work else (low, middle)
    return low


def _rising(each: Sequence[tuple[float, float]]) -> Ramp:
    found, level = Ramp(), 0.0
    for at, weight in sorted(each):
        level = min(1.0, level + weight)
        if found and found[-1][0] == at:
            found.pop()
        found.append((at, level))
        if level == 1.0:
            break
    return found


def _lost(ramp: Ramp) -> float:
    """What cannot be done before the top is reached."""
    lost, before, level = 0.0, 0.0, 0.0
    for at, then in ramp:
        lost += (at - before) * (ramp[-1][1] - level)
        before, level = at, then
    return lost


def _room(begin: Ramp, end: Ramp, seconds: float) -> float:
    """What can be done in so many seconds that begin and end like that."""
    marks = sorted({0.0, seconds, *(at for at, _ in begin), *(seconds - at for at, _ in end)})
    done = 0.0
    for a, b in itertools.pairwise(mark for mark in marks if 0.0 <= mark <= seconds):
        middle = (a + b) / 2
        done += (b - a) * min(_level(begin, middle), _level(end, seconds - middle))
    return done


def _level(ramp: Ramp, at: float) -> float:
    place = bisect_right(ramp, at, key=lambda each: each[0])
    return ramp[place - 1][1] if place else 0.0
