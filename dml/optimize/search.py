"""This file finds how a chain of operators is expected to run fastest: one dynamic programme.

What is chosen together: where stages end and which driver runs them, how large partitions are, and
where a cache would stand. A state is a place in the chain, the number of stages up to there, the
driver and the size; of each, only what nothing else beats in every sum is kept, so that the best
is exact. Pure figures: nothing here knows operators.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from dml.expr.computed import cached_property
from dml.optimize.engine import Clock

# Of planning, estimates included: the clock that is given begins with them.
DEADLINE_S: Final = 0.05
NEVER, MAY, MUST = "never", "may", "must"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One operator, by what all of its rows of one pass take.

    ``locked_s`` are those of ``seconds`` that hold Python's lock, ``given_bytes`` what comes out.
    ``begins`` says whether a stage never, may or must begin with it; ``width`` how many tasks of a
    stage that does may run at once; ``keeps`` that a cache above it could be seen in no result.
    """

    seconds: float
    locked_s: float = 0.0
    given_bytes: float = 0.0
    begins: str = NEVER
    width: float = math.inf
    keeps: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Driver:
    """What runs stages: seconds until it works, of handing on a partition, and each of its bytes.

    Of one that ``shares_lock``, only one worker at a time is in Python.
    """

    name: str
    start_s: float = 0.0
    partition_s: float = 0.0
    byte_s: float = 0.0
    shares_lock: bool = False


@dataclasses.dataclass(frozen=True)
class Chain:
    """What is asked: ``steps`` on blocks, ``over`` the stream in the caller's thread, and limits.

    ``sizes`` are partition sizes that memory allows, by the number of stages; the first is what is
    usual. ``tasks`` says, by size, of how many tasks the first stage is. ``atoms`` bound how often
    rows can be divided; before the first of a unit there are ``unit_s``. A pass is made ``passes``
    times, and keeping a byte, as taking it again, takes ``keep_s``; ``kept_bytes`` is room for it.
    """

    steps: tuple[Step, ...]
    over: tuple[Step, ...]
    workers: int
    drivers: tuple[Driver, ...]
    sizes: Mapping[int, tuple[int, ...]]
    tasks: Mapping[int, int]
    atoms: float = math.inf
    unit_s: float = 0.0
    passes: int = 1
    kept_bytes: float = 0.0
    keep_s: float = 0.0

    @cached_property
    def up_to(self) -> list[tuple[float, float]]:
        """Seconds of the steps before each, and of those the ones in Python."""
        found = [(0.0, 0.0)]
        for step in self.steps:
            found.append((found[-1][0] + step.seconds, found[-1][1] + step.locked_s))
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """A way to run: ``cuts`` are the steps that begin a stage, but for the first.

    ``kept`` is the step, counted on through ``over``, above which a cache stands.
    """

    driver: Driver
    size: int
    cuts: tuple[int, ...] = ()
    kept: int | None = None


class Priced(NamedTuple):
    """A way to run and the seconds that it is expected to take."""

    seconds: float
    way: Way


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search found; ``whole`` is False if time was up before it had looked at everything.

    ``usual`` is what is done without a search; ``ranked`` the best of each driver, number of
    stages and size, best first; ``kept`` the best with a cache, None if there is none.
    """

    usual: Priced
    ranked: tuple[Priced, ...]
    kept: Priced | None
    whole: bool


class Sums(NamedTuple):
    """Seconds of a pass: of all workers together, in Python there, in the caller's thread.

    ``longest`` is when the last stage ends at the earliest, however many workers there are.
    """

    work: float = 0.0
    locked: float = 0.0
    caller: float = 0.0
    longest: float = 0.0

    def beats(self, other: Sums) -> bool:
        """True if nothing of it is more than that of ``other``."""
        return all(mine <= its for mine, its in zip(self, other, strict=True))


def usual_way(chain: Chain) -> Way:
    """What is done where nothing is chosen: the first driver and size, stages where they must."""
    cuts = tuple(i for i, step in enumerate(chain.steps) if step.begins == MUST)
    return Way(chain.drivers[0], chain.sizes[len(cuts) + 1][0], cuts)


def seconds(chain: Chain, way: Way) -> float:
    """What ``way`` is expected to take, all passes together."""
    first, end = 0, _end(chain, way.kept)
    sums = Sums()
    for stop in (*way.cuts, end):
        sums = _with_stage(chain, way, sums, first, stop)
        first = stop
    return _whole(chain, way.driver, sums, way.kept)


def search(chain: Chain, clock: Clock, deadline_s: float = DEADLINE_S) -> Found:
    """The best of all, or of those that could be looked at before ``clock`` says ``deadline_s``."""
    usual = usual_way(chain)
    ranked = [Priced(seconds(chain, usual), usual)]
    kept: list[Priced] = []
    whole = True
    for driver, stages, size in _families(chain):
        found = _Programme(chain, driver, size, stages, lambda: clock() >= deadline_s)
        whole = found.run()
        if not whole:
            break
        ranked += found.without_cache()
        kept += found.with_cache()
    return Found(ranked[0], _best_of_each(ranked), min(kept, key=_rank, default=None), whole)


def _families(chain: Chain) -> Iterator[tuple[Driver, int, int]]:
    for driver in chain.drivers:
        for stages, sizes in chain.sizes.items():
            for size in sizes:
                yield driver, stages, size


def _best_of_each(ranked: list[Priced]) -> tuple[Priced, ...]:
    """Of every driver, number of stages and size the best, best first."""
    best: dict[tuple[str, int, int], Priced] = {}
    for each in sorted(ranked, key=_rank):
        way = each.way
        best.setdefault((way.driver.name, len(way.cuts), way.size), each)
    return tuple(best.values())


class _Label(NamedTuple):
    """What the cuts up to some place sum up to."""

    sums: Sums
    cuts: tuple[int, ...]


class _Programme:
    """All cuts into at most so many stages, for one driver and size; ``late`` says when to stop."""

    def __init__(
        self, chain: Chain, driver: Driver, size: int, stages: int, late: Callable[[], bool]
    ) -> None:
        self.chain, self.way, self.stages, self.late = chain, Way(driver, size), stages, late
        self.ends = [i for i, step in enumerate(chain.steps) if i and step.begins != NEVER]
        self.ends.append(len(chain.steps))
        # by place in the chain and number of stages below it
        self.labels: dict[tuple[int, int], list[_Label]] = {(0, 0): [_Label(Sums(), ())]}

    def run(self) -> bool:
        """Fill ``labels``; False if time was up before."""
        begun = [0]
        for stop in self.ends:
            if self.late():
                return False
            for first in begun:
                self._extend(first, stop)
            # where a stage must begin, none goes on
            must = stop < len(self.chain.steps) and self.chain.steps[stop].begins == MUST
            begun = [stop] if must else [*begun, stop]
        return True

    def _extend(self, first: int, stop: int) -> None:
        """Add what ends with a stage from ``first`` up to ``stop``."""
        for before in range(self.stages):
            for each in self.labels.get((first, before), ()):
                sums = _with_stage(self.chain, self.way, each.sums, first, stop)
                cuts = (*each.cuts, first) if first else each.cuts
                _add(self.labels.setdefault((stop, before + 1), []), _Label(sums, cuts))

    def without_cache(self) -> list[Priced]:
        """What the whole chain takes, in so many stages."""
        return self._priced(None)

    def with_cache(self) -> list[Priced]:
        """The same with a cache, wherever there may be one."""
        return [each for place in _keeping_places(self.chain) for each in self._priced(place)]

    def _priced(self, kept: int | None) -> list[Priced]:
        return [
            Priced(
                _whole(self.chain, self.way.driver, each.sums, kept),
                dataclasses.replace(self.way, cuts=each.cuts, kept=kept),
            )
            for each in self.labels.get((_end(self.chain, kept), self.stages), ())
        ]


def _add(labels: list[_Label], new: _Label) -> None:
    """Add ``new``, unless one that is there is at least as good in everything."""
    if any(each.sums.beats(new.sums) for each in labels):
        return
    labels[:] = [each for each in labels if not new.sums.beats(each.sums)]
    labels.append(new)


def _with_stage(chain: Chain, way: Way, sums: Sums, first: int, stop: int) -> Sums:
    """``sums`` and those of the stage that has the steps from ``first`` up to ``stop``."""
    tasks = chain.tasks[way.size]
    if first:
        tasks = _partitions(chain, way.size, chain.steps[first - 1])
    last = chain.steps[stop - 1]
    (begun_s, begun_locked_s), (done_s, done_locked_s) = chain.up_to[first], chain.up_to[stop]
    work = done_s - begun_s + _partitions(chain, way.size, last) * way.driver.partition_s
    wide = min(chain.workers, tasks, chain.steps[first].width)
    longest = math.ceil(tasks / wide) * work / tasks
    if first:
        # it begins when rows are there, and ends no sooner than with the last it is given
        longest = max(chain.unit_s + longest, sums.longest + work / tasks)
    return Sums(
        sums.work + work,
        sums.locked + done_locked_s - begun_locked_s,
        sums.caller + last.given_bytes * way.driver.byte_s,
        max(sums.longest, longest),
    )


def _partitions(chain: Chain, size: int, step: Step) -> int:
    """How many partitions come out of a stage that ends with ``step``."""
    tasks = chain.tasks[size]
    return max(tasks, min(math.ceil(step.given_bytes / size), int(min(chain.atoms, 1 << 40))))


def _end(chain: Chain, kept: int | None) -> int:
    """Where the stages end: below a cache, operators on blocks see the stream."""
    return len(chain.steps) if kept is None else min(kept + 1, len(chain.steps))


def _keeping_places(chain: Chain) -> Iterator[int]:
    """Above which steps a cache may stand: where a stage could end, and over the stream."""
    if chain.passes < 2 or chain.kept_bytes <= 0:
        return
    last = len(chain.steps)
    ends = {i for i, step in enumerate(chain.steps) if step.begins == MAY} | {last}
    for place, step in enumerate((*chain.steps, *chain.over)):
        if step.keeps and (place >= last or place + 1 in ends):
            yield place


def _whole(chain: Chain, driver: Driver, sums: Sums, kept: int | None) -> float:
    """Seconds of all passes, of what the stages sum up to."""
    steps = (*chain.steps, *chain.over)
    if kept is None:
        above = steps[len(chain.steps) :]
        return driver.start_s + chain.passes * _pass_s(chain, driver, _caller(sums, above))
    nbytes = steps[kept].given_bytes
    share = min(1.0, chain.kept_bytes / nbytes) if nbytes else 1.0
    keeping = share * nbytes * chain.keep_s
    below = _caller(sums, steps[_end(chain, kept) : kept + 1])
    above = steps[kept + 1 :]
    lacking = Sums(*(each * (1 - share) for each in below))
    first, later = (
        _pass_s(chain, driver, _caller(each, above, keeping)) for each in (below, lacking)
    )
    return driver.start_s + first + (chain.passes - 1) * later


def _caller(sums: Sums, steps: tuple[Step, ...], more_s: float = 0.0) -> Sums:
    """``sums`` with ``steps`` and ``more_s`` in the caller's thread."""
    return sums._replace(
        caller=sums.caller + more_s + math.fsum(step.seconds for step in steps),
        locked=sums.locked + math.fsum(step.locked_s for step in steps),
    )


def _pass_s(chain: Chain, driver: Driver, sums: Sums) -> float:
    """Seconds of one pass: whatever is the narrowest."""
    locked = sums.locked if driver.shares_lock else 0.0
    return max(sums.work / chain.workers, locked, sums.caller, sums.longest)


def _rank(each: Priced) -> tuple[float, int, str, int, tuple[int, ...], int]:
    way = each.way
    kept = -1 if way.kept is None else way.kept
    return each.seconds, len(way.cuts), way.driver.name, -way.size, way.cuts, kept
