"""Test ``shard`` by units and by files: the source reads only its share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.errors import PlanError, UDFError
from dml.io.source import Source, Unit
from dml.io.unit_shard import UnitShard
from dml.testing.oracle import Oracle
from dml.testing.source_laws import check_source, everything, id_pairs
from tests.expr.checks import QUIET, agrees, holds, node_of, numbers

ROWS = 7  # of a file


def table(file: int) -> pa.Table:
    first = file * ROWS
    return pa.table({"x": pa.array(range(first, first + ROWS), pa.int64())})


def parquet(folder: Path, files: int) -> dml.Dataset:
    for file in range(files):
        pq.write_table(table(file), folder / f"{file}.parquet", row_group_size=3)
    return dml.read_parquet(folder, atom_rows=2)


def arrow(folder: Path, files: int) -> dml.Dataset:
    for file in range(files):
        with pa.ipc.new_file(folder / f"{file}.arrow", table(file).schema) as sink:
            sink.write_table(table(file), max_chunksize=3)
    return dml.read_arrow(folder, atom_rows=2)


def orc(folder: Path, files: int) -> dml.Dataset:
    for file in range(files):
        pa.orc.write_table(table(file), folder / f"{file}.orc")
    return dml.read_orc(folder, atom_rows=2)


def csv(folder: Path, files: int) -> dml.Dataset:
    for file in range(files):
        rows = "\n".join(map(str, table(file)["x"].to_pylist()))
        (folder / f"{file}.csv").write_text(f"x\n{rows}\n", encoding="utf-8")
    return dml.read_csv(folder, atom_rows=2)


def json(folder: Path, files: int) -> dml.Dataset:
    for file in range(files):
        rows = [f'{{"x": {x}}}' for x in table(file)["x"].to_pylist()]
        (folder / f"{file}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return dml.read_json(folder, atom_rows=2)


def numpy(folder: Path, files: int) -> dml.Dataset:
    for file in range(files):
        values = np.array([(x,) for x in table(file)["x"].to_pylist()], dtype=[("x", "i8")])
        np.save(folder / f"{file}.npy", values)
    return dml.read_numpy(folder, atom_rows=2)


def binary(folder: Path, files: int) -> dml.Dataset:
    for file in range(files):
        (folder / f"{file}.bin").write_bytes(bytes([file]))
    return dml.read_binary_files(folder, atom_rows=2)


FORMATS = [parquet, arrow, orc, csv, json, numpy, binary]
Format = Callable[[Path, int], dml.Dataset]


def source_of(ds: dml.Dataset) -> Source:
    found = node_of(ds).chain()[0]
    assert isinstance(found, Source)
    return found


def rows_of(ds: dml.Dataset) -> list[dict[str, Any]]:
    return list(ds.with_options(**QUIET))


@pytest.mark.parametrize("by", ["units", "files"])
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_shards_have_every_row_once_with_its_id(
    kind: Format, by: str, n: int, tmp_path: Path
) -> None:
    whole = kind(tmp_path, 4)
    block = everything(source_of(whole))
    place = {tuple(each): i for i, each in enumerate(id_pairs(block).tolist())}
    seen: list[int] = []
    for index in range(n):
        part = everything(source_of(whole.shard(n, index, by=by)))
        places = [place[tuple(each)] for each in id_pairs(part).tolist()]
        assert places == sorted(places)
        found = pa.Table.from_batches([part.to_arrow()])
        assert found.equals(
            pa.Table.from_batches([block.to_arrow()]).take(pa.array(places, pa.int64()))
        )
        seen += places
    assert sorted(seen) == list(range(block.n))


@pytest.mark.parametrize("by", ["units", "files"])
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("n", "index"), [(2, 1), (3, 0), (5, 4)])
def test_a_shard_keeps_the_laws_of_sources(
    kind: Format, by: str, n: int, index: int, tmp_path: Path
) -> None:
    source = source_of(kind(tmp_path, 4).shard(n, index, by=by))
    check_source(source, pa.Table.from_batches([everything(source).to_arrow()]))


@pytest.mark.parametrize("n", [1, 2, 3, 11])
def test_shards_of_what_lies_in_memory_keep_the_laws_of_sources(n: int) -> None:
    for whole in (numbers(20), dml.range(0, 20, atom_rows=3), numbers(0)):
        for index in {0, n - 1}:
            source = source_of(whole.shard(n, index, by="units"))
            check_source(source, pa.Table.from_batches([everything(source).to_arrow()]))


class Open(dml.DataSource):
    """Parts of which one does not say how many rows it has."""

    atom_rows = 2

    def schema(self) -> pa.Schema:
        """One column."""
        return pa.schema([("x", pa.int64())])

    def parts(self) -> list[dml.SourcePart]:
        """Three of three rows."""
        counts = [3, None, 3]
        return [dml.SourcePart(str(i), rows=rows) for i, rows in enumerate(counts)]

    def read(self, part: dml.SourcePart, columns: tuple[str, ...]) -> Iterator[Any]:
        """Its rows."""
        first = int(part.name) * 3
        yield pa.table({"x": pa.array(range(first, first + 3), pa.int64())}).select(columns)


@pytest.mark.parametrize(("n", "index"), [(2, 0), (2, 1), (3, 1), (4, 3)])
def test_units_of_unknown_length_are_divided_too(n: int, index: int) -> None:
    source = source_of(dml.read_datasource(Open()).shard(n, index, by="units"))
    check_source(source, pa.Table.from_batches([everything(source).to_arrow()]))
    assert [row["x"] // 3 for row in rows_of(dml.read_datasource(Open()))][::3] == [0, 1, 2]


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.parametrize("by", ["units", "files"])
def test_every_way_of_running_gives_the_rows_of_the_oracle(by: str, tmp_path: Path) -> None:
    ds = parquet(tmp_path, 4)
    part = ds.filter(col("x") % 5 != 2).map(dict).flat_map(lambda row: [row, dict(row)])
    for made in (part.shard(3, 1, by=by), part.map_batches(dict).shard(3, 2, by=by)):
        assert holds(made.with_options(**QUIET).batch(3))
        agrees(made.shuffle(seed=1))
        agrees(made.shuffle(window="atoms", size=2))
        agrees(made.skip(5).take(7))
        agrees(made.shard(2, 1))
    agrees(ds.shard(3, 1, by=by).shuffle(seed=1).take(9))
    agrees(ds.shard(3, 1, by=by).random_map(lambda row, rng: {"u": rng.random(), **row}))
    assert holds(numbers(20).shard(3, 1, by="units").shuffle(seed=2)) == 6


def test_a_row_keeps_its_draws_whatever_shard_it_is_in(tmp_path: Path) -> None:
    whole = parquet(tmp_path, 4).with_columns(u=dml.random(seed=3))
    wanted = {row["x"]: row["u"] for row in rows_of(whole)}
    for by in ("units", "files"):
        parts = [rows_of(whole.shard(3, i, by=by)) for i in range(3)]
        assert {row["x"]: row["u"] for part in parts for row in part} == wanted


@pytest.mark.parametrize("index", [1, 1 << 69])
def test_more_shards_than_any_machine_word(index: int, tmp_path: Path) -> None:
    for by in ("units", "files"):
        ds = parquet(tmp_path, 2).shard(1 << 70, index, by=by)
        agrees(ds.shuffle(seed=1))
        assert len(rows_of(ds)) == (0 if index > 1 else 3 if by == "units" else ROWS)
    source = source_of(numbers(20).shard(1 << 70, index, by="units"))
    check_source(source, pa.Table.from_batches([everything(source).to_arrow()]))


def test_units_go_to_shards_in_turns(tmp_path: Path) -> None:
    ds = parquet(tmp_path, 2)
    units = [[0, 1, 2], [3, 4, 5], [6], [7, 8, 9], [10, 11, 12], [13]]
    for index in range(4):
        found = [row["x"] for row in rows_of(ds.shard(4, index, by="units"))]
        assert found == [x for unit in units[index::4] for x in unit]


@pytest.mark.parametrize("kind", [parquet, arrow, csv, json], ids=lambda kind: kind.__name__)
def test_files_of_other_shards_are_not_opened(
    kind: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = kind(tmp_path, 6).map(lambda row: {"y": row["x"] + 1}).shard(3, 1, by="files")
    names = [Path(path).name for path in part.input_files()]
    assert [name[0] for name in names] == ["1", "4"]
    for path in tmp_path.iterdir():
        if path.name not in names:
            path.unlink()  # whoever opens one now fails
    looked_at: list[str] = []
    plain = os.stat

    def stat(path: Any, **how: Any) -> os.stat_result:
        looked_at.append(str(path))
        return plain(path, **how)

    monkeypatch.setattr(os, "stat", stat)
    assert [row["y"] - 1 for row in rows_of(part)] == [*range(7, 14), *range(28, 35)]
    assert {Path(path).name for path in looked_at if str(tmp_path) in path} <= {*names}


def test_units_of_other_shards_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = parquet(tmp_path, 2)
    kind = type(source_of(ds))
    read: list[int] = []
    plain = kind.read

    def reading(self: Source, unit: Unit, *how: Any) -> Iterator[Any]:
        read.append(unit.index)
        return plain(self, unit, *how)

    monkeypatch.setattr(kind, "read", reading)
    assert len(rows_of(ds.shard(4, 1, by="units"))) == 4
    assert read == [1, 5]


def test_a_part_of_a_part_is_a_smaller_part(tmp_path: Path) -> None:
    ds = parquet(tmp_path, 4)
    twice = ds.shard(2, 1, by="units").shard(3, 2, by="units")
    assert node_of(twice) == node_of(ds.shard(6, 5, by="units"))
    files = ds.shard(2, 1, by="files")
    assert rows_of(files.shard(2, 1, by="files")) == rows_of(ds.shard(4, 3, by="files"))
    assert [row["x"] for row in rows_of(files.shard(3, 2, by="units"))] == [13, 27]


def test_each_shard_has_a_name_of_its_own(tmp_path: Path) -> None:
    ds = parquet(tmp_path, 4)
    made = [ds, *(ds.shard(2, i, by=by) for i in range(2) for by in ("units", "files"))]
    assert len({each.fingerprint() for each in made}) == len(made)
    again = dml.read_parquet(tmp_path, atom_rows=2).shard(2, 1, by="units")
    assert again.fingerprint() == ds.shard(2, 1, by="units").fingerprint()
    assert ".shard(2, 1, by='units')" in again.explain("physical")
    assert "files 1::2" in ds.shard(2, 1, by="files").explain("physical")


def test_an_error_names_the_row_of_the_whole_source(tmp_path: Path) -> None:
    def inverse(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": 1 / (row["x"] - 26)}

    part = parquet(tmp_path, 4).shard(4, 2, by="units")
    for ds in (part.map(inverse), part.shuffle(4).map(inverse)):
        with pytest.raises(UDFError) as found:
            rows_of(ds)
        assert "3.parquet, row group 1" in found.value.at
        assert "row 5" in found.value.at


@pytest.mark.parametrize("by", ["units", "files"])
@pytest.mark.parametrize(
    "step",
    [
        lambda ds: ds.batch(2),
        lambda ds: ds.take(3),
        lambda ds: ds.shuffle(4),
        lambda ds: ds.with_row_index(),
        lambda ds: ds.concat(ds),
        lambda ds: ds.zip(ds.rename(x="y")),
        lambda ds: ds.repeat(2),
        lambda ds: ds.cache(),
        lambda ds: ds.cache(tier="disk"),
        lambda ds: ds.batch(2).map(dict),
    ],
)
def test_what_counts_or_gathers_rows_is_not_crossed(
    by: str, step: Callable[[dml.Dataset], dml.Dataset]
) -> None:
    with pytest.raises(PlanError, match=f"shard by='{by}' divides what one source reads") as found:
        step(numbers()).filter(col("x") > 1).shard(2, 0, by=by)
    assert "lies between a source and the shard" in found.value.why
    assert found.value.try_ == f".shard(2, 0, by='{by}') right behind the source"
    assert "test_unit_shard.py" in found.value.at


def test_refusals() -> None:
    with pytest.raises(PlanError, match="whose files cannot be divided") as found:
        numbers().shard(2, 0, by="files")
    assert "by='units'" in found.value.try_
    with pytest.raises(PlanError, match="shard by='lines'"):
        numbers().shard(2, 0, by="lines")
    for n, index in ((0, 0), (2, 2), (2, -1), (True, 0)):
        for by in ("rows", "units", "files"):
            with pytest.raises(PlanError, match="shard"):
                numbers().shard(n, index, by=by)


def test_the_oracle_has_the_rows_of_a_shard() -> None:
    ds = numbers(10).shard(2, 1, by="units")
    assert isinstance(node_of(ds), UnitShard)
    assert [row["x"] for row in Oracle(node_of(ds)).elements()] == [3, 4, 5, 9]
