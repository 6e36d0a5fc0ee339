"""Kill a writer at each of its steps, and let many writers make the same part."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dml.cache.eviction.janitor import sweep
from dml.cache.parts.parts import PartSource, PartStore
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from tests.cache.store.fills import find, get

FP = "ab" * 16
STEPS = ("write", "link", "replace", "unlink", "rmdir", "mkdir", "scandir", "open")


class Killed(BaseException):
    """The process ends here: nothing that it would still do is done."""


def rows() -> pa.Table:
    return pa.table({"x": range(1000)})


def killed_at(patch: pytest.MonkeyPatch, step: int) -> list[str]:
    """From its ``step``-th call of the system on, nothing happens any more."""
    done = list[str]()

    def ending(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if len(done) >= step:
                raise Killed
            done.append(name)
            return real(*args, **options)

        return call

    for name in STEPS:
        patch.setattr(os, name, ending(name, getattr(os, name)))
    return done


@pytest.mark.law
def test_a_writer_killed_at_any_step_leaves_nothing_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, ended = 0, False
    while not ended:
        root = tmp_path / str(step)
        disk = Disk(root, "v1/shared")
        store = PartStore(disk, quota_bytes=1 << 20, ttl_s=60)
        with monkeypatch.context() as patch:
            done = killed_at(patch, step)
            try:
                assert get(store, FP, 0, rows).source is PartSource.MADE
            except Killed:
                assert len(done) == step
            else:
                ended = True
        found = find(PartStore(Disk(root, "v1/shared")), FP, 0)
        assert found is None or found == rows()
        # the dead are not waited for: nobody beats for the ttl
        after = PartStore(disk, quota_bytes=1 << 20, ttl_s=0.2)
        assert get(after, FP, 0, rows).table.equals(rows())
        # who stands still for longer than that, on a busy machine, may have kept nothing
        patient = PartStore(disk, quota_bytes=1 << 20, ttl_s=60)
        assert get(patient, FP, 0, rows).table.equals(rows())
        sweep(disk, ttl_s=-60, grace_s=-60)
        assert disk.names("tmp") == []
        assert disk.names("announced") == [] or found is not None
        assert len(disk.names("blobs")) <= 1
        assert find(PartStore(disk), FP, 0) == rows()
        step += 1
    assert step > 30, "fewer steps than a part takes"


@pytest.mark.law
def test_sixteen_writers_of_one_part(
    tmp_path: Path, sampled: Callable[[Iterable[int], int], list[int]]
) -> None:
    for turn in sampled(range(100), 8):
        root, made, got = tmp_path / str(turn), list[int](), list[pa.Table]()
        gate = threading.Barrier(16)

        def ask(root: Path = root, gate: threading.Barrier = gate) -> None:
            store = PartStore(Disk(root, "v1/shared"), ttl_s=20)

            def compute() -> pa.Table:
                made.append(1)  # noqa: B023 - every turn ends before the next begins
                return rows()

            gate.wait()
            got.append(get(store, FP, 0, compute).table)  # noqa: B023 - as above

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(made) == 1
        assert len(got) == 16
        assert all(table.equals(rows()) for table in got)
        disk = Disk(root, "v1/shared")
        assert len(disk.names("blobs")) == 1
        parts = [name for name in disk.names(layout.ENTRIES) if "/part." in name]
        assert len(parts) == 1
