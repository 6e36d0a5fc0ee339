"""Columns of text and bytes are hashed by xxh64, all values of one length at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

PRIME_1 = np.uint64(0x9E3779B185EBCA87)
PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
PRIME_3 = np.uint64(0x165667B19E3779F9)
PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
PRIME_5 = np.uint64(0x27D4EB2F165667C5)

# xxh64's stripe in bytes; values of this length or more are hashed one by one by the library.
STRIPE = 32
# For fewer rows of one length, a library call per row is faster than the steps for all rows.
FEW = 16
# First rows that are tested for repeated values: if many repeat, each distinct one is hashed once.
SAMPLE = 4096
# Rows that go through the steps together, so that intermediate values stay in the cache.
TOGETHER = 8192


def hash_bytes(array: pa.Array, seed: int) -> tuple[np.ndarray, pa.Array | None]:
    """Return xxh64 hashes, u8, and the index of each row's hash; None if row i has hash i.

    If many values repeat, only distinct values are hashed. The hash of a null is meaningless.
    ``array`` has text or bytes, with offsets of any width.
    """
    sample = array.slice(0, SAMPLE)
    if len(sample.unique()) * 2 > len(sample):
        return _hashed(array, seed), None
    encoded = array.dictionary_encode()
    return _hashed(encoded.dictionary, seed), encoded.indices


def _hashed(array: pa.Array, seed: int) -> np.ndarray:
    data, starts, lengths = _laid_out(array)
    out = np.empty(len(starts), "u8")
    order = np.argsort(np.minimum(lengths, STRIPE).astype("u1"), kind="stable")
    counts = np.bincount(np.minimum(lengths, STRIPE), minlength=STRIPE + 1)
    ends = np.cumsum(counts)
    for length in np.flatnonzero(counts).tolist():
        alike = order[ends[length] - counts[length] : ends[length]]
        for first in range(0, len(alike), TOGETHER):
            rows = alike[first : first + TOGETHER]
            if length == STRIPE or len(rows) < FEW:
                out[rows] = _one_by_one(data, starts[rows], lengths[rows], seed)
            else:
                out[rows] = _of_one_length(data, starts[rows], length, seed)
    return out


def _laid_out(array: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the bytes, padded by eight, and the start and length of each value."""
    offset, n = array.offset, len(array)
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        starts = np.arange(offset, offset + n, dtype="i8") * width
        lengths = np.full(n, width, "i8")
    else:
        wide = array.type in (pa.large_string(), pa.large_binary())
        edges = np.zeros(n + 1, "i8")
        if (found := array.buffers()[1]) is not None:
            edges[:] = np.frombuffer(found, "i8" if wide else "i4")[offset : offset + n + 1]
        starts, lengths = edges[:-1], np.diff(edges)
    low, high = (int(starts[0]), int(starts[-1] + lengths[-1])) if n else (0, 0)
    data = np.zeros(high - low + 8, "u1")
    if high > low:
        data[:-8] = np.frombuffer(array.buffers()[-1], "u1")[low:high]
    return data, starts - low, lengths


def _one_by_one(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, seed: int) -> np.ndarray:
    view = memoryview(data.data)
    spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.array([xxhash.xxh64_intdigest(view[a:b], seed) for a, b in spans], "u8")


def _of_one_length(data: np.ndarray, starts: np.ndarray, length: int, seed: int) -> np.ndarray:
    """Return xxh64 of values of ``length`` bytes, below 32; each step of it runs over all rows."""
    total = np.full(len(starts), (seed + int(PRIME_5) + length) % 2**64, "u8")
    for at in range(0, length - 7, 8):
        word = _loaded(data, starts + at, "<u8") * PRIME_2
        total ^= _turned(word, 31) * PRIME_1
        total = _turned(total, 27) * PRIME_1 + PRIME_4
    if length & 4:
        total ^= _loaded(data, starts + (length & ~7), "<u4") * PRIME_1
        total = _turned(total, 23) * PRIME_2 + PRIME_3
    for at in range(length & ~3, length):
        total ^= _loaded(data, starts + at, "u1") * PRIME_5
        total = _turned(total, 11) * PRIME_1
    total = (total ^ (total >> np.uint64(33))) * PRIME_2
    total = (total ^ (total >> np.uint64(29))) * PRIME_3
    return np.asarray(total ^ (total >> np.uint64(32)))


def _loaded(data: np.ndarray, places: np.ndarray, kind: str) -> np.ndarray:
    """Load the number at each place, as u8, through an overlapping view at every byte."""
    size = np.dtype(kind).itemsize
    everywhere = np.ndarray((len(data) - size + 1,), kind, data, strides=(1,))
    return np.asarray(everywhere[places].astype("u8", copy=False))


def _turned(values: np.ndarray, by: int) -> np.ndarray:
    """Rotate the bits of each value to the left."""
    return np.asarray((values << np.uint64(by)) | (values >> np.uint64(64 - by)))
