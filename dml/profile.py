"""A profile holds the costs learned from earlier runs; the optimizer takes it as an argument.

Figures (seconds per row, output rows per input row, bytes of a row) are stored as an exponentially
decayed mean and variance of their logarithm, so that one very slow run has a limited effect on the
mean. Nothing here reads a clock: the time of an observation is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, TypeVar

K = TypeVar("K")

TURNS: Final = 8.0
"""Seconds for which a thread may wait, per second of work, for processors that threads share."""
HALF_LIFE_S: Final = 14 * 86_400.0
NOISE: Final = math.log(1.2) ** 2
"""Variance of the logarithm of a figure between repetitions of the same run."""


class CostKey(NamedTuple):
    """Key of a cost: the operator, the machine, and the block's shape rounded to powers of two."""

    fingerprint: str
    host_class: str
    rows_log2: int
    row_bytes_log2: int

    @classmethod
    def of(cls, fingerprint: str, host_class: str, rows: float, row_bytes: float) -> CostKey:
        """Return the key of blocks with ``rows`` rows of ``row_bytes`` bytes each."""
        return cls(fingerprint, host_class, _log2(rows), _log2(row_bytes))


def _log2(figure: float) -> int:
    return max(0, round(math.log2(figure))) if figure > 0 else 0


class TimedOperator(Protocol):
    """The measured times of an operator (``OperatorTotals`` of ``dml/events.py``)."""

    @property
    def seconds(self) -> float:
        """Wall-clock seconds inside the operator."""

    @property
    def cpu_s(self) -> float | None:
        """Processor seconds; None where they were not measured."""

    @property
    def medium(self) -> str:
        """Storage that a source reads from; "" for other operators."""

    @property
    def lifted(self) -> str:
        """Text that starts with "no" if the operator calls a Python function for its rows."""


def work_s(did: TimedOperator) -> float:
    """Return an operator's own seconds: processor time, without waits for processors or the GIL.

    Sources and called Python functions may also wait for I/O, which belongs to their work. For
    these, wall-clock time beyond ``TURNS`` times the processor time counts too, because sharing
    processors and the GIL does not explain so much. Without ``cpu_s``, all time counts.
    """
    if did.cpu_s is None:
        return did.seconds
    worked = min(did.cpu_s, did.seconds)
    if did.medium or did.lifted.startswith("no"):
        return max(worked, did.seconds - TURNS * worked)
    return worked


class Learned(NamedTuple):
    """Decayed mean and spread of the logarithm of a figure, at time ``at`` (seconds since 1970)."""

    weight: float
    mean: float
    spread: float
    at: float

    @classmethod
    def once(cls, figure: float, at: float, weight: float = 1.0) -> Learned:
        """Return a single observation; raise ValueError for non-positive or infinite figures."""
        if not (0 < figure < math.inf and 0 < weight < math.inf):
            raise ValueError(f"what is learned is positive, got {figure!r} x {weight!r}")
        return cls(weight, math.log(figure), 0.0, at)

    @property
    def typical(self) -> float:
        """The geometric mean of the observations."""
        return math.exp(self.mean)

    @property
    def sigma(self) -> float:
        """Standard error of the log: observed spread, plus noise that shrinks with weight."""
        return math.sqrt((self.spread + NOISE) / self.weight) if self.weight else math.inf

    def as_of(self, at: float) -> Learned:
        """Return these figures with weight and spread decayed to the time ``at``."""
        if at <= self.at:
            return self
        kept = 0.5 ** ((at - self.at) / HALF_LIFE_S)
        return Learned(self.weight * kept, self.mean, self.spread * kept, at)

    def merge(self, other: Learned) -> Learned:
        """Return both combined, as of the later of their times; commutative (Chan et al. 1979)."""
        at = max(self.at, other.at)
        one, two = self.as_of(at), other.as_of(at)
        weight = one.weight + two.weight
        if weight == 0:
            return one
        step = two.mean - one.mean
        between = step * step * one.weight * two.weight / weight
        mean = (one.mean * one.weight + two.mean * two.weight) / weight
        return Learned(weight, mean, one.spread + two.spread + between, at)


@dataclass(frozen=True, slots=True)
class Speed:
    """Factors by which work and copying are slower than on the machine of the default costs."""

    work: float = 1.0
    copying: float = 1.0


# The kinds of figures of a profile.
KINDS = ("costs", "ratios", "sizes", "counts", "blocks", "parallels")


@dataclass(frozen=True)
class Profile:
    """Learned figures by fingerprint; a profile is empty before the first run.

    ``costs`` are seconds per input row (of a source: per output row). By the fingerprint of an
    operator with the operators below it, ``ratios`` are output rows per input row, ``sizes`` bytes
    of an output row, ``blocks`` rows of an input block. ``counts`` are the output rows of an
    operator in completed runs of one pipeline, keyed by ``counted``. ``parallels`` are the numbers
    that runs have tuned, by the name of the event ``Tuned``. ``host_class`` and ``speed``
    describe the machine for which costs are estimated.
    """

    costs: Mapping[CostKey, Learned] = field(default_factory=dict)
    ratios: Mapping[str, Learned] = field(default_factory=dict)
    sizes: Mapping[str, Learned] = field(default_factory=dict)
    counts: Mapping[str, Learned] = field(default_factory=dict)
    blocks: Mapping[str, Learned] = field(default_factory=dict)
    parallels: Mapping[str, Learned] = field(default_factory=dict)
    host_class: str = ""
    speed: Speed = field(default_factory=Speed)

    @property
    def figures(self) -> bool:
        """True if the profile has any learned figure."""
        return any(getattr(self, kind) for kind in KINDS)

    def merge(self, other: Profile) -> Profile:
        """Return both combined, with the machine of this one; the order affects rounding only."""
        both: dict[str, Any] = {
            kind: _merged(getattr(self, kind), getattr(other, kind)) for kind in KINDS
        }
        return replace(self, **both)

    def bounded(self, most: int, at: float) -> Profile:
        """Return at most ``most`` figures of each kind: those with most weight at time ``at``."""
        kept: dict[str, Any] = {kind: _heaviest(getattr(self, kind), most, at) for kind in KINDS}
        return replace(self, **kept)

    @cached_property
    def _shapes(self) -> dict[tuple[str, str], list[CostKey]]:
        found: dict[tuple[str, str], list[CostKey]] = {}
        for key in self.costs:
            found.setdefault(key[:2], []).append(key)
        return found

    def lookup(self, key: CostKey) -> Learned | None:
        """Return the cost for ``key``, else for the nearest shape on the same machine, or None."""
        near = self.near(key)
        return None if near is None else near[0]

    def near(self, key: CostKey) -> tuple[Learned, int] | None:
        """Return the result of ``lookup`` and the distance of its key in powers of two, or None."""
        shapes = [key] if key in self.costs else self._shapes.get(key[:2])
        if not shapes:
            return None
        best = min(shapes, key=lambda each: (_apart(each, key), each))
        return self.costs[best], _apart(best, key)


def counted(pipeline: str, ordinal: int) -> str:
    """Return the key in ``counts`` of the output rows of operator ``ordinal`` of a pipeline."""
    return f"{pipeline}:{ordinal}"


def _merged(one: Mapping[K, Learned], two: Mapping[K, Learned]) -> Mapping[K, Learned]:
    if not one or not two:
        return one or two
    both = dict(one)
    for key, learned in two.items():
        mine = both.get(key)
        both[key] = learned if mine is None else mine.merge(learned)
    return both


def _heaviest(known: Mapping[K, Learned], most: int, at: float) -> Mapping[K, Learned]:
    if len(known) <= most:
        return known
    ranked = sorted(known.items(), key=lambda each: each[1].as_of(at).weight, reverse=True)
    return dict(ranked[:most])


def _apart(one: CostKey, two: CostKey) -> int:
    return abs(one.rows_log2 - two.rows_log2) + abs(one.row_bytes_log2 - two.row_bytes_log2)
