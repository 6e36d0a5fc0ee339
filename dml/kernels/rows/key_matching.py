"""Key columns are converted to words and bytes, and an index finds the rows of equal keys.

Null equals null only with ``nulls_equal``; NaN equals NaN, and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dml.kernels.arrow_ops import compute
from dml.kernels.lookup_ops import as_bits
from dml.kernels.rows.ids import GOLDEN, mix64
from dml.kernels.vec import Register, Vec, from_arrow

# Most bytes of the index per row: its place, code, start, count and first row of its key, and its
# part of a table.
INDEX_BYTES = 64
# A table of all codes between the least and the largest is used if it has at most DENSE entries
# for each key, plus FEW.
DENSE, FEW = 4, 4096
# Keys of several columns are compared by a hash of 64 bits; on a collision, which is not expected,
# the hash is changed, at most so many times.
SALTS = 16
BIT_WIDTHS = {32: pa.int32(), 64: pa.int64()}


class Keys(NamedTuple):
    """The keys of ``n`` rows; keys are equal if all their ``words`` (u8) and ``texts`` (bytes) are.

    ``present`` (n,) bool marks the rows that have a key; None: all do.
    """

    n: int
    words: tuple[np.ndarray, ...]
    texts: tuple[pa.Array, ...]
    present: np.ndarray | None

    def take(self, rows: np.ndarray) -> Keys:
        """Return the keys of ``rows``, all of which must have a key."""
        words = tuple(word[rows] for word in self.words)
        texts = tuple(text.take(pa.array(rows)) for text in self.texts)
        return Keys(len(rows), words, texts, None)


def keys_of(columns: Sequence[Register], n: int, *, nulls_equal: bool) -> Keys:
    """Return the keys of ``n`` rows from columns; without columns, all keys are equal.

    Compared columns have the same types: numbers, booleans, text, bytes, decimals, dates and times.
    """
    words, texts, masks = list[np.ndarray](), list[pa.Array](), list[np.ndarray]()
    for column in columns:
        values, valid = _plain(column)
        known = np.ones(n, bool) if valid is None else valid
        if nulls_equal:
            words.append(known.astype("u8"))
        elif valid is not None:
            masks.append(valid)
        if isinstance(values, np.ndarray):
            blank = nulls_equal and valid is not None
            words.append(np.where(known, values, np.uint64(0)) if blank else values)
        else:
            texts.append(values)
    if not columns:
        words.append(np.zeros(n, "u8"))
    present = np.logical_and.reduce(masks) if masks else None
    return Keys(n, tuple(words), tuple(texts), present)


def _plain(column: Register) -> tuple[np.ndarray | pa.Array, np.ndarray | None]:
    """Return words (u8) or bytes that are equal for equal values, and the validity of the rows."""
    if isinstance(column, Vec):
        return as_bits(column.values), column.valid
    kind = column.type
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    if pa.types.is_null(kind):
        return np.zeros(len(column), "u8"), valid
    if pa.types.is_temporal(kind):
        ticks = column.view(BIT_WIDTHS[kind.bit_width])
        return as_bits(from_arrow(ticks).values), valid
    if pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    column = column.cast(pa.binary()) if not pa.types.is_binary(column.type) else column
    column = column.cast(pa.large_binary())
    return (column if valid is None else column.fill_null(b"")), valid


def hashed(keys: Keys, salt: int) -> np.ndarray:
    """Return a hash of each key, (n,) u8; each ``salt`` gives another hash function."""
    found = np.full(keys.n, (salt + 1) * GOLDEN % 2**64, "u8")
    for word in keys.words:
        found = mix64(found ^ word)
    for text in keys.texts:
        found = mix64(found ^ _hashed_text(text, salt))
    return found


def _hashed_text(array: pa.Array, salt: int) -> np.ndarray:
    """Return a hash of each text, (n,) u8: over its bytes, sum random(byte) * random(index)."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, "i8")[array.offset : array.offset + len(array) + 1]
    if len(array) == 0 or data is None:
        return np.zeros(len(array), "u8")
    letters = np.frombuffer(data, "u1")[ends[0] : ends[-1]]
    ends = ends - ends[0]
    lengths = np.diff(ends)
    places = np.arange(len(letters)) - np.repeat(ends[:-1], lengths)
    start = np.uint64((salt + 1) * GOLDEN % 2**64)
    of_place = mix64(np.arange(lengths.max() + 1, dtype="u8") + start) | np.uint64(1)
    of_letter = mix64(np.arange(256, dtype="u8") - start)
    sums = np.zeros(len(letters) + 1, "u8")
    np.cumsum(of_letter[letters] * of_place[places], out=sums[1:])
    return np.asarray(sums[ends[1:]] - sums[ends[:-1]] + lengths.astype("u8"))


def same(one: Keys, two: Keys, rows: np.ndarray) -> np.ndarray:
    """Return a mask, (n,) bool, of the keys i of ``one`` that equal key ``rows[i]`` of ``two``."""
    found = np.ones(one.n, bool)
    for a, b in zip(one.words, two.words, strict=True):
        found &= a == b[rows]
    for a, b in zip(one.texts, two.texts, strict=True):
        equal = compute().equal(a, b.take(pa.array(rows)))
        found &= equal.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    return found


class KeyIndex:
    """An index of row numbers by key; keys are numbered by the order of their codes, integers.

    ``order[starts[g] : starts[g] + counts[g]]`` are the rows of key number g, ascending.
    ``first[g]`` is the first of these rows; if ``single``, every key has only one row.
    """

    def __init__(self, keys: Keys) -> None:
        rows = np.arange(keys.n) if keys.present is None else np.flatnonzero(keys.present)
        known = keys if keys.present is None else keys.take(rows)
        # the hash of one word is a bijection, so it has no collisions
        self.exact = len(known.words) == 1 and not known.texts
        self.least, self.span = _span(known.words[0]) if self.exact else (0, 0)
        self.dense = 0 < self.span <= DENSE * known.n + FEW
        self.salt = 0
        codes, order = self._grouped(known)
        while not (self.exact or self._pure(known, order)) and self.salt < SALTS:
            self.salt += 1
            codes, order = self._grouped(known)
        first = order[self.starts]
        self.keys = None if self.exact else known.take(first)
        self.order, self.first, self.codes = rows[order], rows[first], codes[self.starts]
        self.single = bool((self.counts == 1).all())
        self.table, self.shift = self._build_table()

    def _grouped(self, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
        """Return sorted codes and their rows; set ``starts`` and ``counts`` of each code."""
        codes = self._codes(keys)
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
        new = np.concatenate([np.ones(len(codes[:1]), bool), codes[1:] != codes[:-1]])
        self.starts = np.flatnonzero(new)
        self.counts = np.diff(np.append(self.starts, len(codes)))
        return codes, order

    def _codes(self, keys: Keys) -> np.ndarray:
        """Return a code (n,) u8 for each key: its difference from the least key, or its hash."""
        if self.dense:
            # keys below the least wrap to codes far above the largest
            return np.asarray(keys.words[0] - np.uint64(self.least % 2**64))
        return hashed(keys, self.salt)

    def _pure(self, keys: Keys, order: np.ndarray) -> bool:
        """Return True if all rows with equal codes have equal keys, so that no hash collides."""
        first = np.repeat(order[self.starts], self.counts)
        return bool(same(keys.take(order), keys, first).all())

    def _build_table(self) -> tuple[np.ndarray, np.uint64]:
        """Return a table of key numbers, and the shift from a code to its index in the table.

        A dense table has an entry for each possible code: its key number, or -1. Another table has
        an entry for each prefix of a code: the first key number whose prefix is at least this one.
        """
        number = np.int32 if len(self.codes) < 2**31 else np.int64
        if self.dense:
            table = np.full(self.span + 1, -1, number)
            table[self.codes] = np.arange(len(self.codes))
            return table, np.uint64(0)
        bits = max(1, len(self.codes).bit_length())
        shift = np.uint64(64 - bits)
        heads = np.bincount((self.codes >> shift).view("i8"), minlength=1 << bits)
        return (np.cumsum(heads) - heads).astype(number), shift

    def find(self, keys: Keys) -> np.ndarray:
        """Return the number of each key in this index, (n,) integers; -1 if the key is absent."""
        if not len(self.codes):
            return np.full(keys.n, -1)
        codes = self._codes(keys)
        found = self._dense_found(codes) if self.dense else self._hash_found(codes, keys)
        if keys.present is not None:
            found = np.where(keys.present, found, -1)
        return found

    def _dense_found(self, codes: np.ndarray) -> np.ndarray:
        return np.asarray(self.table[np.minimum(codes, np.uint64(self.span)).view("i8")])

    def _hash_found(self, codes: np.ndarray, keys: Keys) -> np.ndarray:
        """Return key numbers of ``codes``, -1 if unknown: search from the first equal prefix on."""
        last = len(self.codes) - 1
        found = np.minimum(self.table[(codes >> self.shift).view("i8")], last)
        behind = np.flatnonzero((self.codes[found] < codes) & (found < last))
        while len(behind):
            found[behind] += 1
            ahead = found[behind]
            behind = behind[(self.codes[ahead] < codes[behind]) & (ahead < last)]
        equal = self.codes[found] == codes
        if self.keys is not None:
            equal &= same(keys, self.keys, found)
        return np.where(equal, found, -1)


def _span(words: np.ndarray) -> tuple[int, int]:
    """Return the least of ``words``, as signed integers, and greatest - least + 1."""
    if not len(words):
        return 0, 0
    least, most = int(words.view("i8").min()), int(words.view("i8").max())
    return least, most - least + 1
