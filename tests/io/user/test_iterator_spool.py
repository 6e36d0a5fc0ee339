"""Test rows of iterators: consumed once, spooled to a file, removed with the last reference."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import pickle
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.data.schema import schema_of
from dml.errors import FingerprintError, SourceError
from dml.io.user import iterator_spool
from dml.io.user.iterator_spool import FOLDER, Spooled, UnansweredError, ask, iterated
from dml.io.user.user_source import read_datasource
from dml.testing.source_laws import check_source
from tests.cluster.dask_cases import eventually

ROWS = st.lists(st.fixed_dictionaries({"i": st.none() | st.integers(0, 9), "s": st.text()}))
KINDS = {"i": pa.int64(), "s": pa.string()}


def source_of(rows: Any, each: int | None = None, schema: Any = None) -> Any:
    return read_datasource(iterated(rows, schema, nonce=b"n", atom_rows=each), b"n")


@pytest.mark.law
@given(ROWS, st.integers(1, 5))
def test_rows_of_an_iterator_keep_all_laws(rows: list[dict[str, Any]], each: int) -> None:
    want = pa.table({name: pa.array([r[name] for r in rows], k) for name, k in KINDS.items()})
    check_source(source_of(iter(rows), each, KINDS), want)
    check_source(source_of(rows, each, KINDS), want)


def test_rows_are_pulled_once_and_as_far_as_needed() -> None:
    pulled: list[int] = []

    def rows() -> Iterator[int]:
        for i in itertools.count():
            pulled.append(i)
            yield i

    ds = dml.from_iterable(rows(), atom_rows=4).with_options(executor="sync")
    assert pulled == [0]  # the type
    assert [row["item"] for row in ds.take(6)] == list(range(6))
    assert pulled == list(range(8))
    assert [row["item"] for row in ds.skip(2).take(8)] == list(range(2, 10))
    assert [row["item"] for row in ds.take(3)] == [0, 1, 2]
    assert pulled == list(range(12))


def test_two_readers_share_the_rows() -> None:
    ds = dml.from_iterable(iter(range(30)), atom_rows=4)
    both = ds.zip(ds.map(lambda row: {"other": row["item"] * 2}))
    assert [row["other"] for row in both] == list(range(0, 60, 2))


@pytest.mark.law
def test_the_file_goes_with_the_last_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # others have theirs where it was
    ds = dml.from_iterable(iter(range(30))).with_options(executor="sync")
    assert len(list(ds)) == 30
    assert [each.name[: len(FOLDER)] for each in tmp_path.iterdir()] == [FOLDER]
    kept = ds.map(lambda row: {"y": row["item"]})
    del ds
    gc.collect()
    assert kept.count() == 30
    del kept
    # not by one collection: it does nothing while another thread is at one
    assert eventually(lambda: not list(tmp_path.iterdir()))


def test_what_the_iterator_raises_stays_at_its_place() -> None:
    def rows() -> Iterator[int]:
        yield from range(5)
        raise ValueError("broken")

    ds = dml.from_iterable(rows(), atom_rows=2).with_options(executor="sync")
    for _ in range(2):
        made = iter(ds)
        assert [next(made)["item"] for _ in range(5)] == list(range(5))
        with pytest.raises(SourceError, match="raised ValueError at row 5: broken"):
            next(made)


@pytest.mark.law
def test_a_copy_reads_the_file_of_the_first() -> None:
    first = Spooled(iter(range(10)), None, 3)
    copy = pickle.loads(pickle.dumps(first))
    assert [b.num_rows for b in copy.read(copy.parts()[0], ("item",))] == [3, 3, 3, 1]
    del first
    # whoever has just answered the copy may hold it for a moment
    assert eventually(lambda: not os.path.exists(copy.spool._path))
    with pytest.raises(SourceError, match="cannot be read"):
        next(copy.read(copy.parts()[0], ("item",)))


class OddError(Exception):
    """Cannot be unpacked: what is packed is not what it is made of."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@pytest.mark.law
@pytest.mark.parametrize("error", [ValueError("broken"), ConnectionError("broken"), OddError(1, 2)])
def test_a_copy_gets_what_the_iterator_raises(error: Exception) -> None:
    def rows() -> Iterator[int]:
        yield from range(4)
        raise error

    first = Spooled(rows(), schema_of({"item": "int64"}), 3)
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(first))))
    made = copy.read(copy.parts()[0], ("item",))
    assert [next(made).num_rows for _ in range(2)] == [3, 1]
    with pytest.raises(Exception, match=str(error)) as caught:
        next(made)
    assert type(caught.value) is (RuntimeError if isinstance(error, OddError) else type(error))


@pytest.mark.law
def test_a_copy_makes_the_first_pull_no_more_than_it_needs() -> None:
    pulled: list[int] = []

    def rows() -> Iterator[int]:
        for number in itertools.count():
            pulled.append(number)
            yield number

    first = Spooled(rows(), schema_of({"item": "int64"}), 3)
    copy = pickle.loads(pickle.dumps(first))
    made = copy.read(copy.parts()[0], ("item",))
    assert [next(made).num_rows for _ in range(2)] == [3, 3]
    assert len(pulled) == 6


@pytest.mark.cluster
def test_worker_processes_read_what_is_endless() -> None:
    ds = dml.from_iterable(itertools.count(), atom_rows=8)
    got = ds.with_options(executor="processes", num_workers=2)
    for _ in range(2):
        assert [row["item"] for row in got.take(20)] == list(range(20))
    assert next(iter(got.batch(5)))["item"].tolist() == list(range(5))


# libraries that other tests have loaded speak against a fork
@pytest.mark.law
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fork_neither_pulls_nor_removes() -> None:
    ds = dml.from_iterable(iter(range(20)), atom_rows=4).with_options(executor="sync")
    assert [row["item"] for row in ds.take(4)] == [0, 1, 2, 3]
    child = os.fork()
    if not child:  # pragma: no cover - the other process
        code = 1
        with suppress(SourceError):
            ds.count()
            code = 2
        gc.collect()
        os._exit(0 if code == 1 else code)
    assert os.waitpid(child, 0)[1] == 0
    assert ds.count() == 20


def test_a_full_disk_is_an_error_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = dml.from_iterable(iter(range(20)), atom_rows=4).with_options(executor="sync")
    full = functools.partial(open, "/dev/full", "ab")
    monkeypatch.setattr(iterator_spool, "open", lambda *_, **__: full(), raising=False)
    for _ in range(2):
        with pytest.raises(SourceError, match="could not be kept") as caught:
            list(ds)
        assert "No space left" in caught.value.why


@pytest.mark.cluster
def test_worker_processes_read_the_file() -> None:
    ds = dml.from_iterable(iter(range(50)), atom_rows=8).map(lambda r: {"y": r["item"] * 2})
    got = ds.with_options(executor="processes", num_workers=2)
    assert [row["y"] for row in got] == list(range(0, 100, 2))


def test_the_name_is_for_this_run() -> None:
    for rows in (iter([1]), [1]):
        with pytest.raises(FingerprintError):
            dml.from_iterable(rows).fingerprint()
    assert "gives its rows once" in dml.from_iterable(iter([1])).explain("physical")


@pytest.mark.parametrize("stranger", [3, "text", b"bytes", {"x": [1]}, None])
def test_what_gives_no_rows_is_refused(stranger: Any) -> None:
    with pytest.raises(SourceError, match="from_iterable needs rows"):
        dml.from_iterable(stranger)


def test_no_rows_need_a_schema() -> None:
    with pytest.raises(SourceError, match="gave no rows"):
        dml.from_iterable(iter(()))
    assert dml.from_iterable(iter(()), {"x": "int64"}).count() == 0


def test_who_connects_and_says_nothing_holds_up_nobody() -> None:
    first = Spooled(iter(range(50)), None, 10)
    copy = pickle.loads(pickle.dumps(first.spool))
    address = copy._asked[0]
    silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for each in silent:
        each.connect(address)
    rows = [copy.batch(number).num_rows for number in range(5)]
    assert rows == [10] * 5
    for each in silent:
        each.close()


def test_who_does_not_know_the_key_gets_no_answer() -> None:
    first = Spooled(iter(range(50)), None, 10)
    copy = pickle.loads(pickle.dumps(first.spool))
    with pytest.raises(UnansweredError):
        ask(copy._asked[0], b"another key", 0)
    assert copy.batch(0).num_rows == 10


@pytest.mark.parametrize("name", ["short", "long" * 40])
def test_no_other_user_can_connect(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    before = os.umask(0)
    try:
        first = Spooled(iter(range(50)), None, 10)
        copy = pickle.loads(pickle.dumps(first.spool))
        assert copy.batch(0).num_rows == 10
    finally:
        os.umask(before)
    folder = Path(copy._asked[0]).parent
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.getuid())
    made = {Path(copy._asked[0]), Path(copy._path)}
    assert {path.stat().st_mode & 0o777 for path in made} == {0o600}
    del first
    assert eventually(lambda: not folder.exists())
