"""This file says what all bytes of a blob are known by, so that threads can check it together.

It is xxh3 of the digests of its pieces of 4 MiB.
"""

from __future__ import annotations

import xxhash

HASH = "xxh3_128/4MiB"  # the only one so far; a record that names another is a newer one
PIECE_BYTES = 4 << 20


class Digest:
    """The digest of bytes that come one after the other."""

    def __init__(self) -> None:
        self._whole, self._piece, self._room = xxhash.xxh3_128(), xxhash.xxh3_128(), PIECE_BYTES

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes that follow those before."""
        left = memoryview(data)
        while left:
            taken, left = left[: self._room], left[self._room :]
            self._piece.update(taken)
            self._room -= len(taken)
            if not self._room:
                self._end()

    def hexdigest(self) -> str:
        """Of all of them; no more may come."""
        if self._room < PIECE_BYTES:
            self._end()
        return self._whole.hexdigest()

    def _end(self) -> None:
        self._whole.update(self._piece.digest())
        self._piece, self._room = xxhash.xxh3_128(), PIECE_BYTES
