"""This file says which kept parts are worth their bytes: pure, and never by age alone.

Worth = floor + (decayed uses + announced epochs) x (seconds to make - seconds to read) / bytes. The
floor is the worth of what was evicted last when the part was used last: GreedyDual-Size-Frequency
(Cherkasova, 1998) with decay, and with what running jobs have announced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

READ_BYTES_PER_S = 1e9  # of a part that is not in memory
HALF_LIFE_S = 6 * 3600.0  # of a use


@dataclasses.dataclass(frozen=True)
class Use:
    """How a part has been used: decayed count, and the floor when it was used last."""

    count: float = 0.0
    floor: float = 0.0

    def after(self, seconds: float) -> Use:
        """The same, later."""
        return Use(self.count * 0.5 ** (max(seconds, 0.0) / HALF_LIFE_S), self.floor)

    def used(self, floor: float) -> Use:
        """The same, used once more."""
        return Use(self.count + 1.0, max(self.floor, floor))

    def __or__(self, other: Use) -> Use:
        """What two processes know of one part."""
        return Use(self.count + other.count, max(self.floor, other.floor))


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A part that may be evicted."""

    fingerprint: str
    part: int
    size: int
    cost_s: float
    use: Use = dataclasses.field(default_factory=Use)
    epochs: float = 0.0
    """How often running jobs will still ask for it."""

    @property
    def worth(self) -> float:
        """Seconds that a byte of it saves, over the floor."""
        saved_s = max(self.cost_s - self.size / READ_BYTES_PER_S, 0.0)
        return self.use.floor + (self.use.count + self.epochs) * saved_s / max(self.size, 1)


def least(candidates: Iterable[Candidate], nbytes: int) -> Iterator[Candidate]:
    """Those of least worth, the least first, until they have ``nbytes``; ties by name."""
    for each in sorted(candidates, key=lambda c: (c.worth, c.fingerprint, c.part)):
        if nbytes <= 0:
            return
        nbytes -= each.size
        yield each
