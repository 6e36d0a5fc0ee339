"""Test failures while a part is written: rows are delivered, with one warning and no leftovers."""

from __future__ import annotations

import errno
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dml.cache.parts.parts import PartFilling, PartSource, PartStore, StoreWarning
from dml.cache.store import bucket
from dml.cache.store.bucket import Bucket, Multipart
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import StorePlace
from dml.io.stores.store_errors import AbsentError
from tests.cache.elements.kept_cases import failing_from
from tests.cache.parts.test_part_fill import Loading
from tests.cache.store.fills import FP, batch, filling, made, same


@pytest.fixture
def said() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def stores(caught: list[warnings.WarningMessage]) -> int:
    return sum(each.category is StoreWarning for each in caught)


def filled_while(store: PartStore, call: str, nth: int, code: int) -> tuple[PartSource, bool]:
    """Fill a part while a call of the system fails from its nth on; whether it did."""
    with pytest.MonkeyPatch.context() as patch:
        calls = failing_from(patch, call, nth, code)
        found, source = store.fill(FP, 0), PartSource.UNKEPT
        if isinstance(found, PartFilling):
            for start in range(3):
                found.add(batch(start, 20_000))
            source = found.commit()
    return source, len(calls) > nth


@pytest.mark.law
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["write", "open", "link", "replace"])
def test_a_disk_that_fails_in_the_middle_costs_a_warning(
    tmp_path: Path, said: list[warnings.WarningMessage], call: str, code: int
) -> None:
    """From any write on, and from any naming on."""
    for nth in range(99):
        store, before = PartStore(Disk(tmp_path / str(nth), "v1/shared")), stores(said)
        source, failed = filled_while(store, call, nth, code)
        assert stores(said) - before == failed
        assert (source is PartSource.UNKEPT) == failed
        assert (store.part(FP, 0) is None) == failed
        assert store.place.names("tmp") == []
        if not failed:
            break
    assert 0 < nth < 98, "the last one did not fail"


@pytest.mark.law
def test_a_filling_whose_file_was_cleared_away_keeps_nothing(
    opened: Callable[[], StorePlace], said: list[warnings.WarningMessage]
) -> None:
    store, called = PartStore(opened()), Multipart._called

    def gone(self: Multipart, method: str, **options: Any) -> Any:
        if method == "upload_part":  # as S3 answers; the server here fails instead
            raise AbsentError("no such upload", at="here", why="it was ended", try_="another")
        return called(self, method, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket, "PART_BYTES", 5 << 20)
        found = filling(store)
        for _ in range(3):
            found.add(batch(0, 200_000))
        assert store.place.clear(-3600.0) == 1
        patch.setattr(Multipart, "_called", gone)
        found.add(batch(0, 400_000))
        found.add(batch(0, 400_000))
        assert found.commit() is PartSource.UNKEPT
    assert opened().names("blobs") == []
    assert made(store, [batch(0)]) is PartSource.MADE
    assert stores(said) == 0


@pytest.mark.sample(1)
@pytest.mark.law
def test_large_parts_come_back_from_a_bucket(
    opened: Callable[[], StorePlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "PART_BYTES", 5 << 20)
    batches = [batch(start, 300_000) for start in range(4)]
    assert made(PartStore(opened()), batches) is PartSource.MADE
    assert same(PartStore(opened()).part(FP, 0), batches)
    left = filling(PartStore(opened()), FP, 1)
    for each in batches:
        left.add(each)
    left.drop()
    assert opened().clear(-3600.0) == 0


@pytest.mark.law
def test_only_what_is_not_finished_is_ended(
    opened: Callable[[], StorePlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[str]()
    monkeypatch.setattr(bucket, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(bucket, "ended", lambda *upload: ended.append(upload[1]["Key"]))
    one = batch(0, 900_000)
    assert made(PartStore(opened()), [one]) is PartSource.MADE
    gc.collect()
    assert ended == []
    left = filling(PartStore(opened()), FP, 1)
    left.add(one)
    left.drop()
    assert len(ended) == (type(opened()) is Bucket)


def test_who_collects_what_others_forgot_does_not_wait(tmp_path: Path) -> None:
    """Its answer may be what an object store waits for; a thread that made it waits."""
    asking, answered, ended = list[int](), threading.Event(), threading.Event()

    class Far(Loading):
        def delete(self, name: str) -> None:
            asking.append(threading.get_ident())
            answered.wait(60.0 * (asking[-1] != threading.main_thread().ident))
            super().delete(name)
            ended.set()

    store, left = PartStore(Far(tmp_path, "v1/shared")), list[PartFilling]()
    elsewhere = threading.Thread(target=lambda: left.append(filling(store)))
    elsewhere.start()
    elsewhere.join()
    left.clear()
    gc.collect()
    answered.set()
    assert ended.wait(60.0)
    assert asking[0] != threading.main_thread().ident
    filling(store)
    gc.collect()
    assert asking[-1] == threading.main_thread().ident, "who forgets its own ends it at once"
    assert store.place.names("") == []
