"""Sums are exact, so that no order, partition or thread can change a bit of the result.

A float is an integer times a power of two. Sums of those integers, and of their squares, are stored
as Python integers, and rounded once, when a result is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

# Values that are added at once: the sum of the products of their limbs stays below 2**53 (floats:
# 3 * 2**36 each), or below 2**63 (integers: 3 * 2**44 each).
MOST = 1 << 13
# The least double, 2**-1074, has a mantissa of 53 bits in this unit: 2**-1126.
UNIT = 1126
LOW = (1 << 18) - 1
LIMB = (1 << 22) - 1
# Runs of at least so many values on average are summed one by one; shorter runs together, as
# Python integers.
LONG = 256


class ExactSums:
    """``n`` numbers: their sum and, with ``squared``, the sum of their squares, both exact."""

    __slots__ = ("floats", "n", "special", "squared", "squares", "sum", "unit")

    def __init__(self, dtype: np.dtype[Any], *, squared: bool = True) -> None:
        self.floats, self.squared = dtype.kind == "f", squared
        self.unit = UNIT if self.floats else 0
        self.n = self.sum = self.squares = 0
        self.special = 0.0  # the sum of the non-finite values: inf, -inf, NaN, or 0 without any

    def add(self, values: np.ndarray) -> None:
        """Add ``values``, (n,) numbers or booleans."""
        self.n += len(values)
        for start in range(0, len(values), MOST):
            part = values[start : start + MOST]
            if self.floats:
                self._add_floats(part.astype(np.float64))
            else:
                self._add_integers(part)

    def _add_integers(self, values: np.ndarray) -> None:
        if values.dtype != np.uint64:
            values = values.astype(np.int64)
        high = (values >> 44).astype(np.int64)
        middle, low = (((values >> shift) & LIMB).astype(np.int64) for shift in (22, 0))
        self.sum += _joined((low, middle, high), 22)
        if self.squared:
            self.squares += _joined(_products(high, middle, low), 22)

    def _add_floats(self, values: np.ndarray) -> None:
        finite = np.isfinite(values)
        if not finite.all():
            odd = values[~finite]
            mixed = np.isnan(odd).any() or odd.min() < odd.max()
            self.special += math.nan if mixed else float(odd[0])
            values = values[finite]
        if not len(values):
            return
        fractions, exponents = np.frexp(values)
        mantissas = (fractions * 2.0**53).astype(np.int64)
        least = int(exponents.min())
        places = exponents - least
        sizes = np.abs(mantissas)
        high, middle, low = sizes >> 36, (sizes >> 18) & LOW, sizes & LOW
        signs = np.sign(mantissas)
        limbs = [signs * limb for limb in (low, middle, high)]
        for place, total in _by_place(places, limbs, 18):
            self.sum += total << (place + least + UNIT - 53)
        products = _products(high, middle, low) if self.squared else []
        for place, total in _by_place(places, products, 18):
            self.squares += total << 2 * (place + least + UNIT - 53)

    @property
    def total(self) -> int | float:
        """The sum, rounded once: an int for integers, else a float (inf if it is too large)."""
        if not self.floats:
            return self.sum
        return self.special or _quotient(self.sum, 1 << self.unit)

    @property
    def mean(self) -> float | None:
        """The mean, rounded once; None without values."""
        if not self.n:
            return None
        return self.special or _quotient(self.sum, self.n << self.unit)

    def deviation(self, ddof: int) -> float | None:
        """Return the root of ``variance(ddof)``, rounded once."""
        return self._spread(ddof, _root)

    def variance(self, ddof: int) -> float | None:
        """Return the sum of squared deviations over n - ``ddof``; None if n is at most ``ddof``."""
        return self._spread(ddof, _quotient)

    def _spread(self, ddof: int, of: Callable[[int, int], float]) -> float | None:
        if self.n <= ddof:
            return None
        if self.special:
            return math.nan
        spread = self.n * self.squares - self.sum * self.sum
        return of(spread, (self.n * (self.n - ddof)) << 2 * self.unit)

    def join(self, other: ExactSums) -> ExactSums:
        """Add the numbers of ``other``, which are of the same type; return this object."""
        self.n += other.n
        self.sum += other.sum
        self.squares += other.squares
        self.special += other.special
        return self


def sums_by_run(
    values: np.ndarray, valid: np.ndarray | None, starts: np.ndarray, *, squared: bool
) -> list[ExactSums]:
    """Return the sums of the valid values (n,) of each run: run i ends where run i + 1 starts."""
    found = [ExactSums(values.dtype, squared=squared) for _ in starts]
    stops = np.append(starts[1:], len(values))
    if len(values) >= LONG * len(starts):
        for each, start, stop in zip(found, starts.tolist(), stops.tolist(), strict=True):
            run = values[start:stop]
            each.add(run if valid is None else run[valid[start:stop]])
        return found
    counts = stops - starts if valid is None else np.add.reduceat(valid.astype(np.int64), starts)
    if valid is not None:
        values = np.where(valid, values, np.zeros(1, values.dtype))
    if found[0].floats:
        _short_floats(found, values.astype(np.float64), starts)
    else:
        whole = values.astype(object)
        _fill(found, whole, starts, 0)
    for each, count in zip(found, counts.tolist(), strict=True):
        each.n = count
    return found


def _short_floats(found: list[ExactSums], values: np.ndarray, starts: np.ndarray) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        with np.errstate(invalid="ignore"):
            special = np.add.reduceat(np.where(finite, 0.0, values), starts)
        for each, odd in zip(found, special.tolist(), strict=True):
            each.special = odd
        values = np.where(finite, values, 0.0)
    fractions, exponents = np.frexp(values)
    least = int(exponents.min())
    whole = (fractions * 2.0**53).astype(np.int64).astype(object)
    _fill(found, whole << (exponents - least).astype(object), starts, least + UNIT - 53)


def _fill(found: list[ExactSums], whole: np.ndarray, starts: np.ndarray, place: int) -> None:
    """Set the sums in ``found``: of each run of Python integers ``whole``, times 2**``place``."""
    for each, total in zip(found, np.add.reduceat(whole, starts), strict=True):
        each.sum = int(total) << place
    if found[0].squared:
        for each, total in zip(found, np.add.reduceat(whole * whole, starts), strict=True):
            each.squares = int(total) << 2 * place


def _products(high: np.ndarray, middle: np.ndarray, low: np.ndarray) -> list[np.ndarray]:
    """Return the limbs of the squares of values with the given limbs, the lowest first."""
    return [
        low * low,
        2 * middle * low,
        2 * high * low + middle * middle,
        2 * high * middle,
        high * high,
    ]


def _joined(limbs: Any, bits: int) -> int:
    """Return the sum of integers that are split into limbs of ``bits`` bits, the lowest first."""
    return sum(int(limb.sum()) << bits * number for number, limb in enumerate(limbs))


def _by_place(places: np.ndarray, limbs: list[np.ndarray], bits: int) -> list[tuple[int, int]]:
    """Return each exponent in ``places``, and the sum of the values (as ``limbs``) with it."""
    used = np.flatnonzero(np.bincount(places))
    # weights are doubles, which represent these sums exactly
    sums = [np.bincount(places, limb)[used].astype(np.int64).tolist() for limb in limbs]
    return [
        (place, sum(part << bits * number for number, part in enumerate(parts)))
        for place, *parts in zip(used.tolist(), *sums, strict=True)
    ]


def _quotient(over: int, under: int) -> float:
    """Return a quotient of integers, correctly rounded."""
    try:
        return over / under
    except OverflowError:
        return math.inf if over > 0 else -math.inf


def _root(over: int, under: int) -> float:
    """Return the square root of a quotient of integers, computed to 66 bits, rounded to a float."""
    if not over:
        return 0.0
    shift = max(0, (132 + under.bit_length() - over.bit_length()) // 2)
    return _quotient(math.isqrt((over << 2 * shift) // under), 1 << shift)
