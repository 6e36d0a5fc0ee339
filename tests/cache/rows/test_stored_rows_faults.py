"""Regression tests of rows that are stored for later runs."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.cache.parts.blobs import PartRows
from dml.cache.rows.row_parts import RowFilling, StoredUnit
from dml.cache.store import health, open_stores
from dml.data.block import Block
from dml.data.id_columns import RUN, WORDS
from dml.errors import UDFError
from dml.io.source import Unit
from dml.kernels.rows.ids import RowIds
from dml.testing import stream_hash
from tests.cache.parts.test_part_fill import Loading
from tests.cache.rows.test_stored_rows import EACH, GROUPS, ROWS, data

__all__ = ["data"]

FACTOR = 10


def halves(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": row["x"] if row["x"] < 200 else row["x"] + 0.5}


def kinds(ds: Dataset) -> list[str]:
    return [str(batch["y"].dtype) for batch in ds.batch(EACH)]


def kept(ds: Dataset, tmp_path: Path, **options: Any) -> Dataset:
    return ds.with_options(cache_dir=str(tmp_path / "kept"), executor="sync", **options)


@pytest.mark.law
def test_types_are_those_of_the_rows_that_this_run_reads_first(data: Path, tmp_path: Path) -> None:
    """Whichever rows were first for the run that stored them."""
    ds = dml.read_parquet(data).map(halves)
    cached = kept(ds.cache(tier="disk"), tmp_path)
    assert set(kinds(ds.take(100))) == {"int64"}
    other = 0
    for seed in range(6):  # in some of these orders the first rows are floats
        try:
            other += "float64" in kinds(cached.shuffle(window="atoms", seed=seed))
        except UDFError:
            continue
    assert other
    assert set(kinds(cached.take(100))) == {"int64"}
    with pytest.raises(UDFError, match="settled as int64"):
        kinds(cached)


class Scaled:
    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"y": row["x"] + FACTOR}


@pytest.mark.law
def test_a_class_is_named_by_what_it_is_when_it_runs(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def job() -> Dataset:
        return kept(dml.read_parquet(data).map(Scaled).cache(tier="disk"), tmp_path)

    written_before = job()
    with monkeypatch.context() as patch:
        patch.setattr("tests.cache.rows.test_stored_rows_faults.FACTOR", 11)
        assert written_before.take_rows(1) == [{"y": 11}]
        list(written_before)
    assert job().take_rows(1) == [{"y": 10}]


def block(n: int) -> Block:
    columns = pa.record_batch({"x": pa.array(np.arange(n))})
    return Block.from_arrow(columns, RowIds.run(1, 0, n))


def filling() -> tuple[RowFilling, Any]:
    part: Any = SimpleNamespace(resting=False, add=lambda _: None, drop=lambda: None)
    return RowFilling(part, Unit(0, 0, 2, 20, 10, 100), RUN, 0), part


def test_who_makes_a_part_rests_wherever_it_is_not_at_work() -> None:
    """Others of the process wait for one that works: in the end for itself."""
    made, part = filling()
    atom = made.passing(iter([block(3), block(2)]))
    assert [part.resting for _ in atom] == [True, True]
    assert part.resting, "what stands above may go on with the atom for long"
    working: list[bool] = []

    def below() -> Any:
        working.append(part.resting)
        yield block(1)

    list(made.passing(below()))
    assert working == [False]


def test_blocks_of_a_part_are_made_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a run over a large unit would hold all of it, unpacked."""
    batch = pa.record_batch({"x": [1, 2]})
    unit = Unit(0, 0, 3, 6, 2, 100)
    about = {"unit": [3, 6, 2], "atoms": [1, 0, 2], "ids": WORDS[RUN], "schemas": {}, "own": []}
    rows = PartRows([(batch, (2,))] * 3, {**about, "blocks": [[2, 7, 0], [2, 7, 2], [2, 7, 4]]})
    found = StoredUnit.of(rows, unit)
    assert found is not None
    seen: list[int] = []
    made = Block.from_arrow

    def counted(rows: pa.RecordBatch, ids: RowIds, *schema: Any) -> Block:
        seen.append(rows.num_rows)
        return made(rows, ids, *schema)

    monkeypatch.setattr(Block, "from_arrow", counted)
    atoms = found.atoms(0)
    assert len(next(atoms)) == len(seen) == 1
    assert [len(each) for each in atoms] == [0, 2]
    assert [len(each) for each in found.atoms(2)] == [2]


def test_columns_of_maps_are_found_again(tmp_path: Path) -> None:
    """Arrow gives their fields other names when it reads them."""
    path = tmp_path / "m.parquet"
    maps = pa.array([[("a", i)] for i in range(100)], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"m": maps}), path, row_group_size=50)
    ds = kept(dml.read_parquet(path).cache(tier="disk"), tmp_path)
    wanted = dml.read_parquet(path).to_arrow()
    for _ in range(3):
        assert ds.to_arrow() == wanted
    assert not list((tmp_path / "kept").rglob("tomb.*")), "nothing was taken for damaged"


@pytest.mark.law
def test_what_errors_have_cost_is_not_stored(data: Path, tmp_path: Path) -> None:
    """It may be there the next time, or for others."""
    down = tmp_path / "down"
    down.touch()

    def fetched(row: dict[str, Any]) -> dict[str, Any]:
        if row["x"] % 2 and row["x"] < 200 and down.exists():
            raise OSError("network is down")
        return row

    ds = dml.read_parquet(data).map(fetched, on_error="skip", fingerprint="fetched")
    ds = kept(ds.cache(tier="disk"), tmp_path)
    assert ds.count() == ROWS - 100
    assert ds.cache_status()[0].parts == GROUPS - 4
    down.unlink()
    assert ds.count() == ROWS


def test_two_snapshots_of_one_pipeline_are_both_written(data: Path, tmp_path: Path) -> None:
    ds = dml.read_parquet(data).with_columns(y=col("x") + 1)
    both = ds.snapshot(tmp_path / "a").concat(ds.snapshot(tmp_path / "b"))
    assert kept(both, tmp_path).count() == 2 * ROWS
    for name in "ab":
        assert len(list((tmp_path / name).rglob("*.arrow"))) == GROUPS


@pytest.mark.law
def test_a_child_can_open_stores_whatever_its_parent_did(tmp_path: Path) -> None:
    with open_stores._LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that others have left
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            found = open_stores.store_at(open_stores.Where(str(tmp_path))).part("ab" * 16, 0)
            os._exit(0 if found is None else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_part_whose_ids_are_written_otherwise_is_not_read() -> None:
    unit = Unit(0, 0, 3, 6, 2, 100)
    about = {"unit": [3, 6, 2], "atoms": [1], "schemas": {}, "own": [], "blocks": [[2, 7, 0]]}
    rows = [(pa.record_batch({"x": [1, 2]}), (2,))]
    assert StoredUnit.of(PartRows(rows, {**about, "ids": "run"}), unit) is not None, (
        "the word stays"
    )
    assert StoredUnit.of(PartRows(rows, {**about, "ids": 0}), unit) is None
    assert StoredUnit.of(PartRows(rows, about), unit) is None


def test_a_store_that_failed_is_tried_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "kept"
    root.mkdir()
    (root / "store").write_text("in the way")
    ds = kept(dml.read_parquet(data).cache(tier="disk"), tmp_path)
    with pytest.warns(health.StoreWarning):
        assert ds.count() == ROWS
    (root / "store").unlink()
    assert ds.count() == ROWS
    assert not list(root.rglob("*.arrow")), "not yet"
    monkeypatch.setattr(open_stores, "RETRY_S", 0.0)
    assert ds.count() == ROWS
    assert ds.cache_status()[0].parts == GROUPS


def test_parts_in_memory_are_what_the_memory_number_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store gives a part as a whole: one that does not fit is computed."""
    monkeypatch.setattr("dml.cache.store.open_stores.Disk", Loading)
    path, log = tmp_path / "x.parquet", tmp_path / "log"
    pq.write_table(pa.table({"x": np.arange(24)}), path, row_group_size=12)

    def large(row: dict[str, Any]) -> dict[str, Any]:
        with open(str(log), "a") as file:
            file.write(".")
        return {"x": np.full(1 << 20, row["x"] % 100, np.uint8)}

    ds = dml.read_parquet(path).map(large, fingerprint="large").cache(tier="disk").batch(1)
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"), executor="sync", verify="off")
    seen = []
    for limit in ("1GiB", "1GiB", "16MiB", "16MiB", "1GiB"):
        rows = [int(batch["x"][0, 0]) for batch in ds.with_options(memory_limit=limit)]
        assert rows == list(range(24))
        seen.append(log.stat().st_size)
    assert seen == [24, 24, 48, 72, 72]


def test_what_was_loaded_counts_while_a_unit_is_open(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dml.cache.store.open_stores.Disk", Loading)
    ds = kept(dml.read_parquet(data).map(Scaled).cache(tier="disk"), tmp_path)
    told: list[int] = []
    monkeypatch.setattr("dml.exec.tasks.task.Parked.hold", lambda _, nbytes: told.append(nbytes))
    for _ in range(2):
        list(ds.with_options(executor="sync"))
    sizes = [path.stat().st_size for path in (tmp_path / "kept").rglob("blobs/*.arrow")]
    assert sorted(told) == sorted(sizes)


@pytest.mark.parametrize("form", ["padded_batch", "ragged_batch"])
def test_lists_that_are_shown_as_arrays_are_shown_so_when_they_were_stored(
    tmp_path: Path, form: str
) -> None:
    path = tmp_path / "lists.parquet"
    lists = [[n] * (n % 4) for n in range(20)]
    pq.write_table(pa.table({"n": lists}), path, row_group_size=8)
    made = getattr(dml.read_parquet(path), form)(3)
    wanted = stream_hash(iter(made))
    ds = kept(made.cache(tier="disk"), tmp_path, verify="off")
    for _ in range(3):
        assert stream_hash(iter(ds)) == wanted
