"""Every row has a 128-bit id, which depends on the row's position and not on its values.

The id of a source's row is (key of the source's name, row number). Operators that make several rows
from one row mix the number of the new row into its id (``derive``). No id depends on values,
partitions or workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

U64: TypeAlias = "NDArray[np.uint64]"
Key: TypeAlias = "int | U64"

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, odd
_MODULUS = 1 << 64
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix64(values: U64) -> U64:
    """Apply SplitMix64's finaliser to each value (Steele, Lea and Flood, 2014); a bijection.

    (n,) u8 -> a new (n,) u8 array. About 1 ns a value.
    """
    z = np.array(values, dtype=np.uint64)
    scratch = np.empty_like(z)
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        np.right_shift(z, np.uint64(shift), out=scratch)
        np.bitwise_xor(z, scratch, out=z)
        np.multiply(z, np.uint64(multiplier), out=z)
    np.right_shift(z, np.uint64(31), out=scratch)
    np.bitwise_xor(z, scratch, out=z)
    return z


def mix64_int(value: int) -> int:
    """Return ``mix64`` of one Python integer, taken modulo 2**64."""
    z = value % _MODULUS
    z = (z ^ (z >> 30)) * _MULTIPLIERS[0] % _MODULUS
    z = (z ^ (z >> 27)) * _MULTIPLIERS[1] % _MODULUS
    return z ^ (z >> 31)


def mixed(value: Key) -> Key:
    """Return ``mix64`` of an integer or of an array."""
    return mix64_int(value) if isinstance(value, int) else mix64(value)


def plus(a: Key, b: Key) -> Key:
    """Add integers and arrays modulo 2**64."""
    if isinstance(a, int) and isinstance(b, int):
        return (a + b) % _MODULUS
    return np.asarray(np.add(_operand(a), _operand(b)))


def xor(a: Key, b: Key) -> Key:
    """Return the exclusive or of integers (below 2**64) and arrays."""
    if isinstance(a, int) and isinstance(b, int):
        return a ^ b
    return np.asarray(np.bitwise_xor(_operand(a), _operand(b)))


def _operand(value: Key) -> Any:
    """Convert an integer to u8 without axes, an array to u8; ufuncs wrap both without a warning."""
    if isinstance(value, int):
        return np.array(value % _MODULUS, dtype=np.uint64)
    return value.astype(np.uint64, copy=False)


def derive(hi: Key, lo: Key, a: Key, b: Key) -> tuple[Key, Key]:
    """Return the id (hi1, lo1) of a new row, derived from the id (hi, lo) and the pair (a, b).

    The pair is an operator's key and the number of the new row, or the id of a second row.
    Two rounds of a Feistel network: ``lo1 = lo + mix64(hi ^ mix64(a + G))``, ``hi1 = hi +
    mix64(lo1 ^ mix64(b + 2 G))``, modulo 2**64, with G = ``GOLDEN``. For fixed (a, b) this is a
    bijection of 128 bits, so that different ids stay different. Arguments are integers or (n,)
    arrays in any combination; the result is two integers only if all four are integers.
    """
    low = plus(lo, mixed(xor(hi, mixed(plus(a, GOLDEN)))))
    high = plus(hi, mixed(xor(low, mixed(plus(b, 2 * GOLDEN)))))
    return high, low


def underive(hi: U64, lo: U64, a: Key, b: Key) -> tuple[U64, U64]:
    """Invert ``derive``: return the ids (n,) for which ``derive`` with (a, b) gives (hi, lo)."""
    high = hi - mix64(np.asarray(xor(lo, mixed(plus(b, 2 * GOLDEN)))))
    low = lo - mix64(np.asarray(xor(high, mixed(plus(a, GOLDEN)))))
    return high, low


def source_key(name: str) -> int:
    """Return the high half of a source's row ids: BLAKE2b-64 of its UTF-8 name, little endian."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True, eq=False)
class RowIds:
    """The ids of the rows of a block, in order; immutable.

    Either compact, for rows of one source (``hi`` and ``lo`` are integers: row i is
    (hi, lo + i), or (hi, lo + sel[i]) for selected rows), or two arrays.
    """

    count: int
    hi: Key
    lo: Key
    sel: NDArray[np.intp] | None = None

    @classmethod
    def run(cls, key: int, start: int, count: int) -> RowIds:
        """Return ids of ``count`` rows of a source (by ``source_key``), from row ``start`` on."""
        return cls(count, key, start)

    @classmethod
    def at(cls, key: int, index: NDArray[Any]) -> RowIds:
        """Return the ids of a source's rows at ``index`` (n,), in that order."""
        return cls(len(index), key, 0, np.array(index, dtype=np.intp))

    @classmethod
    def of_arrays(cls, hi: U64, lo: U64) -> RowIds:
        """Return ids from their halves, two (n,) u8 arrays that must not be changed later."""
        return cls(len(hi), hi, lo)

    @classmethod
    def none(cls) -> RowIds:
        """Return the ids of no rows."""
        return cls(0, 0, 0)

    @classmethod
    def concat(cls, parts: Sequence[RowIds]) -> RowIds:
        """Concatenate ids; compact if the parts are consecutive rows of one source."""
        parts = [part for part in parts if part.count]
        if not parts:
            return cls.none()
        first, count = parts[0], sum(part.count for part in parts)
        if _one_run(parts):
            return cls(count, first.hi, first.lo)
        if len(parts) == 1:
            return first
        return LateIds(count, partial(_joined, parts))

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        """Bytes of arrays; 0 for a consecutive run of a source."""
        if isinstance(self.lo, int) and isinstance(self.hi, int):
            return 0 if self.sel is None else self.sel.nbytes
        held = (self.hi, self.lo, self.sel)
        return sum(part.nbytes for part in held if isinstance(part, np.ndarray))

    def low(self) -> U64:
        """Return the low halves, (n,) u8: in the compact form the row numbers. Read only."""
        if isinstance(self.lo, np.ndarray):
            return self.lo
        offsets = np.arange(self.count, dtype="u8") if self.sel is None else self.sel.astype("u8")
        return np.asarray(np.add(offsets, np.array(self.lo % _MODULUS, dtype=np.uint64)))

    def arrays(self) -> tuple[U64, U64]:
        """Return high and low halves, two (n,) u8 arrays, new from the compact form. Read only."""
        if isinstance(self.hi, np.ndarray):
            return self.hi, self.low()
        return np.full(self.count, self.hi, dtype=np.uint64), self.low()

    def take(self, index: NDArray[Any]) -> RowIds:
        """Return the ids at ``index`` (integers, any order, repeats allowed)."""
        if isinstance(self.lo, int) and self.sel is None:  # the index becomes the selection
            index = np.array(index, dtype=np.intp)
        return self.take_without_copy(index)

    def take_without_copy(self, index: NDArray[np.intp]) -> RowIds:
        """Return the ids at ``index``, which is not copied and must not be changed later."""
        if isinstance(self.lo, int):
            sel = index if self.sel is None else self.sel[index]
            return RowIds(len(index), self.hi, self.lo, sel)
        hi = self.hi[index] if isinstance(self.hi, np.ndarray) else self.hi
        return RowIds(len(index), hi, self.lo[index])

    def slice(self, start: int, stop: int) -> RowIds:
        """Return the ids of rows ``start`` to ``stop``, without a copy."""
        start, stop, _ = slice(start, stop).indices(self.count)
        count = max(stop - start, 0)
        if isinstance(self.lo, int):
            if self.sel is None:
                return RowIds(count, self.hi, self.lo + start)
            return RowIds(count, self.hi, self.lo, self.sel[start:stop])
        hi = self.hi[start:stop] if isinstance(self.hi, np.ndarray) else self.hi
        return RowIds(count, hi, self.lo[start:stop])

    def derive(self, a: Key, b: Key) -> RowIds:
        """Return the ids of ``derive`` for each id and (a, b), integers or (n,) integer arrays."""
        hi, lo = derive(self.hi, self.low(), _key(a), _key(b))
        return RowIds(self.count, np.asarray(hi, np.uint64), np.asarray(lo, np.uint64))


class LateIds(RowIds):
    """Ids of rows that are not consecutive, such as joined blocks; computed if they are accessed.

    Access is rare. ``make`` returns the two arrays, and is released after the call; until then the
    values that it refers to occupy ``row_bytes`` bytes per row.
    """

    __slots__ = ("_made", "_make", "_part", "_row_bytes")
    _row_bytes: int
    _part: tuple[LateIds, int] | None  # other ids whose rows these are, from a row on
    _make: Callable[[], tuple[U64, U64]] | None
    _made: tuple[U64, U64] | None

    def __init__(
        self, count: int, make: Callable[[], tuple[U64, U64]], row_bytes: int = 16
    ) -> None:
        object.__setattr__(self, "_row_bytes", row_bytes)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_made", None)
        object.__setattr__(self, "_part", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowIds, (self.count, *self.arrays())

    def arrays(self) -> tuple[U64, U64]:
        """Return high and low halves, computed on the first call."""
        make, made = self._make, self._made
        if make is not None:  # two threads may get here: both compute equal arrays
            made = make()
            object.__setattr__(self, "_made", made)
            object.__setattr__(self, "_make", None)
            object.__setattr__(self, "_part", None)
        return made or self.arrays()  # (another thread has computed them since ``_made`` was read)

    @property
    def hi(self) -> U64:
        """High halves of the ids, (n,) u8."""
        return self.arrays()[0]

    @property
    def lo(self) -> U64:
        """Low halves of the ids, (n,) u8."""
        return self.arrays()[1]

    @property
    def sel(self) -> None:
        """None, as these ids are not in the compact form."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, or, before they are computed, of the values that ``make`` holds."""
        return self.count * (16 if self._make is None else self._row_bytes)

    def take(self, index: NDArray[Any]) -> RowIds:
        """Return the ids at ``index``, computed on first access."""
        return self.take_without_copy(np.array(index, dtype=np.intp))

    def take_without_copy(self, index: NDArray[np.intp]) -> RowIds:
        """Return the ids at ``index``, which is not copied and must not be changed later."""
        return LateIds(len(index), partial(_picked, self, index))

    def slice(self, start: int, stop: int) -> RowIds:
        """Return the ids of rows ``start`` to ``stop``, computed on first access.

        Slices of slices do not refer to one another: a block may be cut into a thousand rows.
        """
        start, stop, _ = slice(start, stop).indices(self.count)
        stop = max(start, stop)
        whole, first = self._part or (self, 0)
        found = LateIds(stop - start, partial(_picked, whole, slice(first + start, first + stop)))
        object.__setattr__(found, "_part", (whole, first + start))
        return found


def _joined(parts: Sequence[RowIds]) -> tuple[U64, U64]:
    high, low = zip(*(part.arrays() for part in parts), strict=True)
    return np.concatenate(high), np.concatenate(low)


def _picked(ids: LateIds, index: NDArray[Any] | slice) -> tuple[U64, U64]:
    high, low = ids.arrays()
    return high[index], low[index]


def _key(value: Any) -> Key:
    """Convert integers of any type to a Python integer or a u8 array."""
    if isinstance(value, np.ndarray):
        return value.astype(np.uint64, copy=False)
    return int(value) % _MODULUS


def _one_run(parts: Sequence[RowIds]) -> bool:
    """Return True if the parts are consecutive rows of one source."""
    if any(isinstance(part, LateIds) for part in parts):
        return False
    hi, following = parts[0].hi, parts[0].lo
    for part in parts:
        if part.sel is not None or not isinstance(part.hi, int) or not isinstance(part.lo, int):
            return False
        if part.hi != hi or part.lo != following:
            return False
        following = part.lo + part.count
    return True
