"""Test the operations of a store, which must be the same on disks and in object stores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dml.cache.store import layout
from dml.cache.store.bucket import Bucket
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import OvertakenError, StorePlace, UnusableError, UnwritableError


def test_the_first_to_make_a_name_has_it(place: StorePlace) -> None:
    assert place.get("a/b") is None
    assert place.put_if_absent("a/b", b"first")
    assert not place.put_if_absent("a/b", b"second")
    assert place.get("a/b") == b"first"


def test_of_many_who_make_a_name_one_is_first(opened: Callable[[], StorePlace]) -> None:
    places, won = [opened() for _ in range(6)], list[int]()
    for turn in range(5):
        gate = threading.Barrier(len(places))

        def make(number: int, gate: threading.Barrier = gate, turn: int = turn) -> None:
            gate.wait()
            if places[number].put_if_absent(f"e/{turn}", str(number).encode()):
                won.append(number)

        threads = [threading.Thread(target=make, args=(i,)) for i in range(len(places))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(won) == turn + 1
        assert places[0].get(f"e/{turn}") == str(won[-1]).encode()
    assert places[0].names("tmp") == []


def test_names_are_those_that_are_there(place: StorePlace) -> None:
    assert place.names("e") == []
    for name in ("e/a/0/x", "e/a/y", "e/b/z", "other/x"):
        place.put(name, b"12345")
    assert sorted(place.names("e")) == ["a/0/x", "a/y", "b/z"]
    assert sorted(place.names("e/a")) == ["0/x", "y"]
    place.delete("e/a/0/x")
    place.delete("e/a/0/x")
    assert sorted(place.names("e")) == ["a/y", "b/z"]
    assert {(each.name, each.size) for each in place.list_files("e")} == {("a/y", 5), ("b/z", 5)}
    assert all(abs(each.age_s) < 60 for each in place.list_files("e"))
    assert place.names("tmp") == []


def test_who_looks_at_names_and_ages_writes_nothing(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put("e/a", b"12345")

    def refused(*_: object) -> None:
        raise AssertionError("something is written")

    monkeypatch.setattr(Disk, "_fresh", refused)
    monkeypatch.setattr(Bucket, "put", refused)
    (found,) = place.list_files("e", looking=True)
    assert (found.name, found.size) == ("a", 5)
    assert abs(found.age_s) < 60
    with pytest.raises(AssertionError, match="something is written"):
        place.list_files("e")


def test_a_name_of_ones_own_may_be_put_again(place: StorePlace) -> None:
    place.put("uses/me", b"1")
    place.put("uses/me", b"")
    assert place.get("uses/me") == b""


def test_a_write_that_fails_leaves_nothing(place: StorePlace) -> None:
    sink = place.begin("blobs/x")
    sink.write(b"begun")
    sink.drop()
    sink.drop()
    assert place.get("blobs/x") is None
    assert place.names("") == []


def test_every_beat_is_another_stamp(place: StorePlace) -> None:
    assert place.stamp("lease") is None
    assert not place.beat("lease")
    place.put("lease", b"me")
    seen = {place.stamp("lease")}
    while len(seen) < 3:  # a disk's clock ticks every few milliseconds
        assert place.beat("lease")
        seen.add(place.stamp("lease"))
    assert place.names("") == ["lease"]


def test_what_was_fetched_stays_readable_when_its_name_is_gone(place: StorePlace) -> None:
    place.put("blobs/x", b"rows" * 100_000)
    blob = place.fetch("blobs/x")
    assert blob is not None
    place.delete("blobs/x")
    assert bytes(blob.piece(0, blob.size)) == b"rows" * 100_000
    assert blob.buffer().to_pybytes() == b"rows" * 100_000
    assert place.fetch("blobs/x") is None


def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    a, b = (Disk(tmp_path, layout.namespace(name)) for name in ("a", "b"))
    a.put("blobs/x", b"mine")
    assert b.names("") == []
    assert b.get("blobs/x") is None


def test_a_root_that_vanishes_is_never_made_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "root", "v1/shared")
    disk.put("a", b"1")
    (tmp_path / "root").rename(tmp_path / "away")
    for ask in (
        lambda: disk.put("a", b"2"),
        lambda: disk.put_if_absent("b", b"2"),
        lambda: disk.get("a"),
        lambda: disk.fetch("a"),
        lambda: disk.names("e"),
        lambda: disk.list_files("e"),
    ):
        with pytest.raises(UnusableError):
            ask()
    assert not (tmp_path / "root").exists()


def test_nothing_is_written_to_what_was_mounted_over_the_root(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "root", "v1/shared")
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").mkdir()
    with pytest.raises(UnusableError, match="cannot be written"):
        disk.put("a", b"2")
    with pytest.raises(UnusableError, match="cannot be read"):
        disk.get("a")
    assert list((tmp_path / "root").iterdir()) == []


def test_who_slept_until_the_temporary_file_was_cleared_is_told(tmp_path: Path) -> None:
    disk = Disk(tmp_path, "v1/shared")
    writing = disk.begin("blobs/x")
    writing.write(b"rows")
    for name in disk.names("tmp"):
        disk.delete(f"tmp/{name}")
    with pytest.raises(OvertakenError):
        writing.finish()
    assert disk.names("") == []


def test_a_root_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnusableError) as caught:
        Disk(tmp_path / "file" / "root", "v1/shared")
    assert caught.value.at
    assert caught.value.why
    assert caught.value.try_


def test_stores_without_conditional_puts_are_refused() -> None:
    with pytest.raises(UnusableError, match="memory:// cannot keep parts"):
        Bucket("memory://bucket", "v1/shared")


@pytest.mark.cluster
def test_a_bucket_that_is_not_there_is_said(
    bucket_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Bucket("s3://no-such-bucket/root", "v1/shared", bucket_options)
    with pytest.raises(UnusableError, match="does not exist") as caught:
        gone.put("a", b"1")
    assert bucket_options["key"] not in str(caught.value)


@pytest.mark.cluster
def test_a_put_that_meets_another_is_made_again(
    bucket_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dml.io.stores import stores

    pauses, answers = list[float](), [409, 409]
    monkeypatch.setattr(stores, "pause", pauses.append)
    place = Bucket("s3://keeping/conflicts", "v1/shared", bucket_options)
    put = place._system.pipe_file

    def conflicting(*args: object, **options: object) -> object:
        if answers:
            error = OSError(16, "busy")
            error.__cause__ = Exception("conflict")
            error.__cause__.response = {"Error": {"Code": str(answers.pop())}}  # type: ignore[attr-defined]
            raise error
        return put(*args, **options)

    monkeypatch.setattr(place._system, "pipe_file", conflicting)
    assert place.put_if_absent("a", b"1")
    assert len(pauses) == 2
    assert not place.put_if_absent("a", b"2")


def test_the_errors_of_writing_leave_reading_alone() -> None:
    assert issubclass(UnwritableError, UnusableError)
    assert issubclass(OvertakenError, UnwritableError)
