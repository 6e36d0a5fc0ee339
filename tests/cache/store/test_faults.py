"""Test failing stores: rows are computed without the store, with one warning."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from dml.cache.parts import mapped_blob
from dml.cache.parts.parts import PartSource, PartStore, StoreWarning
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import UnusableError, UnwritableError
from dml.errors import CacheError
from tests.cache.elements.kept_cases import failing_from
from tests.cache.store.fills import FOUND, find, get

FP, PARTS = "ab" * 16, 4
CODES = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EMFILE]


def rows(part: int) -> pa.Table:
    return pa.table({"x": range(part, part + 100)})


def run(store: PartStore) -> list[PartSource | str]:
    """Ask for all parts; where each came from."""
    sources = []
    for part in range(PARTS):
        got = get(store, FP, part, lambda part=part: rows(part))  # type: ignore[misc]
        assert got.table.equals(rows(part))
        sources.append(got.source)
    return sources


def warned(store: PartStore) -> tuple[list[PartSource | str], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sources = run(store)
    assert all(each.category is StoreWarning for each in caught)
    return sources, [str(each.message) for each in caught]


@pytest.mark.law
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["write", "link", "replace"])
def test_every_nth_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    for nth in range(0, 40, 3):
        store = PartStore(Disk(tmp_path / str(nth), "v1/shared"))
        with monkeypatch.context() as patch:
            calls = failing_from(patch, call, nth, code)
            sources, said = warned(store)
        failed = len(calls) > nth
        assert len(said) == failed
        assert (PartSource.UNKEPT in sources) == failed
        if failed:
            assert isinstance(store.standing.unwritable, UnwritableError)
            assert os.strerror(code) in said[0]
            first = sources.index(PartSource.UNKEPT)
            assert set(sources[first:]) == {PartSource.UNKEPT}, "what failed is tried again"
        assert store.place.names("tmp") == []
        found = PartStore(Disk(tmp_path / str(nth), "v1/shared"))
        kept = [part for part in range(PARTS) if find(found, FP, part) is not None]
        assert kept == [part for part, each in enumerate(sources) if each is PartSource.MADE]


@pytest.mark.parametrize("call", ["scandir", "preadv", "fstat"])
def test_reads_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    run(PartStore(Disk(tmp_path, "v1/shared")))
    monkeypatch.setattr(mapped_blob, "_advised", lambda: lambda *_: -1)  # else little is read
    for nth in range(4):
        store = PartStore(Disk(tmp_path, "v1/shared"))
        with monkeypatch.context() as patch:
            calls = failing_from(patch, call, nth, errno.EIO)
            sources, said = warned(store)
        failed = len(calls) > nth
        assert (len(said), PartSource.UNKEPT in sources) == (failed, failed)
        assert isinstance(store.standing.unusable, UnusableError) == failed
    assert run(PartStore(Disk(tmp_path, "v1/shared"))) == [FOUND] * PARTS


def test_a_read_only_root_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(PartStore(Disk(tmp_path, "v1/shared")))
    shutil.rmtree(next((tmp_path / "v1/shared/e/ab").iterdir()) / "0" / "part.1.0.json", True)
    (next((tmp_path / "v1/shared/e/ab").iterdir()) / "0" / "part.1.0.json").unlink()
    store = PartStore(Disk(tmp_path, "v1/shared"))

    def refused(self: Disk) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Disk, "_fresh", refused)
    sources, said = warned(store)
    assert sources == [FOUND, PartSource.UNKEPT, FOUND, FOUND]
    assert len(said) == 1
    assert "Read-only file system" in said[0]


def test_a_damaged_part_of_a_read_only_root_is_made_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(PartStore(Disk(tmp_path, "v1/shared")))
    blob = next((tmp_path / "v1/shared/blobs").iterdir())
    blob.write_bytes(bytes(blob.stat().st_size))

    def refused(self: Disk) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Disk, "_fresh", refused)
    sources, said = warned(PartStore(Disk(tmp_path, "v1/shared")))
    assert [each for each in sources if each != FOUND] == [PartSource.UNKEPT]
    assert len(sources) == 4
    assert len(said) == 1


@pytest.mark.parametrize("when", range(PARTS))
def test_a_root_that_vanishes_while_parts_are_made(tmp_path: Path, when: int) -> None:
    store, sources = PartStore(Disk(tmp_path / "root", "v1/shared")), list[PartSource | str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for part in range(PARTS):

            def compute(part: int = part) -> pa.Table:
                if part == when:
                    shutil.rmtree(tmp_path / "root")
                return rows(part)

            got = get(store, FP, part, compute)
            assert got.table.equals(rows(part))
            sources.append(got.source)
    assert sources == [PartSource.MADE] * when + [PartSource.UNKEPT] * (PARTS - when)
    assert [each.category for each in caught] == [StoreWarning]
    assert not (tmp_path / "root").exists()


def test_a_store_that_is_gone_does_not_hide_what_a_function_raises(tmp_path: Path) -> None:
    store = PartStore(Disk(tmp_path / "root", "v1/shared"))

    def compute() -> pa.Table:
        raise UnusableError("another store")

    with pytest.raises(CacheError, match="another store"):
        get(store, FP, 0, compute)
    assert store.standing.unusable is None


@pytest.mark.law
def test_a_function_is_called_once_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in ("write", "link", "replace", "scandir", "utime"):
        for nth in range(8):
            store, made = PartStore(Disk(tmp_path / f"{call}{nth}", "v1/shared")), list[int]()

            def compute(made: list[int] = made) -> pa.Table:
                made.append(1)
                return rows(0)

            with monkeypatch.context() as patch, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                failing_from(patch, call, nth, errno.EIO)
                assert get(store, FP, 0, compute).table.equals(rows(0))
            assert len(made) == 1


def test_what_is_said_has_four_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PartStore(Disk(tmp_path, "v1/shared"))
    failing_from(monkeypatch, "write", 0, errno.ENOSPC)
    _, (said,) = warned(store)
    assert said.splitlines()[0] == "the run goes on without the store: the store cannot be written"
    assert str(tmp_path) in said
    assert "No space left on device" in said
    assert "a smaller quota" in said


def test_looking_into_a_store_that_fails_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PartStore(Disk(tmp_path, "v1/shared"))
    assert find(store, FP, 0) is None
    failing_from(monkeypatch, "scandir", 0, errno.EIO)
    with pytest.warns(StoreWarning):
        assert find(store, FP, 0) is None
    assert find(store, FP, 0) is None, "and it is not asked again"
