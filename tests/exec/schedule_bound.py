"""Compute lower bounds on the seconds of a run, by which the tests judge the policy."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dml.exec.scheduler.policy import EPSILON, Demand, Seq
from dml.verify.simulate.virtual_cluster import TaskTruth

MOST_NODES = 4_000  # of the search for the heaviest set; what is not searched is bounded from above
MOST_PIVOTS = 60
PRECISE = 1e-7
ROUNDING = 1e-12


class SliceKind(NamedTuple):
    """The slices of one stage: what one takes of each resource, and how many may run at once."""

    takes: tuple[float, ...]
    most: float


@dataclass(frozen=True, slots=True)
class Boxes:
    """The total of each resource, and the ``kinds`` of slices that share the resources."""

    there_is: tuple[float, ...]
    kinds: tuple[SliceKind, ...]

    def fits(self, i: int, left: Sequence[float]) -> int:
        """Return how many slices of kind ``i`` fit into the amounts in ``left``."""
        most = self.kinds[i].most
        for have, takes in zip(left, self.kinds[i].takes, strict=True):
            if takes > 0:
                most = min(most, math.floor(have / takes + EPSILON))
        return max(0, int(most))

    def weigh(self, work: Sequence[float]) -> tuple[float, ...]:
        """Return a weight for each kind, such that slices that fit together weigh at most one.

        ``work`` is the total seconds of the slices of each kind. The weights maximize the sum of
        seconds times weight over all kinds, and no schedule is shorter than this sum.
        """
        return _Program(self, tuple(work)).run()


class _Program:
    """The linear program of ``Boxes.weigh``, solved by the simplex method.

    A column is a set of slices that fit together, a row is a kind of slices that has work.
    """

    def __init__(self, boxes: Boxes, work: tuple[float, ...]) -> None:
        self.boxes, self.work = boxes, work
        self.rows = [i for i, seconds in enumerate(work) if seconds > 0]
        alone = [max(1, boxes.fits(i, boxes.there_is)) for i in self.rows]
        size = range(len(self.rows))
        self.inverse = [[1.0 / alone[i] if i == j else 0.0 for j in size] for i in size]
        self.seconds = [work[i] / n for i, n in zip(self.rows, alone, strict=True)]

    def run(self) -> tuple[float, ...]:
        """Return the best weights of all simplex steps, scaled to be feasible."""
        best, found = -1.0, (0.0,) * len(self.work)
        for _ in range(MOST_PIVOTS if self.rows else 0):
            weights = self._weights()
            heaviest = _Heaviest(self.boxes, weights)
            largest = max(heaviest.run(), PRECISE)
            total = sum(w * s for w, s in zip(weights, self.work, strict=True)) / largest
            if total > best:
                best, found = total, tuple(weight / largest for weight in weights)
            if largest <= 1.0 + PRECISE or not self._pivot(heaviest.counts):
                break
        return found

    def _weights(self) -> list[float]:
        weights = [0.0] * len(self.work)
        for j, i in enumerate(self.rows):
            weights[i] = max(0.0, sum(row[j] for row in self.inverse))
        return weights

    def _pivot(self, counts: Sequence[int]) -> bool:
        """Bring the column ``counts``, slices by kind, into the basis; False if impossible."""
        entering = [
            sum(row[j] * counts[i] for j, i in enumerate(self.rows)) for row in self.inverse
        ]
        ratios = [(self.seconds[i] / each, i) for i, each in enumerate(entering) if each > PRECISE]
        if not ratios:
            return False
        step, leaves = min(ratios)
        pivot = entering[leaves]
        row = [each / pivot for each in self.inverse[leaves]]
        for i, each in enumerate(entering):
            if i == leaves:
                self.inverse[i], self.seconds[i] = row, step
            else:
                old = self.inverse[i]
                self.inverse[i] = [a - each * b for a, b in zip(old, row, strict=True)]
                self.seconds[i] -= each * step
        return True


class _Heaviest:
    """A search for the heaviest set of slices that fits: branch and bound, best kinds first."""

    def __init__(self, boxes: Boxes, weights: Sequence[float]) -> None:
        self.boxes, self.weights = boxes, weights
        self.order = sorted(
            (i for i, weight in enumerate(weights) if weight > 0),
            key=lambda i: self._worth(boxes.kinds[i].takes, weights[i]),
            reverse=True,
        )
        self.counts = [0] * len(weights)
        self._now = [0] * len(weights)
        self._best, self._nodes = 0.0, 0

    def _worth(self, takes: Sequence[float], weight: float) -> float:
        shares = [a / b for a, b in zip(takes, self.boxes.there_is, strict=True) if b > 0]
        return weight / max([*shares, PRECISE])

    def run(self) -> float:
        """Return the weight of the heaviest set, or an upper bound if the search takes too long."""
        self._try(0, self.boxes.there_is, 0.0)
        if self._nodes <= MOST_NODES:
            return self._best
        return max(self._best, self._at_most(0, self.boxes.there_is))

    def _try(self, depth: int, left: Sequence[float], weight: float) -> None:
        self._nodes += 1
        if weight > self._best:
            self._best, self.counts = weight, list(self._now)
        if depth == len(self.order) or self._nodes > MOST_NODES:
            return
        if weight + self._at_most(depth, left) <= self._best + ROUNDING:
            return
        i = self.order[depth]
        takes = self.boxes.kinds[i].takes
        for n in range(self.boxes.fits(i, left), -1, -1):
            self._now[i] = n
            rest = [have - n * each for have, each in zip(left, takes, strict=True)]
            self._try(depth + 1, rest, weight + n * self.weights[i])

    def _at_most(self, depth: int, left: Sequence[float]) -> float:
        """Return an upper bound on the weight that fits into ``left``, with divisible slices.

        The first ``depth`` kinds are left out, since they are chosen already.
        """
        fits = [(i, self.boxes.fits(i, left)) for i in self.order[depth:]]
        least = sum(n * self.weights[i] for i, n in fits)
        for r, have in enumerate(left):
            least = min(least, self._filled(fits, r, have))
        return least

    def _filled(self, fits: Sequence[tuple[int, int]], r: int, have: float) -> float:
        weight, pieces = 0.0, list[tuple[float, float, int]]()
        for i, n in fits:
            takes = self.boxes.kinds[i].takes[r]
            if takes <= 0:
                weight += n * self.weights[i]
            else:
                pieces.append((self.weights[i] / takes, takes, n))
        have += EPSILON
        for each, takes, n in sorted(pieces, reverse=True):
            part = min(have, takes * n)
            weight += part * each
            have -= part
            if have <= 0:
                break
        return weight


HALVINGS = 40
UNBOUNDED = 1 << 62


@dataclass(slots=True)
class _Slice:
    """One slice: its earliest start ``head_s``, and the time ``tail_s`` that follows its end."""

    stage: int
    seconds: float
    nbytes: int
    head_s: float = 0.0
    tail_s: float = 0.0
    least_bytes: int = 0  # of the partition, or of its products, whichever is less
    room_bytes: int = 0  # held while it runs, with its input


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bounds on the seconds of a run, by reason."""

    reasons: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """The largest of the bounds."""
        return max(self.reasons.values(), default=0.0)

    @property
    def bottleneck(self) -> str:
        """The reason with the largest bound."""
        return max(self.reasons, key=lambda name: self.reasons[name], default="nothing to do")


class _Task(NamedTuple):
    """Seconds of a task alone, and with all that must follow; the least bytes of its results."""

    own_s: float
    all_s: float
    least_bytes: int


def _slices(truth: TaskTruth) -> Iterator[tuple[float, int | None]]:
    """Yield the seconds and bytes of every slice of a task, without noise; None for no output."""
    if truth.parts:
        yield from truth.parts
    elif not truth.slices:
        yield truth.seconds, None
    else:
        yield from [(truth.seconds, truth.output_bytes)] * truth.slices


@dataclass(slots=True)
class _Work:
    """Every slice of a run, and the earliest times at which partitions reach the consumer."""

    demands: Sequence[Demand]
    truth: Sequence[TaskTruth | Callable[[Seq], TaskTruth]]
    losses: Callable[[Seq, int], int]
    consume_s: float
    arrivals: list[float] = field(default_factory=list)
    tasks: list[list[_Slice]] = field(default_factory=list)
    made_byte_s: float = 0.0  # of outputs while they are computed, and of generators' buffers
    held_byte_s: list[float] = field(default_factory=list)  # of inputs, by their stage

    def add(self, seq: Seq, start_s: float, input_bytes: int = 0) -> _Task:
        """Add the task ``seq``, not to start before ``start_s``, and all that follow from it."""
        stage = len(seq) - 1
        known = self.truth[stage]
        truth = known if isinstance(known, TaskTruth) else known(seq)
        own: list[tuple[_Slice, float]] = []
        now = start_s
        for k, (once_s, nbytes) in enumerate(_slices(truth)):
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
        """Return the bytes reserved while slice ``k`` runs: at least what its stage declares."""
        demand = self.demands[stage]
        output, opened = nbytes or 0, parked_bytes if k else 0
        if demand.bounded:
            output = max(output, demand.output_bytes)
            opened = opened if k else demand.open_bytes
        return output + opened

    def _follow(self, place: Seq, now: float, nbytes: int) -> _Task:
        """Add the task that takes the partition ``place``, or its arrival at the consumer."""
        if len(place) <= len(self.truth):
            return self.add(place, now, nbytes)
        self.arrivals.append(now)
        return _Task(self.consume_s, self.consume_s, UNBOUNDED)


def lower_bound(
    demands: Sequence[Demand],
    truth: Sequence[TaskTruth | Callable[[Seq], TaskTruth]],
    slots: Mapping[str, float],
    limit_bytes: int,
    units: int,
    *,
    ordered: bool = True,
    consume_s: float = 0.0,
    losses: Callable[[Seq, int], int] = lambda _seq, _k: 0,
) -> Bound:
    """Return bounds that no schedule of these tasks can beat, even with full knowledge.

    - *chain*: slices of a task run one after another, and a task starts after its input is made;
    - *work on* a resource: slices need so many seconds of so much of the resource, not before the
      first of them can start, and the tasks that follow the last of them come after;
    - *pool of* a stage: the same for a limit on the concurrent slices of the stage;
    - *consumer*: takes partitions one after another, in their order if ``ordered``;
    - *memory*: a partition occupies memory while it is computed and while a task or the consumer
      works on it; a slice reserves what its stage declares, since the size is not known before.

    ``losses`` returns how often a slice is lost before it succeeds; each loss costs its seconds.
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
    """Return the seconds that memory requires if tasks must be delivered strictly in order.

    Let g be the seconds between the ends of two adjacent tasks of a stage. If t seconds of work
    must follow a partition, it was made at least t before its task ended; so the partition, or what
    is computed from it, occupies memory for at least t - g. A run of C seconds divides C among all
    g; that division which needs the fewest byte-seconds is taken. With the byte-seconds of making
    partitions, these cannot exceed C * ``limit_bytes``. The result is the least such C.
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
    """Return the least C such that ``held``, lowered by ``pieces``, is at most C * ``limit_bytes``.

    ``held`` is in byte-seconds. Each of ``pieces`` is a pair: the byte-seconds by which each second
    of C lowers ``held``, and for how many seconds. The pieces apply one after the other.
    """
    now = 0.0
    for slope, length_s in pieces:
        wanted = (held - limit_bytes * now) / (slope + limit_bytes)
        if wanted <= length_s:
            return now + max(wanted, 0.0)
        now, held = now + length_s, held - slope * length_s
    return max(now, held / limit_bytes)


def _resources(work: _Work, slots: Mapping[str, float], limit: int) -> Iterator[tuple[str, float]]:
    """Yield (reason, seconds): a bound for each pool, and for each resource and range of stages."""
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
                share = [each.takes[r] / slots[name] for each in boxes.kinds]
                weights = [a if b else 0.0 for a, b in zip(share, some, strict=True)]
                if any(weights):
                    yield f"work on {name}", _spread_s(ramps, boxes, weights)
            yield "work side by side", _spread_s(ramps, boxes, boxes.weigh(some))


def _boxes(
    work: _Work, ramps: Sequence[_Ramps], slots: Mapping[str, float], limit_bytes: int
) -> Boxes:
    """Return the resources and what a slice of each stage takes; of memory, the least of any."""
    kinds = []
    for demand, ramp in zip(work.demands, ramps, strict=True):
        asked, tasks = dict(demand.resources), len(ramp.heads)
        takes = [asked.get(name, 0.0) for name in slots]
        most = tasks if demand.max_parallel is None else min(tasks, demand.max_parallel)
        kinds.append(SliceKind((*takes, float(ramp.least_bytes)), most))
    return Boxes((*slots.values(), float(limit_bytes)), tuple(kinds))


class _Ramps(NamedTuple):
    """The earliest starts of a stage's tasks, and the least times from their ends to the run's end.

    ``heads`` and ``tails`` are these times, ascending, in seconds: they limit how many tasks can
    run near the start and the end of the run. All slices together take ``seconds``, and each
    occupies ``least_bytes`` or more while it runs.
    """

    heads: Sequence[float]
    tails: Sequence[float]
    seconds: float
    least_bytes: int

    @classmethod
    def of(cls, tasks: Sequence[Sequence[_Slice]], stage: int) -> _Ramps:
        """Return the ramps of one stage."""
        own = [task for task in tasks if task and task[0].stage == stage]
        heads = sorted(task[0].head_s for task in own)
        tails = sorted(min(one.tail_s for one in task) for task in own)
        least_bytes = min((one.room_bytes for task in own for one in task), default=0)
        return cls(heads, tails, sum(one.seconds for task in own for one in task), least_bytes)


Ramp = list[tuple[float, float]]
"""Pairs of a time and the weight that may be at work from then on, both growing."""


def _spread_s(ramps: Sequence[_Ramps], boxes: Boxes, weights: Sequence[float]) -> float:
    """Return the least seconds for all slices if concurrent ones weigh at most one in sum.

    Near the start and the end of the run, ``ramps`` allow even less weight.
    """
    work = sum(w * ramp.seconds for w, ramp in zip(weights, ramps, strict=True))
    used = [(w, r, int(s.most)) for w, r, s in zip(weights, ramps, boxes.kinds, strict=True) if w]
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
    """Return the work (seconds times weight) that is lost before ``ramp`` reaches its top."""
    lost, before, level = 0.0, 0.0, 0.0
    for at, then in ramp:
        lost += (at - before) * (ramp[-1][1] - level)
        before, level = at, then
    return lost


def _room(begin: Ramp, end: Ramp, seconds: float) -> float:
    """Return the work (seconds times weight) that fits into ``seconds`` with these ramps."""
    marks = sorted({0.0, seconds, *(at for at, _ in begin), *(seconds - at for at, _ in end)})
    done = 0.0
    for a, b in itertools.pairwise(mark for mark in marks if 0.0 <= mark <= seconds):
        middle = (a + b) / 2
        done += (b - a) * min(_level(begin, middle), _level(end, seconds - middle))
    return done


def _level(ramp: Ramp, at: float) -> float:
    place = bisect_right(ramp, at, key=lambda each: each[0])
    return ramp[place - 1][1] if place else 0.0
