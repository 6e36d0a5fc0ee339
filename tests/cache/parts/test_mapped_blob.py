"""Test blobs that are read by mapping, or by read calls where the system requires it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.parts import blob_digest, mapped_blob
from dml.cache.parts.mapped_blob import Mapped
from dml.cache.store.primitives import Fetched, UnusableError


@pytest.fixture(params=["mapped", "read"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether pages are mapped, or read as on a system that cannot bring them."""
    if request.param == "read":
        monkeypatch.setattr(mapped_blob, "_advised", lambda: lambda *_: -1)
    return str(request.param)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.usefixtures("way")
def test_every_piece_is_what_was_written(tmp_path: Path) -> None:
    data = os.urandom(3 * 4096 + 17)
    (tmp_path / "x").write_bytes(data)
    blob = Mapped(tmp_path / "x")
    assert blob.size == len(data)
    for start in (0, 4096, 8192, 12288):
        for count in (1, 4096, 5000):
            assert bytes(blob.piece(start, count)) == data[start : start + count]
    assert blob.buffer().to_pybytes() == data


def test_the_system_brings_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it can, which the system of these tests can: else every check would copy."""
    (tmp_path / "x").write_bytes(bytes(1 << 20))

    def refused(*_: object) -> int:
        raise AssertionError("it was read")

    monkeypatch.setattr(os, "preadv", refused)
    assert bytes(Mapped(tmp_path / "x").piece(0, 1 << 20)) == bytes(1 << 20)


def test_rows_hold_no_handles(tmp_path: Path) -> None:
    """A process has some thousand handles, and may hold rows of more parts than that."""
    kept = []
    for number in range(40):
        (tmp_path / str(number)).write_bytes(bytes(5000))
        kept.append(Mapped(tmp_path / str(number)).buffer())
        (tmp_path / str(number)).unlink()
    assert [each for each in open_files() if str(tmp_path) in each] == []
    assert all(each.to_pybytes() == bytes(5000) for each in kept)


def open_files() -> list[str]:
    """What handles of this process point to; other threads close some meanwhile."""
    found = list[str]()
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{each}"))
    return found


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that cannot be brought are read, and reading says why."""
    (tmp_path / "x").write_bytes(bytes(1 << 20))

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(mapped_blob, "_advised", lambda: lambda *_: -1)
    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(UnusableError, match="cannot be read"):
        blob_digest.of_blob(Mapped(tmp_path / "x"))


@given(data=st.binary(max_size=2000), size=st.integers(1, 99), threads=st.integers(1, 5))
def test_threads_say_what_one_says(data: bytes, size: int, threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blob_digest, "PIECE_BYTES", size)
        patch.setattr(blob_digest, "THREADS", threads)
        patch.setattr(blob_digest, "THREAD_PIECES", 1)
        patch.setattr(os, "cpu_count", lambda: 8)
        told = b"".join(map(xxhash.xxh3_128_digest, pieces(data, size)))
        assert blob_digest.of_blob(Fetched(data)) == xxhash.xxh3_128_hexdigest(told)


def test_what_fails_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Fetched):
        def piece(self, start: int, count: int) -> memoryview:
            if start == 70:
                raise UnusableError("the disk fails")
            return super().piece(start, count)

    monkeypatch.setattr(blob_digest, "PIECE_BYTES", 10)
    monkeypatch.setattr(blob_digest, "THREAD_PIECES", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for _ in range(20):
        with pytest.raises(UnusableError, match="the disk fails"):
            blob_digest.of_blob(Failing(bytes(100)))
