"""Compute the digest of a blob in pieces, so that several threads can check one blob.

The digest is xxh3 of the digests of pieces of 4 MiB. Pieces are also written one by one, at
multiples of their size: the system caches such writes in large pages, and maps these at once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import xxhash

from dml.cache.store.primitives import Fetched

HASH = "xxh3_128/4MiB"  # the only digest so far; a record that names another is newer
PIECE_BYTES = 4 << 20
THREADS, THREAD_PIECES = 4, 4  # most threads, and least pieces for each: a thread has a cost


def digest(pieces: bytes) -> str:
    """Return the digest of a blob from the concatenated digests of its pieces."""
    return xxhash.xxh3_128_hexdigest(pieces)


def of_piece(data: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of a piece."""
    return xxhash.xxh3_128_digest(data)


def of_blob(blob: Fetched) -> str:
    """Return the digest of all bytes of a blob, computed by several threads if it is large."""
    starts = range(0, blob.size, PIECE_BYTES)
    threads = min(THREADS, os.cpu_count() or 1, len(starts) // THREAD_PIECES)

    def digest_at(start: int) -> bytes:
        return of_piece(blob.piece(start, min(PIECE_BYTES, blob.size - start)))

    if threads < 2:
        return digest(b"".join(map(digest_at, starts)))
    with ThreadPoolExecutor(threads, "dml-check") as pool:
        return digest(b"".join(pool.map(digest_at, starts)))
