"""This file tests the stores that a process has open: one for each place."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from dml.exec.store.opened import Where, store_at
from dml.exec.store.parts import Source, StoreWarning
from tests.exec.store.fills import FP, batch, made


def test_a_process_has_one_store_for_each_place(tmp_path: Path) -> None:
    where = Where(str(tmp_path / "root"))
    store = store_at(where)
    assert store_at(Where(str(tmp_path / "root"))) is store
    assert store_at(Where(str(tmp_path / "root"), "team")) is not store
    assert store_at(Where(str(tmp_path / "root"), quota_bytes=1)) is not store
    assert made(store, [batch(0)]) is Source.MADE
    assert (tmp_path / "root/v1/default/blobs").is_dir()
    assert store_at(Where(str(tmp_path / "root"), "team")).part(FP, 0) is None
    assert store_at(Where(str(tmp_path / "root"), quota_bytes=1 << 20)).part(FP, 0) is not None


def test_a_place_that_cannot_be_opened_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.warns(StoreWarning, match="goes on without the store"):
        store = store_at(Where(str(tmp_path / "file" / "root")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store_at(Where(str(tmp_path / "file" / "root"))) is store
        assert store.part(FP, 0) is None
        assert store.fill(FP, 0) is None
        store.describe(FP, {})
        assert store.described(FP) is None
        assert store.manifest(FP) is None
        assert not store.finish(FP, 0)
        store.close()
