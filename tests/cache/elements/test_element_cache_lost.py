"""Test caches on disk that other processes began, or whose parts are lost or damaged."""

from __future__ import annotations

import errno
import random
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.cache.parts.parts import StoreWarning
from tests.cache.elements.kept_cases import (
    ROWS,
    Logged,
    begun,
    failing_from,
    given_by,
    logged,
    parts_of,
    places,
    small_parts,
)
from tests.expr.checks import numbers

__all__ = ["small_parts"]
pytestmark = pytest.mark.usefixtures("small_parts")


@pytest.mark.cluster
def test_a_killed_run_leaves_its_half_to_the_next_process(tmp_path: Path) -> None:
    assert given_by(begun(tmp_path, 300, dies=150)) == []
    calls = Logged(tmp_path / "calls")
    before = calls.calls
    assert 150 < before < 300
    found = given_by(begun(tmp_path, 300))
    assert sorted(found) == list(range(300))
    after = calls.calls
    # the part that was lost, and the window of the shuffle that was open
    assert after - before <= 300 - 150 + 30 + 14
    assert given_by(begun(tmp_path, 300)) == found
    assert calls.calls == after


@pytest.mark.cluster
def test_two_processes_at_once_make_every_row_about_once(tmp_path: Path) -> None:
    runs = [begun(tmp_path, 600) for _ in range(2)]
    one, other = map(given_by, runs)
    assert one == other
    assert sorted(one) == list(range(600))
    assert Logged(tmp_path / "calls").calls < 600 * 1.2


@pytest.mark.sample(2)
@pytest.mark.law
@pytest.mark.parametrize("how", ["gone", "damaged"])
@pytest.mark.parametrize("batched", [False, True])
def test_parts_that_are_lost_are_made_again(tmp_path: Path, how: str, *, batched: bool) -> None:
    draw = random.Random(how)
    for turn in range(4):
        root = tmp_path / str(turn)
        ds, fn = logged(root, executor="sync", prefetch=0)
        cached = (ds.batch(4) if batched else ds).cache("disk")

        def rows(cached: dml.Dataset = cached) -> list[int]:
            return [int(x) for each in cached for x in np.atleast_1d(each["x"])]

        whole, before = rows(), fn.calls
        files = parts_of(root)
        lost = draw.sample(files, draw.randint(1, 3))
        for file in lost:
            if how == "gone":
                file.unlink()
            else:
                data = bytearray(file.read_bytes())
                data[len(data) // 2] ^= 1
                file.write_bytes(data)
        assert rows() == whole
        # The rest stays where it is. Rows around each lost part are read again for it.
        assert set(files) - set(lost) <= set(parts_of(root))
        after = fn.calls
        assert before < after < before + ROWS * len(lost)
        assert rows() == whole
        assert fn.calls == after


@pytest.mark.law
def test_what_goes_while_a_run_reads_is_made_again_from_there(tmp_path: Path) -> None:
    ds, fn = logged(tmp_path, executor="sync", prefetch=0)
    cached = ds.cache("disk")
    whole, before = places(cached), fn.calls
    files = parts_of(tmp_path)
    for gone in (0, 3, len(files) - 1):
        run = iter(cached)
        found = [next(run)["x"] for _ in range(20)]
        state = run.state_dict()
        for file in parts_of(tmp_path)[gone:]:
            file.unlink()
        assert [*found, *(row["x"] for row in run)] == whole
        again = iter(cached)
        again.load_state_dict(state)
        assert [*found, *(row["x"] for row in again)] == whole
        assert places(cached) == whole
    assert before < fn.calls < 5 * ROWS


@pytest.mark.law
def test_a_store_that_goes_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    ds, _ = logged(tmp_path, executor="sync", prefetch=0)
    cached = ds.cache("disk")
    run = iter(cached)
    found = [next(run)["x"] for _ in range(40)]
    shutil.rmtree(tmp_path / "store")
    with pytest.warns(StoreWarning, match="goes on without the store"):
        found += [row["x"] for row in run]
    assert sorted(found) == list(range(ROWS))
    assert places(cached) == found


# ------------------------------------------------------------------------------- stores that fail


@pytest.mark.sample(10)
@pytest.mark.law
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("nth", [0, 3, 20])
@pytest.mark.parametrize("call", ["open", "write", "link"])
def test_a_disk_that_fails_costs_a_warning_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int, code: int
) -> None:
    ds, fn = logged(tmp_path, executor="sync", prefetch=0)
    fn.path = tmp_path.parent / f"{tmp_path.name}.calls"
    cached = ds.cache("disk")
    with warnings.catch_warnings(record=True) as caught, monkeypatch.context() as patch:
        warnings.simplefilter("always")
        calls = failing_from(patch, call, nth, code)
        found = places(cached)
        assert places(cached) == found
    assert sorted(found) == list(range(ROWS))
    said = [each for each in caught if each.category is StoreWarning]
    assert len(said) == (1 if len(calls) > nth else 0)
    assert {each.category for each in caught} <= {StoreWarning}


@pytest.mark.law
def test_a_quota_is_kept_and_a_part_of_the_stream_with_it(tmp_path: Path) -> None:
    ds, fn = logged(tmp_path, executor="sync", prefetch=0, cache_quota=8000)
    cached = ds.cache("disk")
    found = places(cached)
    for _ in range(3):
        assert places(cached) == found
        assert sum(file.stat().st_size for file in parts_of(tmp_path)) <= 8000
    assert ROWS < fn.calls < 4 * ROWS


# --------------------------------------------------------------------------------------- by name


def test_what_has_no_name_that_lasts_is_not_kept(tmp_path: Path) -> None:
    lock = threading.Lock()

    def work(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return {"x": row["x"], "s": "a"}

    ds = numbers().map(work).shuffle(3, seed=1).with_options(cache_dir=str(tmp_path))
    with pytest.warns(UserWarning, match="has no fingerprint"):
        assert sorted(places(ds.cache("disk"))) == list(range(10))
    assert not (tmp_path / "store").exists() or not parts_of(tmp_path)


@pytest.mark.law
def test_equal_work_in_other_words_is_found_and_other_work_is_not(tmp_path: Path) -> None:
    fn, x = Logged(tmp_path / "calls"), dml.col("x")

    def cached(*parts: dml.Column) -> dml.Dataset:
        ds = numbers(ROWS)
        for part in parts:
            ds = ds.filter(part)
        ds = ds.map(fn, fingerprint="logged").shuffle(7, seed=1).cache("disk")
        return ds.with_options(cache_dir=str(tmp_path), executor="sync", prefetch=0)

    found, before = places(cached(x >= 3, x < 90)), fn.calls
    assert len(found) == 87
    assert places(cached(x < 90, x >= 3)) == found
    assert places(cached((x < 90) & (x >= 3)).with_options(target_partition_bytes="1MiB")) == found
    assert fn.calls == before
    assert len(places(cached(x < 91, x >= 3))) == 88
    assert fn.calls == before + 88


@pytest.mark.law
def test_a_driver_in_a_process_of_its_own_keeps_there(tmp_path: Path) -> None:
    ds, fn = logged(tmp_path, executor="threads")
    cached = ds.cache("disk").with_options(driver="process")
    found = places(cached)
    assert places(cached) == found
    assert places(cached.with_options(driver="here")) == found
    assert fn.calls == ROWS
