"""Compute the worth of cached parts, from arguments alone and never by age alone.

Worth = floor + (decayed uses + announced epochs) x (seconds to make - seconds to read) / bytes. The
floor is the worth of the last evicted part, as of the last use of this part:
GreedyDual-Size-Frequency (Cherkasova, 1998) with decay and announced reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

READ_BYTES_PER_S = 1e9  # read speed of a part that is not in memory
HALF_LIFE_S = 6 * 3600.0  # seconds after which a use counts half


@dataclasses.dataclass(frozen=True)
class PartUse:
    """The uses of a part: decayed count, and worth of the last evicted part at the last use."""

    count: float = 0.0
    floor: float = 0.0

    def after(self, seconds: float) -> PartUse:
        """Return the uses ``seconds`` later, with the count decayed."""
        return PartUse(self.count * 0.5 ** (max(seconds, 0.0) / HALF_LIFE_S), self.floor)

    def used(self, floor: float) -> PartUse:
        """Return the uses with one more; ``floor`` is the worth of the last evicted part."""
        return PartUse(self.count + 1.0, max(self.floor, floor))

    def __or__(self, other: PartUse) -> PartUse:
        """Return the sum of the uses that two processes know of one part."""
        return PartUse(self.count + other.count, max(self.floor, other.floor))


@dataclasses.dataclass(frozen=True)
class EvictionCandidate:
    """A part that may be evicted: of ``size`` bytes, made in ``cost_s`` seconds."""

    fingerprint: str
    part: int
    size: int
    cost_s: float
    use: PartUse = dataclasses.field(default_factory=PartUse)
    epochs: float = 0.0
    """How often running jobs have announced to read the part."""

    @property
    def worth(self) -> float:
        """Seconds that each byte of the part saves, plus the floor of its uses."""
        saved_s = max(self.cost_s - self.size / READ_BYTES_PER_S, 0.0)
        return self.use.floor + (self.use.count + self.epochs) * saved_s / max(self.size, 1)


def least(candidates: Iterable[EvictionCandidate], nbytes: int) -> Iterator[EvictionCandidate]:
    """Yield the candidates of least worth, ascending, until they free ``nbytes``; ties by name."""
    for each in sorted(candidates, key=lambda c: (c.worth, c.fingerprint, c.part)):
        if nbytes <= 0:
            return
        nbytes -= each.size
        yield each
