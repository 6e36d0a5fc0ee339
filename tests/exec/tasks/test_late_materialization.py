"""Test late materialization: counts, values, positions, damaged files, memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.api.dataset import Dataset
from dml.data.block import Block
from dml.errors import SourceError
from dml.exec.tasks import unit_reader
from dml.io.parquet.parquet import ParquetSource
from dml.io.source import Unit

ROWS, GROUP, GROUPS = 20_000, 500, 40
OFF = {"disable_rules": ["filter_columns_first"]}
COLUMNS = ("k", *(f"c{i}" for i in range(8)), "t")


def table() -> pa.Table:
    """Keys in no order, each there once: statistics rule out no row group."""
    draw = np.random.default_rng(0)
    columns = {f"c{i}": draw.random(ROWS) for i in range(8)}
    text = [f"row {i}" for i in range(ROWS)]
    return pa.table({"k": draw.permutation(ROWS), **columns, "t": text})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("late")
    pq.write_table(table(), made / "a.parquet", row_group_size=GROUP, write_page_checksum=True)
    return made


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[str]]:
    """The columns that each row group was asked for beside those of the filter."""
    seen: dict[int, set[str]] = {}
    read = ParquetSource.read

    def counted(
        self: ParquetSource, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0
    ) -> Iterator[Block]:
        seen.setdefault(unit.index, set()).update(columns)
        return read(self, unit, columns, skip_atoms)

    monkeypatch.setattr(ParquetSource, "read", counted)
    return seen


def rows(folder: Path, **options: Any) -> Dataset:
    return dml.read_parquet(folder).with_options(telemetry_dir="off", **options)


def holding(key: int) -> int:
    """The row group that ``key`` is in."""
    return int(np.flatnonzero(table()["k"].to_numpy() == key)[0]) // GROUP


def source_of(ds: Dataset) -> Any:
    for _ in ds.batch(64):
        pass
    batched = ds.batch(64)
    list(batched)
    return batched.stats().records[0]


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_only_row_groups_with_a_row_that_passes_are_decoded(
    folder: Path, decoded: dict[int, set[str]], executor: str
) -> None:
    ds = rows(folder, executor=executor).filter(dml.col("k").is_in([7, 9000, 12_345]))
    found = ds.to_arrow()
    holders = {holding(key) for key in (7, 9000, 12_345)}
    assert {unit for unit, names in decoded.items() if names != {"k"}} == holders
    assert len(decoded) == GROUPS
    assert found.num_rows == 3
    assert found.equals(ds.with_options(**OFF).to_arrow())


@pytest.mark.law
def test_a_filter_that_many_rows_pass_costs_two_atoms_more(
    folder: Path, decoded: dict[int, set[str]]
) -> None:
    looks: list[int] = []
    looked_at = unit_reader.Late._looked_at

    def counted(self: unit_reader.Late, unit: Unit, skip_atoms: int) -> tuple[bool, int, int]:
        if self.first == ("c0",):  # a run of another test may end meanwhile
            looks.append(unit.index)
        return looked_at(self, unit, skip_atoms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_reader.Late, "_looked_at", counted)
        ds = rows(folder).filter(dml.col("c0") < 0.5)
        assert ds.to_arrow().equals(ds.with_options(**OFF).to_arrow())
        ds.to_arrow()  # known from the first time
    assert len(looks) == 2
    assert all(names == set(COLUMNS) for names in decoded.values())


@pytest.mark.law
def test_narrow_others_few_groups_and_fallible_parts_are_read_at_once(
    folder: Path, tmp_path: Path, decoded: dict[int, set[str]]
) -> None:
    few = tmp_path / "few"
    few.mkdir()
    pq.write_table(table(), few / "a.parquet", row_group_size=ROWS // 14)
    point = dml.col("k") == 9000
    narrow = rows(folder).filter(point).select("k", "c0")
    several = rows(few).filter(point)
    failing = rows(folder).filter(dml.col("k").cast(pa.int32()) == 9000)
    for ds in (narrow, several, failing):
        decoded.clear()
        assert ds.to_arrow().num_rows == 1
        assert len({frozenset(names) for names in decoded.values()}) == 1
    assert "tries units" not in failing.explain("physical")
    assert "tries units by k first" in narrow.explain("physical")
    assert "tries units" not in narrow.with_options(**OFF).explain("physical")


@pytest.mark.law
def test_what_was_spared_is_counted(folder: Path) -> None:
    ds = rows(folder).filter(dml.col("k") == 9000)
    with_, without = source_of(ds), source_of(ds.with_options(**OFF))
    source = ds._node.chain()[0]
    assert isinstance(source, ParquetSource)
    units = [source.unit(i) for i in range(GROUPS) if i != holding(9000)]
    others = COLUMNS[1:]
    assert with_["spared_bytes"] == sum(source.stored_bytes(unit, others) for unit in units)
    assert without["spared_bytes"] == 0
    assert with_["rows_out"] == without["rows_out"] == ROWS


@pytest.mark.law
def test_ids_and_places_are_the_same(folder: Path) -> None:
    keys = list(range(0, ROWS, ROWS // 9))
    ds = rows(folder).filter(dml.col("k").is_in(keys)).with_columns(i=dml.row_id())
    whole = list(ds.with_options(**OFF))
    assert [repr(row) for row in ds] == [repr(row) for row in whole]
    run = iter(ds)
    for place in range(len(whole)):
        again = iter(ds)
        again.load_state_dict(run.state_dict())
        assert [repr(row) for row in again] == [repr(row) for row in whole[place:]]
        next(run)


@pytest.mark.law
def test_self_verifying_runs_find_nothing(folder: Path) -> None:
    ds = rows(folder, verify="sample").filter(dml.col("k") < 3).shuffle(seed=1).batch(2)
    found = [batch["k"].tolist() for batch in ds]
    assert found == [batch["k"].tolist() for batch in ds.epoch(0).with_options(verify="off")]


def damaged(folder: Path, column: int, group: int, tmp_path: Path) -> Path:
    """A copy in which one byte of one column chunk is another."""
    data = bytearray((folder / "a.parquet").read_bytes())
    chunk = pq.read_metadata(folder / "a.parquet").row_group(group).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start + chunk.total_compressed_size - 3] ^= 0xFF
    (tmp_path / "a.parquet").write_bytes(bytes(data))
    return tmp_path


@pytest.mark.law
def test_damage_is_told_where_it_is_read(folder: Path, tmp_path: Path) -> None:
    spared = (holding(9000) + 1) % GROUPS
    broken = damaged(folder, 3, spared, tmp_path)
    ds = rows(broken).filter(dml.col("k") == 9000)
    assert ds.to_arrow().num_rows == 1
    with pytest.raises(SourceError, match=f"row group {spared}"):
        ds.with_options(**OFF).to_arrow()
    first = damaged(folder, 0, spared, tmp_path)
    with pytest.raises(SourceError, match=f"column 'k' of row group {spared}"):
        rows(first).filter(dml.col("k") == 9000).to_arrow()


@pytest.mark.cluster
def test_worker_processes_decide_the_same(folder: Path) -> None:
    ds = rows(folder).filter(dml.col("k") == 9000)
    apart = ds.with_options(executor="processes", num_workers=2)
    assert apart.to_arrow().equals(ds.to_arrow())
    assert source_of(apart)["spared_bytes"] == source_of(ds)["spared_bytes"]
