"""The oracle computes row ids, random draws and permutations, one row at a time."""

from __future__ import annotations

import hashlib

_M = 1 << 64
_G = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """SplitMix64's finaliser."""
    value %= _M
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % _M
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % _M
    return value ^ (value >> 31)


def source_key(name: str) -> int:
    """Return the high half of the ids of a source's rows."""
    digest = hashlib.blake2b(name.encode("utf-8"), digest_size=8).digest()
    return sum(byte << 8 * place for place, byte in enumerate(digest))


def derive(hi: int, lo: int, a: int, b: int) -> tuple[int, int]:
    """Return the id of the row that is derived from row (hi, lo) with the key (a, b)."""
    lo = (lo + mix64(hi ^ mix64(a + _G))) % _M
    hi = (hi + mix64(lo ^ mix64(b + 2 * _G))) % _M
    return hi, lo


def row_key(hi: int, lo: int, seed: int, ordinal: int, epoch: int) -> int:
    """Return the key of a row's random draws."""
    stream = mix64(seed * _G + ordinal * 0xD1B54A32D192ED03 + epoch * 0x8CB92BA72F3D8DD7 + 1)
    return mix64(lo ^ mix64(hi ^ stream))


def uniform(key: int, draw: int = 0) -> float:
    """Return a draw in [0, 1) for a row's key."""
    return (mix64(key + (draw + 1) * _G) >> 11) / (1 << 53)


def window_permutation(window_key: int, n: int) -> list[int]:
    """Return the order of a shuffled window of n elements."""
    return sorted(range(n), key=lambda i: (mix64(window_key + (i + 1) * _G), i))


def index_permutation(n: int, key: int, place: int) -> int:
    """Return the index of the element at a place of the full shuffle of n elements."""
    if n <= 4096:
        return window_permutation(key, n)[place]
    half = 1
    while 4**half < n:
        half += 1
    while True:
        left, right = divmod(place, 2**half)
        for turn in range(1, 9):
            mixed = mix64(right + mix64(key + turn * _G)) % 2**half
            left, right = right, left ^ mixed
        place = left * 2**half + right
        if place < n:
            return place
