"""This file tells from what slices took at most, beside their partitions, what the next may take.

Nothing but admission rests on it: how a slice is cut into partitions is a function of its rows, so
what was learned, here or elsewhere, cannot be seen in what comes out.
"""

from __future__ import annotations

from collections import deque

RECENT = 16  # slices whose largest is expected of the next one
# Of inputs that are smaller, what was taken is not scaled up: most of it does not grow with them.
LEAST_BYTES = 1 << 20


class Peaks:
    """What slices of one stage have taken at most beside their partitions, by bytes in."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=RECENT)
        self._most = 0

    def add(self, given_bytes: int, working_bytes: int) -> None:
        """A slice that was given so much took so much more than is accounted for."""
        self._seen.append((given_bytes, working_bytes))
        self._most = max(each for _, each in self._seen)

    def expected(self, given_bytes: int = 0) -> int:
        """What a slice may take that is given so much; 0 where nothing is known.

        As much as any of late, and more in proportion if its input is larger.
        """
        if not self._most or given_bytes <= LEAST_BYTES:
            return self._most
        return max(_scaled(given_bytes, *seen) for seen in self._seen)


def _scaled(given_bytes: int, seen_bytes: int, working_bytes: int) -> int:
    least = max(seen_bytes, LEAST_BYTES)
    return working_bytes * given_bytes // least if given_bytes > least else working_bytes
