"""Random parameters of one row are a function of the row's one uniform draw.

A draw is a multiple of 2**-53, so it has 53 random bits, which start a sequence of 64-bit numbers.
"""

from __future__ import annotations

from dml.kernels.rows.ids import GOLDEN, mix64_int


class RowDraws:
    """The sequence of random numbers that ``draw``, in [0, 1), starts."""

    def __init__(self, draw: float) -> None:
        self._key = mix64_int(int(draw * 2.0**53) + 1)
        self._count = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return the next number, at least ``low`` and less than ``high``."""
        self._count += 1
        bits = mix64_int(self._key + self._count * GOLDEN)
        return low + (high - low) * ((bits >> 11) * 2.0**-53)

    def integer(self, most: int) -> int:
        """Return the next integer from 0 to ``most``."""
        return min(int(self.uniform() * (most + 1)), most)
