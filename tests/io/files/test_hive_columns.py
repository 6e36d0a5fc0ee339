"""Test columns from paths: their types, files that filters leave unopened, pyarrow as a peer."""

from __future__ import annotations

import datetime as dt
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import orc as pa_orc

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.errors import DmlError, NullValueError, PlanError, SchemaError, SourceError
from dml.io.parquet.parquet import read_parquet
from dml.io.source import Source
from dml.testing.source_laws import check_other_process, check_same_data, check_source, everything
from tests.expr.checks import QUIET, agrees, holds, node_of
from tests.io.counted_store import CountedStore, counted, noted, uploaded

__all__ = ["counted"]

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def put(root: Path, name: str, **columns: Any) -> Path:
    """A Parquet file ``name`` below ``root``, one row group for three rows; gives the root."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return root


def folders(root: Path, *names: str) -> Path:
    """A file of one row in each folder; ``x`` counts them."""
    for number, name in enumerate(names):
        put(root, f"{name}/part-0.parquet", x=[number])
    return root


def years(root: Path) -> Path:
    """Three years in two folders each, two files in each of these, four rows in each of these."""
    for number in range(12):
        name = f"year={2020 + number // 4}/c={'ab'[number // 2 % 2]}/part-{number % 2}.parquet"
        put(root, name, x=range(4 * number, 4 * number + 4), y=["t"] * 4)
    return root


def rows_of(ds: dml.Dataset) -> list[dict[str, Any]]:
    return list(ds.with_options(**QUIET).to_arrow().to_pylist())


def source_of(ds: dml.Dataset) -> Source:
    found = node_of(ds).chain()[0]
    assert isinstance(found, Source)
    return found


def values(ds: dml.Dataset, column: str) -> list[Any]:
    return [row[column] for row in rows_of(ds.select(column))]


# ------------------------------------------------------------------------------------------- types


def test_keys_are_columns_behind_those_of_the_files(tmp_path: Path) -> None:
    ds = dml.read_parquet(years(tmp_path))
    kinds = {"x": pa.int64(), "y": pa.string(), "year": pa.int64(), "c": pa.string()}
    assert dict(ds.schema.items()) == kinds
    assert rows_of(ds)[7] == {"x": 7, "y": "t", "year": 2020, "c": "a"}
    assert [row["x"] for row in rows_of(ds)] == [*range(48)]


@pytest.mark.parametrize(
    ("found", "kind", "wanted"),
    [
        (["1", "2"], pa.int64(), [1, 2]),
        (["01", "-12"], pa.int64(), [-12, 1]),
        (["1", NO_VALUE], pa.int64(), [1, None]),
        (["1", ""], pa.int64(), [None, 1]),
        (["1", "1.5"], pa.string(), ["1", "1.5"]),
        (["+1"], pa.string(), ["+1"]),
        (["1_0"], pa.string(), ["1_0"]),
        (["\u0661"], pa.string(), ["\u0661"]),
        ([str(1 << 63)], pa.string(), [str(1 << 63)]),
        ([str(-(1 << 63))], pa.int64(), [-(1 << 63)]),
        (["2020-02-29", NO_VALUE], pa.date32(), [dt.date(2020, 2, 29), None]),
        (["2020-02-29", "2021-02-29"], pa.string(), ["2020-02-29", "2021-02-29"]),
        (["2020-01-01", "7"], pa.string(), ["2020-01-01", "7"]),
        ([NO_VALUE], pa.string(), [None]),
        (["a%20b", "50%25", "%C3%A9"], pa.string(), ["\u00e9", "50%", "a b"]),
        (["a=b"], pa.string(), ["a=b"]),
        (["100%"], pa.string(), ["100%"]),
    ],
)
def test_types_are_those_that_all_values_have(
    tmp_path: Path, found: list[str], kind: pa.DataType, wanted: list[Any]
) -> None:
    ds = dml.read_parquet(folders(tmp_path, *(f"k={value}" for value in found)))
    assert ds.schema["k"] == kind
    assert sorted(values(ds, "k"), key=repr) == sorted(wanted, key=repr)


def test_names_of_keys_are_decoded_too(tmp_path: Path) -> None:
    assert values(dml.read_parquet(folders(tmp_path, "a%2Fb=7")), "a/b") == [7]


def test_folders_that_name_no_key_say_nothing(tmp_path: Path) -> None:
    ds = dml.read_parquet(folders(tmp_path, "=3/k=1/part", "plain/k=2"))
    assert ds.schema.names == ("x", "k")
    put(tmp_path / "other", "a=1.parquet", x=[1])
    assert dml.read_parquet(tmp_path / "other").schema.names == ("x",)


def test_nulls_are_refused_where_batches_cannot_have_them(tmp_path: Path) -> None:
    ds = dml.read_parquet(folders(tmp_path, "k=1", f"k={NO_VALUE}")).with_options(**QUIET)
    with pytest.raises(NullValueError, match="whose path has no value for it"):
        next(iter(ds.batch(1)))
    assert next(iter(ds.fill_null({"k": 0}).batch(2)))["k"].tolist() == [1, 0]
    assert values(ds.filter(col("k").is_null()), "x") == [1]
    assert values(ds.filter(~col("k").is_null()), "x") == [0]


# --------------------------------------------------------------------------------------- the roots


def test_only_folders_below_what_was_given_count(tmp_path: Path) -> None:
    root = folders(tmp_path, "a=1/b=2/c=3")
    names = {
        "a=1": ("x", "b", "c"),
        "a=1/b=2": ("x", "c"),
        "a=1/*/c=3/*.parquet": ("x", "b", "c"),
        "a=1/b=2/*/*.parquet": ("x", "c"),
        "**/*.parquet": ("x", "a", "b", "c"),
        "a=1/b=2/c=3": ("x",),
        "a=1/b=2/c=3/part-0.parquet": ("x",),
    }
    for path, wanted in names.items():
        assert dml.read_parquet(root / path).schema.names == wanted, path
    assert dml.read_parquet(str(root) + "/").schema.names == ("x", "a", "b", "c")


def test_of_files_that_are_given_keys_are_taken_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders(tmp_path / "z=9", "a=1", "a=2"))
    files: list[str | Path] = ["a=1/part-0.parquet", Path("a=2/part-0.parquet")]
    assert dml.read_parquet(files).schema.names == ("x",)
    ds = dml.read_parquet(files, hive_partitioning=True)
    assert rows_of(ds) == [{"x": 0, "a": 1}, {"x": 1, "a": 2}]
    assert dml.read_parquet("*/*.parquet").schema.names == ("x", "a")
    assert dml.read_parquet(iter(["*/*.parquet"])).schema.names == ("x", "a")


def test_several_roots_have_the_same_keys(tmp_path: Path) -> None:
    here, there = folders(tmp_path / "p", "k=1", "k=2"), folders(tmp_path / "q", "k=2", "k=x")
    ds = dml.read_parquet([there, here], path_column="path")
    assert values(ds, "k") == ["1", "2", "2", "x"]
    assert values(ds, "x") == [0, 1, 0, 1]
    assert values(ds, "path")[0] == f"{here}/k=1/part-0.parquet"


def test_keys_may_come_in_any_order(tmp_path: Path) -> None:
    ds = dml.read_parquet(folders(tmp_path, "a=1/b=2", "b=3/a=4"))
    assert ds.schema.names == ("x", "a", "b")
    assert rows_of(ds)[1] == {"x": 1, "a": 4, "b": 3}


def test_no_columns_where_none_are_wanted(tmp_path: Path) -> None:
    root = folders(tmp_path, "k=1", "k=2")
    ds = dml.read_parquet(root, hive_partitioning=False)
    assert ds.schema.names == ("x",)
    assert ds.fingerprint() == Dataset(read_parquet(root)).fingerprint()
    one = dml.read_parquet(root, ["x"])
    assert one.fingerprint() == Dataset(read_parquet(root, ["x"])).fingerprint()
    assert ds.fingerprint() != dml.read_parquet(root).fingerprint()


# --------------------------------------------------------------------------------------- the paths


def test_paths_are_as_they_would_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folders(tmp_path, "k=1", "k=2").parent)
    for path, wanted in {
        tmp_path.name: f"{tmp_path.name}/k=1/part-0.parquet",
        f"./{tmp_path.name}/": f"./{tmp_path.name}/k=1/part-0.parquet",
        f"{tmp_path.name}/*/*.parquet": f"{tmp_path.name}/k=1/part-0.parquet",
        str(tmp_path): f"{tmp_path}/k=1/part-0.parquet",
        tmp_path.as_uri(): f"{tmp_path}/k=1/part-0.parquet",
        f"{tmp_path.name}/k=1/part-0.parquet": f"{tmp_path.name}/k=1/part-0.parquet",
    }.items():
        found = values(dml.read_parquet(path, path_column="where"), "where")
        assert found[0] == wanted
        assert rows_of(dml.read_parquet(found[0])) == [{"x": 0}]


def test_paths_without_keys(tmp_path: Path) -> None:
    ds = dml.read_parquet(folders(tmp_path, "k=1"), hive_partitioning=False, path_column="path")
    assert rows_of(ds) == [{"x": 0, "path": f"{tmp_path}/k=1/part-0.parquet"}]
    assert rows_of(ds.filter(col("path").str.contains("k=2"))) == []


# ------------------------------------------------------------------------------------- what is read


def left_alone(root: Path, kept: str) -> None:
    """Every file but those in folders ``kept`` is taken away: reading one of them would fail."""
    for path in root.rglob("*.parquet"):
        if kept not in str(path):
            path.unlink()


@pytest.mark.parametrize(
    "predicate",
    [
        col("year") == 2021,
        (col("year") > 2020) & (col("year") < 2022),
        col("year").is_in([2021, 1999]),
        (col("year") == 2021) & (col("x") >= 0),
        ~(col("year") != 2021),
        col("year") % 2 == 1,
        (col("year") == 2021) | (col("x") > 999),
        (col("year") - 2000) * 2 == 42,
    ],
    ids=repr,
)
@pytest.mark.parametrize("optimize", [True, False])
def test_files_that_cannot_match_are_not_opened(
    tmp_path: Path, predicate: Any, *, optimize: bool
) -> None:
    ds = dml.read_parquet(years(tmp_path)).filter(predicate)
    left_alone(tmp_path, "year=2021")
    if optimize:
        assert values(ds, "x") == [*range(16, 32)]
        assert len([*ds.with_options(**QUIET).batch(5)]) == 4
        assert values(ds.shuffle(seed=1), "c").count("a") == 8
        return
    assert values(ds.with_options(optimize=False).take(0), "x") == []


def test_text_and_dates_of_paths_leave_files_unopened(tmp_path: Path) -> None:
    names = [f"c={c}/d=2020-01-0{d}" for c in "ab" for d in "12"]
    ds = dml.read_parquet(folders(tmp_path, *names))
    left_alone(tmp_path, "c=a/d=2020-01-02")
    day = dt.date(2020, 1, 2)
    assert values(ds.filter((col("c") == "a") & (col("d") == day)), "x") == [1]
    assert values(ds.filter(col("c").str.starts_with("a") & (col("d") >= day)), "d") == [day]
    assert values(ds.filter((col("c") < "b") & (col("d").dt.day() == 2)), "x") == [1]


def test_columns_of_paths_alone_take_rows_and_no_bytes(
    tmp_path: Path, counted: type[CountedStore]
) -> None:
    ds = dml.read_parquet(uploaded(years(tmp_path), "counted://bucket/years"), path_column="path")
    with noted(counted) as requests:
        assert values(ds, "year") == [2020] * 16 + [2021] * 16 + [2022] * 16
        assert ds.select("year", "path").with_options(**QUIET).to_arrow().num_rows == 48
    assert requests == []
    with noted(counted) as requests:
        assert values(ds.filter(col("year") == 2021), "x") == [*range(16, 32)]
    assert {path.split("/")[3] for path, _, _ in requests} == {"year=2021"}
    assert values(ds.take(1), "path") == ["counted:///bucket/years/year=2020/c=a/part-0.parquet"]


def test_stores_give_what_folders_give(tmp_path: Path, counted: type[CountedStore]) -> None:
    here = source_of(dml.read_parquet(years(tmp_path), atom_rows=2))
    url = uploaded(tmp_path, "counted://bucket/years")
    for path in (url, f"{url}/*/*/*.parquet", [f"{url}/"]):
        check_same_data(here, source_of(dml.read_parquet(path, atom_rows=2)))
    part = dml.read_parquet(f"{url}/year=2020/c=a/part-0.parquet", hive_partitioning=True)
    assert part.schema.names == ("x", "y", "year", "c")


def test_columns_in_any_order(tmp_path: Path) -> None:
    root = years(tmp_path)
    ds = dml.read_parquet(root, ["c", "x", "year"])
    assert ds.schema.names == ("c", "x", "year")
    assert rows_of(ds)[0] == {"c": "a", "x": 0, "year": 2020}
    assert rows_of(dml.read_parquet(root, "year"))[47] == {"year": 2022}
    with pytest.raises(SchemaError, match="read_parquet needs column 'yeer'") as caught:
        dml.read_parquet(root, ["yeer"])
    assert "'year'" in caught.value.try_


# ------------------------------------------------------------------------------------------- errors


def test_a_column_of_both_is_the_paths_in_the_files_type(tmp_path: Path) -> None:
    put(tmp_path, "v=7/c=q/a.parquet", v=pa.array([1], pa.int16()), u=[2], c=["z"])
    ds = dml.read_parquet(tmp_path)
    assert dict(ds.schema.items()) == {"v": pa.int16(), "u": pa.int64(), "c": pa.string()}
    assert rows_of(ds) == [{"v": 7, "u": 2, "c": "q"}]
    assert rows_of(ds.filter(col("v") == 7)) == rows_of(ds)
    assert rows_of(ds.filter(col("v") == 1)) == []
    assert rows_of(dml.read_parquet(tmp_path, hive_partitioning=False))[0]["v"] == 1


def test_a_column_of_both_whose_types_differ(tmp_path: Path) -> None:
    put(put(tmp_path, "v=1/a.parquet", v=[1]), "v=no/a.parquet", v=[1])
    with pytest.raises(SchemaError) as caught:
        dml.read_parquet(tmp_path)
    assert (
        str(caught.value)
        .splitlines()[0]
        .endswith("column 'v' is int64 in the files, and 'no' in a path")
    )
    assert "v=no/a.parquet" in caught.value.at
    assert "hive_partitioning=False" in caught.value.try_
    assert dml.read_parquet(tmp_path, hive_partitioning=False).schema.names == ("v",)


def test_paths_of_which_some_have_a_key(tmp_path: Path) -> None:
    root = put(folders(tmp_path, "k=1", "k=2"), "x.parquet", x=[3])
    for hive_partitioning in (None, True):
        with pytest.raises(SourceError) as caught:
            dml.read_parquet(root, hive_partitioning=hive_partitioning)
        assert f"{root}/x.parquet has no folder k=..., {root}/k=1/part-0.parquet has" in str(
            caught.value
        )
    assert rows_of(dml.read_parquet(root, "x")) == [{"x": 0}, {"x": 1}, {"x": 3}]
    assert len(rows_of(dml.read_parquet(root, hive_partitioning=False))) == 3


def test_what_means_nothing_is_refused(tmp_path: Path) -> None:
    plain, root = folders(tmp_path / "p", "a"), folders(tmp_path / "q", "k=1")
    wrong: list[tuple[type[DmlError], str, Callable[[], Any]]] = [
        (SourceError, "finds no key", lambda: dml.read_parquet(plain, hive_partitioning=True)),
        (PlanError, "got hive_part", lambda: dml.read_parquet(plain, hive_partitioning=1)),  # type: ignore[arg-type]
        (PlanError, "got path_column", lambda: dml.read_parquet(plain, path_column="")),
        (PlanError, "got path_column", lambda: dml.read_parquet(plain, path_column=3)),  # type: ignore[arg-type]
        (SchemaError, "'x' already", lambda: dml.read_parquet(plain, path_column="x")),
        (SchemaError, "'k' already", lambda: dml.read_parquet(root, path_column="k")),
        (SourceError, "two folders", lambda: dml.read_parquet(folders(root / "r", "k=1/k=2"))),
        (SourceError, "no UTF-8", lambda: dml.read_parquet(folders(root / "s", "k=%ff"))),
    ]
    for kind, words, made in wrong:
        with pytest.raises(kind, match=words) as caught:
            made()
        assert "written in test_hive_columns.py" in caught.value.at
        assert caught.value.why
        assert caught.value.try_


# -------------------------------------------------------------------------------------------- names


def test_names_tell_paths_apart_that_files_do_not(tmp_path: Path) -> None:
    one, two = folders(tmp_path / "a", "k=1"), folders(tmp_path / "b", "k=2")
    names = [dml.read_parquet(root).fingerprint() for root in (one, two)]
    assert names[0] != names[1]
    elsewhere = dml.read_parquet(folders(tmp_path / "c", "k=1"))
    assert elsewhere.fingerprint() == names[0]
    with_paths = [dml.read_parquet(root, path_column="p") for root in (one, tmp_path / "c")]
    assert len({each.fingerprint() for each in with_paths} | {names[0]}) == 3


def test_columns_of_paths_keep_the_laws_of_sources(tmp_path: Path) -> None:
    ds = dml.read_parquet(years(tmp_path / "data"), path_column="path", atom_rows=2)
    for each in (ds, ds.shard(2, 1, by="files"), ds.shard(5, 2, by="units")):
        source = source_of(each)
        check_source(source, pa.Table.from_batches([everything(source).to_arrow()]))
    source = source_of(dml.read_parquet(tmp_path / "data"))
    code = f"import dml\nsource = dml.read_parquet({str(tmp_path / 'data')!r})._node"
    check_other_process(source, code)


def test_units_weigh_what_their_paths_add(tmp_path: Path) -> None:
    root = folders(tmp_path, "k=1/c=abc")
    plain, told = (
        source_of(dml.read_parquet(root, hive_partitioning=each)).unit(0) for each in (False, None)
    )
    assert told.nbytes - plain.nbytes == 8 + 4 + len("abc")


def test_numbers_of_paths_have_bounds(tmp_path: Path) -> None:
    source = source_of(dml.read_parquet(years(tmp_path)))
    assert source.bounds("year") == (2020, 2022)
    assert source.bounds("c") is None
    assert source.bounds("x") is None


# ---------------------------------------------------------------------------------- other formats


def csv(root: Path, name: str, xs: list[int]) -> None:
    (root / f"{name}.csv").write_text("x,c\n" + "".join(f"{x},in\n" for x in xs), "utf-8")


def packed(root: Path, name: str, xs: list[int]) -> None:
    rows = "x,c\n" + "".join(f"{x},in\n" for x in xs)
    (root / f"{name}.csv.gz").write_bytes(gzip.compress(rows.encode()))


def jsons(root: Path, name: str, xs: list[int]) -> None:
    rows = "".join(f'{{"x": {x}, "c": "in"}}\n' for x in xs)
    (root / f"{name}.jsonl").write_text(rows, "utf-8")


def arrow(root: Path, name: str, xs: list[int]) -> None:
    table = pa.table({"x": xs, "c": ["in"] * len(xs)})
    with pa.ipc.new_file(root / f"{name}.feather", table.schema) as sink:
        sink.write_table(table, max_chunksize=3)


def orcs(root: Path, name: str, xs: list[int]) -> None:
    pa_orc.write_table(pa.table({"x": xs, "c": ["in"] * len(xs)}), root / f"{name}.orc")


FORMATS = [
    (csv, dml.read_csv),
    (packed, dml.read_csv),
    (jsons, dml.read_json),
    (arrow, dml.read_arrow),
    (orcs, dml.read_orc),
]
Written = tuple[Path, Callable[..., dml.Dataset]]


@pytest.fixture(params=FORMATS, ids=lambda each: each[0].__name__)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    """Two days with four rows each, in some format, whose column "c" is in the path as well."""
    write, read = request.param
    for day in (1, 2):
        folder = tmp_path / "data" / f"day=2020-01-0{day}" / "c=out"
        folder.mkdir(parents=True)
        write(folder, "part", [*range(4 * day, 4 * day + 4)])
    return tmp_path / "data", read


def test_every_reader_of_tables_has_columns_of_paths(written: Written) -> None:
    root, read = written
    ds = read(root, path_column="path", atom_rows=3)
    assert ds.schema.names == ("x", "c", "day", "path")
    days = [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]
    rows = rows_of(ds.select("x", "c", "day"))
    assert rows == [{"x": x, "c": "out", "day": days[x // 4 - 1]} for x in range(4, 12)]
    assert {Path(path).parent.parent.name for path in values(ds, "path")} == {
        "day=2020-01-01",
        "day=2020-01-02",
    }
    assert values(ds.filter(col("day") == days[1]), "x") == [8, 9, 10, 11]
    assert values(ds, "day") == [days[0]] * 4 + [days[1]] * 4
    assert rows_of(read(root, ["day", "x"]).take(1)) == [{"day": days[0], "x": 4}]
    assert rows_of(read(root, hive_partitioning=False).take(1)) == [{"x": 4, "c": "in"}]
    assert rows_of(read(root, "x").take(1)) == [{"x": 4}]


@pytest.mark.law
def test_every_reader_keeps_the_laws_of_sources(written: Written) -> None:
    root, read = written
    ds = read(root, path_column="path", atom_rows=3)
    for each in (ds, ds.shard(2, 1, by="files"), ds.shard(2, 0, by="units")):
        source = source_of(each)
        check_source(source, pa.Table.from_batches([everything(source).to_arrow()]))
    assert holds(ds.filter(col("day") != dt.date(2020, 1, 1)).select("x", "c").batch(2))
    agrees(ds.shuffle(seed=1))


def test_rows_of_files_that_are_left_out_are_not_decoded(tmp_path: Path) -> None:
    for day, rows in ((1, [1, 2]), (2, ["no number"])):
        folder = tmp_path / f"day={day}"
        folder.mkdir()
        csv(folder, "part", rows)  # type: ignore[arg-type]
    ds = dml.read_csv(tmp_path)
    assert values(ds.filter(col("day") == 1), "x") == [1, 2]
    with pytest.raises(SourceError, match="cannot be read"):
        values(ds, "x")


def test_a_path_that_is_no_text_cannot_be_a_column(tmp_path: Path) -> None:
    folder = tmp_path / "k=1" / os.fsdecode(b"\xff")
    folder.mkdir(parents=True)
    csv(folder, "part", [3])
    assert values(dml.read_csv(tmp_path), "k") == [1]
    with pytest.raises(SourceError, match="cannot be a value of a column"):
        dml.read_csv(tmp_path, path_column="path")


# ---------------------------------------------------------------------------------------- all of it


@pytest.mark.law
def test_every_way_of_running_gives_the_rows_of_the_oracle(tmp_path: Path) -> None:
    ds = dml.read_parquet(years(tmp_path), path_column="path", atom_rows=2).with_options(**QUIET)
    assert holds(ds.filter(col("year") != 2021).batch(5))
    assert holds(ds.filter((col("c") == "b") | (col("x") < 9)).select("c", "x").batch(4))
    agrees(ds.map(lambda row: {"s": f"{row['year']}{row['c']}"}).shuffle(seed=1))
    agrees(ds.shuffle(window="atoms", size=3).select("year", "x"))
    agrees(ds.shard(3, 1, by="files").select("path"))
    agrees(ds.shard(5, 4, by="units").with_columns(z=col("year") + col("x")))
    agrees(ds.sort("c").skip(5).take(7))


@pytest.mark.cluster
def test_processes_give_the_same(tmp_path: Path) -> None:
    ds = dml.read_parquet(years(tmp_path), path_column="path").with_options(telemetry_dir="off")
    ds = ds.filter(col("year") > 2020).map(lambda row: {**row, "z": row["year"] + 1})
    there = ds.with_options(executor="processes", num_workers=2)
    assert there.to_arrow().equals(ds.to_arrow())


def test_a_cache_keeps_partitions_apart(tmp_path: Path) -> None:
    def kept(root: Path) -> list[Any]:
        ds = dml.read_parquet(root).map(lambda row: {"k": row["k"] * 2}).cache(tier="disk")
        return [r["k"] for _ in "ab" for r in ds.with_options(**QUIET, cache_dir=tmp_path / "kept")]

    one, two = folders(tmp_path / "a", "k=1"), folders(tmp_path / "b", "k=2")
    assert (kept(one), kept(two), kept(one)) == ([2, 2], [4, 4], [2, 2])


TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cs", "Cc", "Nd")),
    min_size=1,
    max_size=6,
)
WORDS = st.one_of(st.integers(-99, 9999).map(str), TEXTS.filter(lambda text: text != NO_VALUE))
DAYS = st.dates(dt.date(1990, 1, 1), dt.date(2030, 1, 1))


@st.composite
def partitioned(draw: st.DrawFn) -> list[tuple[int, str, dt.date | None]]:
    """The keys of some files."""
    texts = WORDS if draw(st.booleans()) else st.sampled_from(["a", "b"])
    keys = st.tuples(st.integers(-5, 5), texts, st.none() | DAYS)
    found = draw(st.lists(keys, min_size=1, max_size=6, unique=True))
    return [*found, (0, "a", dt.date(2000, 1, 1))]


def predicates() -> st.SearchStrategy[tuple[Any, Any]]:
    """The same filter here and in pyarrow."""
    n = st.integers(-5, 6)
    day = DAYS
    leaves = st.one_of(
        n.map(lambda v: (col("n") == v, pds.field("n") == v)),
        n.map(lambda v: (col("n") >= v, pds.field("n") >= v)),
        n.map(lambda v: (col("x") < 2 * v, pds.field("x") < 2 * v)),
        day.map(lambda v: (col("d") > v, pds.field("d") > v)),
        st.just((col("d").is_null(), pds.field("d").is_null())),
        st.just((col("c") == "a", pds.field("c") == "a")),
    )
    both = st.tuples(leaves, leaves)
    return leaves | st.one_of(
        both.map(lambda p: (p[0][0] & p[1][0], p[0][1] & p[1][1])),
        both.map(lambda p: (p[0][0] | p[1][0], p[0][1] | p[1][1])),
        leaves.map(lambda p: (~p[0], ~p[1])),
    )


@pytest.mark.law
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(partitioned(), predicates(), st.permutations(["x", "n", "c", "d"]), st.integers(1, 4))
def test_filters_and_columns_as_pyarrow_has_them(
    tmp_path_factory: pytest.TempPathFactory,
    keys: list[tuple[int, str, dt.date | None]],
    predicate: tuple[Any, Any],
    order: list[str],
    taken: int,
) -> None:
    root = tmp_path_factory.mktemp("hive")
    for number, (n, c, d) in enumerate(keys):
        name = f"n={n}/c={quote(c, safe='')}/d={NO_VALUE if d is None else d}"
        put(root, f"{name}/{number}.parquet", x=range(3 * number, 3 * number + 3))
    ds = dml.read_parquet(root, atom_rows=2)
    kinds = [("x", pa.int64()), ("n", pa.int64()), ("c", pa.string()), ("d", pa.date32())]
    ds = ds.cast(c="string")
    scheme = pds.partitioning(pa.schema(kinds[1:]), flavor="hive")
    peer = pds.dataset(root, schema=pa.schema(kinds), partitioning=scheme)
    wanted = peer.to_table(columns=order[:taken], filter=predicate[1]).to_pylist()
    found = rows_of(ds.filter(predicate[0]).select(*order[:taken]))
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))
    assert everything(source_of(ds)).n == 3 * len(keys)
