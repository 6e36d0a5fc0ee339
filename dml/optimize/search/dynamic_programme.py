"""A dynamic programme finds how a chain of operators is expected to run fastest.

It chooses the ends of stages, their driver, the partition size, and the place of a cache in one
search. A state is a place in the chain, the number of stages up to it, the driver and the size. For
each state, only solutions are kept that no other beats in every sum, so the result is optimal. The
search uses figures alone, without operators.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from dml.base.amounts import bytes_text
from dml.base.cached_property import cached_property
from dml.optimize.engine import Clock

# Limit for planning, including estimates: the clock starts before they are made.
DEADLINE_S: Final = 0.05
NEVER, MAY, MUST = "never", "may", "must"


@dataclasses.dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of one operator, for all of its rows in one pass.

    ``locked_s`` is the part of ``seconds`` that holds the GIL, ``given_bytes`` the size of the
    output. ``begins`` says whether a stage must not, may or must begin with the operator, and
    ``width`` is the number of tasks of such a stage that may run at once. ``keeps`` is True if a
    cache above the operator changes no result.
    """

    seconds: float
    locked_s: float = 0.0
    given_bytes: float = 0.0
    begins: str = NEVER
    width: float = math.inf
    keeps: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class DriverCosts:
    """A driver's costs: seconds to start, to pass on a partition, and for each byte of one.

    With ``shares_lock``, only one worker at a time runs Python.
    """

    name: str
    start_s: float = 0.0
    partition_s: float = 0.0
    byte_s: float = 0.0
    shares_lock: bool = False


@dataclasses.dataclass(frozen=True)
class ChainProblem:
    """The problem: ``steps`` on blocks, steps ``over`` the stream in the caller's thread, limits.

    ``sizes`` has the partition sizes in bytes that memory allows, by the number of stages; the
    first is the usual size. ``tasks`` has the number of tasks of the first stage, by size.
    ``atoms`` is the maximum number of partitions; the first rows of a unit are available after
    ``unit_s`` seconds. There are ``passes`` passes. A cache holds ``kept_bytes``, and takes
    ``keep_s`` seconds to write or read a byte.
    """

    steps: tuple[StepCosts, ...]
    over: tuple[StepCosts, ...]
    workers: int
    drivers: tuple[DriverCosts, ...]
    sizes: Mapping[int, tuple[int, ...]]
    tasks: Mapping[int, int]
    atoms: float = math.inf
    unit_s: float = 0.0
    passes: int = 1
    kept_bytes: float = 0.0
    keep_s: float = 0.0

    @cached_property
    def up_to(self) -> list[tuple[float, float]]:
        """For each step: the seconds of all steps before it, and how many of them hold the GIL."""
        found = [(0.0, 0.0)]
        for step in self.steps:
            found.append((found[-1][0] + step.seconds, found[-1][1] + step.locked_s))
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class ArrangedWay:
    """An arrangement: ``cuts`` are the steps that begin a stage, except for the first stage.

    ``kept`` is the index, in ``steps`` and then ``over``, of the step above which a cache is
    placed.
    """

    driver: DriverCosts
    size: int
    cuts: tuple[int, ...] = ()
    kept: int | None = None

    @property
    def inputs(self) -> tuple[()]:
        """No inputs, for the trace: an arrangement is about a whole plan."""
        return ()

    def title(self) -> str:
        """Return the driver, the number of stages and the partition size, in one line."""
        stages = len(self.cuts) + 1
        many = f"{stages} stages" if stages > 1 else "one stage"
        return f"{self.driver.name}, {many}, partitions of {bytes_text(self.size)}"


class Priced(NamedTuple):
    """A way to run and the seconds it is expected to take."""

    seconds: float
    way: ArrangedWay


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The result of a search; ``whole`` is False if the time limit stopped the search.

    ``usual`` is the default arrangement. ``ranked`` has the best way of each driver, number of
    stages and size, best first. ``kept`` is the best way with a cache, or None.
    """

    usual: Priced
    ranked: tuple[Priced, ...]
    kept: Priced | None
    whole: bool


class PassSums(NamedTuple):
    """Seconds of one pass: of all workers together, with the GIL held, in the caller's thread.

    ``longest`` is the earliest time at which the last stage can end, however many workers there
    are.
    """

    work: float = 0.0
    locked: float = 0.0
    caller: float = 0.0
    longest: float = 0.0

    def beats(self, other: PassSums) -> bool:
        """Return True if no sum exceeds that of ``other``."""
        return all(mine <= its for mine, its in zip(self, other, strict=True))


def usual_way(chain: ChainProblem) -> ArrangedWay:
    """Return the default way: the first driver and size, stages only where they must begin."""
    cuts = tuple(i for i, step in enumerate(chain.steps) if step.begins == MUST)
    return ArrangedWay(chain.drivers[0], chain.sizes[len(cuts) + 1][0], cuts)


def seconds(chain: ChainProblem, way: ArrangedWay) -> float:
    """Return the expected seconds of ``way``, for all passes together."""
    first, end = 0, _end(chain, way.kept)
    sums = PassSums()
    for stop in (*way.cuts, end):
        sums = _with_stage(chain, way, sums, first, stop)
        first = stop
    return _whole(chain, way.driver, sums, way.kept)


def search(chain: ChainProblem, clock: Clock, deadline_s: float = DEADLINE_S) -> SearchResult:
    """Return the best arrangement, searching until ``clock`` reaches ``deadline_s`` at most."""
    usual = usual_way(chain)
    ranked = [Priced(seconds(chain, usual), usual)]
    kept: list[Priced] = []
    whole = True
    for driver, stages, size in _families(chain):
        found = _Programme(chain, driver, size, stages, lambda: clock() >= deadline_s)
        whole = found.run()
        if not whole:
            break
        ranked += found.priced(None)
        kept += [each for place in _keeping_places(chain) for each in found.priced(place)]
    return SearchResult(ranked[0], _best_of_each(ranked), min(kept, key=_rank, default=None), whole)


def _families(chain: ChainProblem) -> Iterator[tuple[DriverCosts, int, int]]:
    for driver in chain.drivers:
        for stages, sizes in chain.sizes.items():
            for size in sizes:
                yield driver, stages, size


def _best_of_each(ranked: list[Priced]) -> tuple[Priced, ...]:
    """Return the best way of every driver, number of stages and size, best first."""
    best: dict[tuple[str, int, int], Priced] = {}
    for each in sorted(ranked, key=_rank):
        way = each.way
        best.setdefault((way.driver.name, len(way.cuts), way.size), each)
    return tuple(best.values())


class _Label(NamedTuple):
    """The sums of the stages up to a place in the chain, for one choice of ``cuts``."""

    sums: PassSums
    cuts: tuple[int, ...]


class _Programme:
    """A search of all divisions into ``stages`` stages, for one driver and size."""

    def __init__(
        self,
        chain: ChainProblem,
        driver: DriverCosts,
        size: int,
        stages: int,
        late: Callable[[], bool],
    ) -> None:
        self.chain, self.way = chain, ArrangedWay(driver, size)
        self.stages, self.late = stages, late
        self.ends = [i for i, step in enumerate(chain.steps) if i and step.begins != NEVER]
        self.ends.append(len(chain.steps))
        # by place in the chain and number of stages up to there
        self.labels: dict[tuple[int, int], list[_Label]] = {(0, 0): [_Label(PassSums(), ())]}

    def run(self) -> bool:
        """Fill ``labels``; return False if the time limit stopped the search."""
        begun = [0]
        for stop in self.ends:
            if self.late():
                return False
            for first in begun:
                self._extend(first, stop)
            # where a stage must begin, no stage continues
            must = stop < len(self.chain.steps) and self.chain.steps[stop].begins == MUST
            begun = [stop] if must else [*begun, stop]
        return True

    def _extend(self, first: int, stop: int) -> None:
        """Add the solutions whose last stage has the steps from ``first`` up to ``stop``."""
        for before in range(self.stages):
            for each in self.labels.get((first, before), ()):
                sums = _with_stage(self.chain, self.way, each.sums, first, stop)
                cuts = (*each.cuts, first) if first else each.cuts
                _add(self.labels.setdefault((stop, before + 1), []), _Label(sums, cuts))

    def priced(self, kept: int | None) -> list[Priced]:
        """Return the priced arrangements with a cache above step ``kept`` (None: no cache)."""
        return [
            Priced(
                _whole(self.chain, self.way.driver, each.sums, kept),
                dataclasses.replace(self.way, cuts=each.cuts, kept=kept),
            )
            for each in self.labels.get((_end(self.chain, kept), self.stages), ())
        ]


def _add(labels: list[_Label], new: _Label) -> None:
    """Add ``new``, unless a label is at least as good in every sum; drop labels that it beats."""
    if any(each.sums.beats(new.sums) for each in labels):
        return
    labels[:] = [each for each in labels if not new.sums.beats(each.sums)]
    labels.append(new)


def _with_stage(
    chain: ChainProblem, way: ArrangedWay, sums: PassSums, first: int, stop: int
) -> PassSums:
    """Return ``sums`` after adding a stage with the steps from ``first`` up to ``stop``."""
    tasks = chain.tasks[way.size]
    if first:
        tasks = _partitions(chain, way.size, chain.steps[first - 1])
    last = chain.steps[stop - 1]
    (begun_s, begun_locked_s), (done_s, done_locked_s) = chain.up_to[first], chain.up_to[stop]
    work = done_s - begun_s + _partitions(chain, way.size, last) * way.driver.partition_s
    wide = min(chain.workers, tasks, chain.steps[first].width)
    longest = math.ceil(tasks / wide) * work / tasks
    if first:
        # a later stage begins when rows arrive, and ends at least one task after its input
        longest = max(chain.unit_s + longest, sums.longest + work / tasks)
    return PassSums(
        sums.work + work,
        sums.locked + done_locked_s - begun_locked_s,
        sums.caller + last.given_bytes * way.driver.byte_s,
        max(sums.longest, longest),
    )


def _partitions(chain: ChainProblem, size: int, step: StepCosts) -> int:
    """Return the number of partitions of a stage that ends with ``step``."""
    tasks = chain.tasks[size]
    return max(tasks, min(math.ceil(step.given_bytes / size), int(min(chain.atoms, 1 << 40))))


def _end(chain: ChainProblem, kept: int | None) -> int:
    """Return the number of steps in stages: all, or those below the cache above step ``kept``."""
    return len(chain.steps) if kept is None else min(kept + 1, len(chain.steps))


def _keeping_places(chain: ChainProblem) -> Iterator[int]:
    """Yield the steps above which a cache is allowed: stage ends, and over the stream."""
    if chain.passes < 2 or chain.kept_bytes <= 0:
        return
    last = len(chain.steps)
    ends = {i for i, step in enumerate(chain.steps) if step.begins == MAY} | {last}
    for place, step in enumerate((*chain.steps, *chain.over)):
        if step.keeps and (place >= last or place + 1 in ends):
            yield place


def _whole(chain: ChainProblem, driver: DriverCosts, sums: PassSums, kept: int | None) -> float:
    """Return the seconds of all passes, from the ``sums`` of the stages in one pass."""
    steps = (*chain.steps, *chain.over)
    if kept is None:
        above = steps[len(chain.steps) :]
        return driver.start_s + chain.passes * _pass_s(chain, driver, _caller(sums, above))
    nbytes = steps[kept].given_bytes
    share = min(1.0, chain.kept_bytes / nbytes) if nbytes else 1.0
    keeping = share * nbytes * chain.keep_s
    below = _caller(sums, steps[_end(chain, kept) : kept + 1])
    above = steps[kept + 1 :]
    lacking = PassSums(*(each * (1 - share) for each in below))
    first, later = (
        _pass_s(chain, driver, _caller(each, above, keeping)) for each in (below, lacking)
    )
    return driver.start_s + first + (chain.passes - 1) * later


def _caller(sums: PassSums, steps: tuple[StepCosts, ...], more_s: float = 0.0) -> PassSums:
    """Return ``sums`` plus ``steps`` and ``more_s`` seconds in the caller's thread."""
    return sums._replace(
        caller=sums.caller + more_s + math.fsum(step.seconds for step in steps),
        locked=sums.locked + math.fsum(step.locked_s for step in steps),
    )


def _pass_s(chain: ChainProblem, driver: DriverCosts, sums: PassSums) -> float:
    """Return the seconds of one pass, which are those of its bottleneck."""
    locked = sums.locked if driver.shares_lock else 0.0
    return max(sums.work / chain.workers, locked, sums.caller, sums.longest)


def _rank(each: Priced) -> tuple[float, int, str, int, tuple[int, ...], int]:
    way = each.way
    kept = -1 if way.kept is None else way.kept
    return each.seconds, len(way.cuts), way.driver.name, -way.size, way.cuts, kept
