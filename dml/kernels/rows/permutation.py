"""Permutations: of windows by sorting hashes, and of up to 2**62 rows without any stored table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dml.kernels.rows.ids import GOLDEN, U64, mix64, mix64_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Below this many elements a Feistel network is measurably biased, and sorting is cheap.
EXPLICIT_MOST = 4096
ROUNDS = 8
# For numbers of keys between these, a radix sort takes half the time of a comparison sort.
COUNTED_LEAST, COUNTED_MOST = 2048, 1 << 18
_MODULUS = 1 << 64
_MOST = 1 << 62


def window_permutation(window_key: int, n: int) -> NDArray[np.intp]:
    """Return the order of a shuffled window of n elements: (n,) positions, each once.

    Element i is sorted by ``mix64(window_key + (i + 1) G)``, with G = ``GOLDEN``.
    """
    steps = np.arange(1, n + 1, dtype=np.uint64)
    np.multiply(steps, np.uint64(GOLDEN), out=steps)
    np.add(steps, np.array(window_key % _MODULUS, dtype=np.uint64), out=steps)
    # multiples of an odd number are distinct and mix64 is a bijection: there are no ties to break
    return ascending(mix64(steps))


def ascending(keys: U64) -> NDArray[np.intp]:
    """Return the indices (n,) that sort distinct keys, by a radix sort of 16 bits at a time.

    The lowest 16 bits are left out: if keys differ in those alone, a comparison sort is used.
    """
    if not COUNTED_LEAST <= len(keys) <= COUNTED_MOST:
        return np.argsort(keys)
    parts = keys.astype("<u8").view("<u2").reshape(-1, 4)
    order = np.argsort(parts[:, 1], kind="stable")
    for part in (parts[:, 2], parts[:, 3]):
        order = order[np.argsort(part[order], kind="stable")]
    found = keys[order]
    return order if (found[1:] > found[:-1]).all() else np.argsort(keys)


class IndexPermutation:
    """A permutation of 0 .. n-1 for a key; n up to 2**62.

    Up to 4096 elements it is ``window_permutation(key, n)``. Above, a Feistel network of 8 rounds
    on the least even number of bits that fits n - 1, walked along its cycle until the value is
    below n (Black and Rogaway, 2002): round r maps (left, right) to (right, left ^ F(right)) with
    F(x) = the low half bits of ``mix64(x + mix64(key + (r + 1) G))``, G = ``GOLDEN``. Its state
    does not grow with n. It takes about 100 ns an index, and just above a power of 4 up to 400 ns.
    """

    def __init__(self, n: int, key: int) -> None:
        if not 0 <= n <= _MOST:
            raise ValueError(f"a permutation of {n} elements is outside 0 .. 2**62")
        self.n = n
        self._table: NDArray[np.intp] | None = None
        self._inverse: NDArray[np.intp] | None = None
        if n <= EXPLICIT_MOST:
            self._table = window_permutation(key, n)
            self._inverse = np.argsort(self._table, kind="stable")
        self._half = max(1, ((n - 1).bit_length() + 1) // 2) if n else 1
        self._keys = [mix64_int(key + (turn + 1) * GOLDEN) for turn in range(ROUNDS)]

    def __len__(self) -> int:
        return self.n

    def forward(self, places: NDArray[Any]) -> NDArray[np.int64]:
        """Return the element at each place: (m,) integers below n -> (m,) i8."""
        return self._apply(places, self._table, backward=False)

    def inverse(self, elements: NDArray[Any]) -> NDArray[np.int64]:
        """Return the place of each element: (m,) integers below n -> (m,) i8."""
        return self._apply(elements, self._inverse, backward=True)

    def _apply(
        self, index: NDArray[Any], table: NDArray[np.intp] | None, *, backward: bool
    ) -> NDArray[np.int64]:
        index = np.asarray(index)
        if index.size and not (index.min() >= 0 and int(index.max()) < self.n):
            raise IndexError(f"an index lies outside 0 .. {self.n - 1}")
        if table is not None:
            return table[index.astype(np.intp)].astype(np.int64, copy=False)
        return self._walk(index.astype(np.uint64), backward=backward).view(np.int64)

    def _walk(self, values: U64, *, backward: bool) -> U64:
        """Apply the network once to all values, then again to those outside 0 .. n-1."""
        values = self._network(values, backward=backward)
        outside = np.flatnonzero(values >= np.uint64(self.n))
        while outside.size:
            again = self._network(values[outside], backward=backward)
            values[outside] = again
            outside = outside[again >= np.uint64(self.n)]
        return values

    def _network(self, values: U64, *, backward: bool) -> U64:
        """Apply the Feistel network, a permutation of the integers of twice ``_half`` bits."""
        shift, mask = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = values >> shift, values & mask
        if backward:
            left, right = right, left
        for turn in reversed(self._keys) if backward else self._keys:
            mixed = mix64(right + np.uint64(turn)) & mask
            left, right = right, left ^ mixed
        if backward:
            left, right = right, left
        return np.asarray((left << shift) | right)
