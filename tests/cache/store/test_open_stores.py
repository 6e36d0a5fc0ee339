"""Test that a process opens one store for each place."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from dml.cache.eviction.uses import PartUses
from dml.cache.parts.parts import PartSource, StoreWarning
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.cache.store.open_stores import Where, store_at
from tests.cache.store.fills import FP, batch, made


def test_a_process_has_one_store_for_each_place(tmp_path: Path) -> None:
    where = Where(str(tmp_path / "root"))
    store = store_at(where)
    assert store_at(Where(str(tmp_path / "root"))) is store
    assert store_at(Where(str(tmp_path / "root"), "team")) is not store
    assert store_at(Where(str(tmp_path / "root"), quota_bytes=1)) is not store
    assert made(store, [batch(0)]) is PartSource.MADE
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
        store.close()


READS = """
import os, sys
from dml.cache.store.open_stores import Where, store_at
store = store_at(Where(sys.argv[1]))
for _ in range(3):
    assert store.part(sys.argv[2], 0) is not None
if sys.argv[3] == "forks":
    child = os.fork()
    if not child:
        sys.exit()  # as a program does, with what is registered for the end
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.law
@pytest.mark.parametrize("ends", ["plainly", "forks", "gone"])
def test_what_a_process_used_is_told_when_it_ends(tmp_path: Path, ends: str) -> None:
    where = Where(str(tmp_path / "root"))
    assert made(store_at(where), [batch(0)]) is PartSource.MADE
    removes = "import shutil; shutil.rmtree(sys.argv[1])" if ends == "gone" else ""
    program = [sys.executable, "-c", READS + removes, where.root, FP, ends]
    run = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60)
    assert run.stderr == ""
    if ends == "gone":
        assert not Path(where.root).exists()
        return
    disk = Disk(where.root, layout.namespace(where.namespace))
    assert len(disk.names(layout.USES)) == 1, "of a process that used it"
    assert PartUses(disk).gathered()[0][FP, 0].count == pytest.approx(3, abs=0.1)


def test_who_has_used_nothing_says_nothing_at_its_end(tmp_path: Path) -> None:
    store = store_at(Where(str(tmp_path / "root")))
    assert store.part(FP, 0) is None
    store.close()
    assert not list((tmp_path / "root").rglob("*.json"))
    assert made(store, [batch(0)]) is PartSource.MADE
    store.close()
    (told,) = (tmp_path / "root").rglob(f"{layout.USES}/*.json")
    seen = told.stat().st_mtime_ns
    store.close()
    assert told.stat().st_mtime_ns == seen, "there was nothing new to say"
