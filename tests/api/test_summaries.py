"""Test column statistics: exact to the last bit for any partitions, within the memory limit."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import math
import random
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.errors import DmlError, MemoryContractError, PlanError, SchemaError
from dml.testing.strategies import pipeline
from dml.testing.strategies_data import DataPool
from tests.refusals import refused

OFF: dict[str, Any] = {"telemetry_dir": "off", "num_workers": 2}
DRAW = np.random.default_rng(7)
WIDE = DRAW.normal(size=1000) * 10.0 ** DRAW.integers(-30, 30, 1000)
FIGURES = ("count", "null_count", "mean", "std", "min", "max")


def of(values: Any, kind: pa.DataType | None = None, *, atom_rows: int | None = None) -> Dataset:
    table = pa.table({"x": pa.array(values, kind)})
    return dml.from_arrow(table, atom_rows=atom_rows).with_options(**OFF)


def figures(ds: Dataset) -> str:
    """All figures of column x, to the last bit."""
    alone = [ds.min("x"), ds.max("x"), ds.sum("x"), ds.mean("x"), ds.std("x")]
    return repr([alone, ds.describe(), ds.unique("x"), ds.value_counts("x").to_pydict()])


# ------------------------------------------------------------------------------------- every bit


@pytest.mark.law
def test_no_division_of_the_run_changes_a_bit() -> None:
    ways = itertools.product(("sync", "threads"), (1, 4), (1, 1 << 20), (7, 512))
    found = {
        figures(
            of(WIDE, atom_rows=atom_rows).with_options(
                executor=executor, num_workers=workers, target_partition_bytes=target
            )
        )
        for executor, workers, target, atom_rows in ways
    }
    assert len(found) == 1


@pytest.mark.cluster
def test_worker_processes_change_no_bit() -> None:
    ds = of(WIDE, atom_rows=7)
    elsewhere = ds.with_options(executor="processes", target_partition_bytes=1 << 10)
    assert figures(elsewhere) == figures(ds)


@pytest.mark.law
def test_sums_and_means_do_not_depend_on_the_order_of_rows() -> None:
    ds = of(WIDE)
    exact = sum(map(Fraction, WIDE.tolist()), Fraction())
    for order in (ds, ds.shuffle(seed=1), ds.shuffle(seed=2).batch(77)):
        assert order.sum("x") == float(exact)
        assert order.mean("x") == float(exact / len(WIDE))
        assert order.describe() == ds.describe()


def test_figures_of_a_column() -> None:
    ds = of([3, None, 1, 2], pa.int32())
    assert (ds.min("x"), ds.max("x"), ds.sum("x")) == (1, 3, 6)
    assert (ds.mean("x"), ds.std("x")) == (2.0, 1.0)
    assert ds.describe() == {"x": dict(zip(FIGURES, (3, 1, 2.0, 1.0, 1, 3), strict=True))}
    assert of([2**62] * 4).sum("x") == 2**64, "integers are added as those of Python are"
    assert of([True, False, True]).sum("x") == 2
    assert of([2**64 - 1, 0], pa.uint64()).describe()["x"]["max"] == 2**64 - 1


@pytest.mark.law
@pytest.mark.parametrize("kind", [pa.int64(), pa.float32(), pa.float16(), pa.bool_()])
@pytest.mark.parametrize("values", [[], [None, None]])
def test_of_no_values_there_is_little_to_say(kind: pa.DataType, values: list[None]) -> None:
    ds = of(values, kind)
    found = (ds.min("x"), ds.max("x"), ds.mean("x"), ds.std("x"))
    assert found == (None, None, None, None)
    assert repr(ds.sum("x")) == ("0.0" if pa.types.is_floating(kind) else "0")
    assert ds.unique("x") == values[:1]


@pytest.mark.law
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()])
def test_nan_is_a_value_and_extremes_tell_zeros_apart(kind: pa.DataType) -> None:
    with_nan = of([1.0, math.nan, None, math.nan, 2.0], kind)
    for verb in ("min", "max", "sum", "mean", "std"):
        assert repr(getattr(with_nan, verb)("x")) == "nan"
    assert repr(with_nan.unique("x")) == "[1.0, nan, None, 2.0]"
    assert with_nan.value_counts("x")["count"].to_pylist() == [2, 1, 1, 1]
    for zeros in ([0.0, -0.0, 0.0], [-0.0, 0.0, -0.0]):
        signed = of(zeros, kind, atom_rows=1)
        assert repr((signed.min("x"), signed.max("x"))) == "(-0.0, 0.0)"
        assert repr(signed.unique("x")) == "[0.0]"


def test_every_nan_is_the_same() -> None:
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], "u8").view("f8")
    assert len(of(np.append(odd, math.nan)).unique("x")) == 1


MOMENT = dt.datetime(2024, 2, 29, 12, 30, 1, 5)
TYPED: list[tuple[Any, pa.DataType]] = [
    (["b", "", "ä"], pa.string()),
    ([b"\1", b"", b"\0"], pa.binary()),
    ([MOMENT, dt.datetime(1969, 1, 1), MOMENT + dt.timedelta(1)], pa.timestamp("us")),
    ([dt.date(2024, 1, 2), dt.date(1969, 1, 2), dt.date(2024, 1, 1)], pa.date32()),
    ([dt.timedelta(2), dt.timedelta(-1), dt.timedelta(1)], pa.duration("ms")),
    ([dt.time(3), dt.time(1), dt.time(2)], pa.time64("us")),
    ([decimal.Decimal("1.10"), decimal.Decimal(-2), decimal.Decimal(0)], pa.decimal128(5, 2)),
    ([True, False], pa.bool_()),
    ([3, -1, 2], pa.int8()),
]


@pytest.mark.parametrize(("values", "kind"), TYPED)
def test_types_that_have_an_order(values: list[Any], kind: pa.DataType) -> None:
    ds = of([None, *values, *values[::-1]], kind, atom_rows=2)
    assert (ds.min("x"), ds.max("x")) == (min(values), max(values))
    assert ds.unique("x") == [None, *values]
    counts = ds.value_counts("x", name="n")
    assert counts.schema == pa.schema({"x": kind, "n": pa.int64()})
    assert counts.to_pydict() == {"x": [*values, None], "n": [2] * len(values) + [1]}


def test_digits_of_nanoseconds_are_told_apart() -> None:
    counts = of([1, 2, 1], pa.timestamp("ns")).value_counts("x")
    assert counts["x"].cast(pa.int64()).to_pylist() == [1, 2]


@pytest.mark.parametrize("first", [-0.0, 0.0])
def test_the_two_zeros_are_one_and_shown_as_in_groups(first: float) -> None:
    ds = of([first, -first, 1.0], atom_rows=1)
    assert repr(ds.unique("x")) == "[0.0, 1.0]"
    assert repr(ds.value_counts("x").to_pydict()) == "{'x': [0.0, 1.0], 'count': [2, 1]}"


def test_the_most_frequent_comes_first_then_the_earliest() -> None:
    ds = of(["b", "c", "a", "c", "a", "d"], atom_rows=1)
    assert ds.unique("x") == ["b", "c", "a", "d"]
    assert ds.value_counts("x").to_pydict() == {"x": ["c", "a", "b", "d"], "count": [2, 2, 1, 1]}


def test_functions_of_unknown_types_have_figures_too() -> None:
    def opaque(row: dict[str, Any]) -> dict[str, Any]:
        return {"s": repr(row["id"]), "x": [row["id"] * 0.5][0]}

    ds = dml.range(100).map(opaque).with_options(**OFF)
    assert (ds.max("x"), ds.sum("x"), ds.max("s")) == (49.5, 2475.0, "99")
    assert list(ds.describe()) == ["x"]
    assert len(ds.unique("s")) == 100
    none = ds.filter(lambda row: len(row["s"]) > 9)
    assert (none.sum("x"), none.min("x"), none.unique("x"), none.describe()) == (0, None, [], {})


# ------------------------------------------------------------------------------ memory, refusals


@pytest.mark.law
def test_figures_hold_a_batch_and_not_the_rows() -> None:
    ds = dml.range(1_000_000).filter(col("id") >= 0).with_columns(m=col("id") % 7)
    ds = ds.with_options(executor="sync", memory_limit="8MiB", telemetry_dir="off")
    acts: list[Callable[[], Any]] = [
        ds.describe,
        lambda: ds.std("id"),
        lambda: ds.min("id"),
        lambda: ds.value_counts("m"),
        ds.size_bytes,
        ds.count,
    ]
    for act in acts:
        act()  # what it loads is not what it holds
        tracemalloc.start()
        act()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20, act


def test_distinct_values_keep_to_the_memory_number() -> None:
    ds = dml.range(100_000).with_options(memory_limit="4MiB", **OFF)
    for act in (lambda: ds.unique("id"), lambda: ds.value_counts("id")):
        error = refused(MemoryContractError, act, "distinct values of 'id'", "memory_limit")
        assert "test_summaries.py" in error.at
    assert len(ds.with_columns(id=col("id") % 100).unique("id")) == 100


def test_what_makes_no_sense_is_refused_before_any_row() -> None:
    called: list[int] = []

    def note(row: dict[str, Any]) -> dict[str, Any]:
        called.append(1)
        return row

    schema = {"k": "int64", "s": "string", "l": pa.list_(pa.int64())}
    ds = dml.from_items([{"k": 1, "s": "a", "l": [1]}]).map(note, schema=schema, fingerprint="note")
    for verb in (ds.sum, ds.mean, ds.std):
        refused(SchemaError, partial(verb, "s"), "numbers")
    refused(SchemaError, lambda: ds.min("l"), "order")
    refused(SchemaError, lambda: ds.unique("l"), "list")
    refused(SchemaError, lambda: ds.value_counts("l"), "list")
    refused(SchemaError, lambda: ds.max("z"), "not there")
    refused(PlanError, lambda: ds.mean(3), "name of a column")  # type: ignore[arg-type]
    refused(PlanError, lambda: ds.value_counts("k", name="k"), "name")
    for act in (ds.repeat().describe, lambda: ds.repeat().unique("k"), ds.repeat().size_bytes):
        refused(PlanError, act, "endless")
    assert not called
    assert iter(ds).epoch == 0


# ----------------------------------------------------------------------------- without a run


def test_lengths_that_are_known() -> None:
    ds = dml.range(100)
    assert ds.with_columns(y=col("id")).shuffle(seed=1).skip(10).take(50).cardinality() == 50
    assert [ds.batch(30).cardinality(), ds.batch(30, drop_last=True).cardinality()] == [4, 3]
    assert ds.repeat(3).cardinality() == len(ds.repeat(3)) == 300
    assert ds.repeat().cardinality() == math.inf
    assert ds.repeat().batch(8).skip(3).cardinality() == math.inf
    assert len(ds.repeat().batch(8).take(7)) == 7
    assert dml.range(0).repeat().cardinality() == 0
    assert ds.concat(ds.take(5)).cardinality() == 105
    assert ds.concat(ds.repeat()).cardinality() == math.inf
    assert len(ds.zip(dml.range(7).rename(id="other"))) == 7
    assert len(ds.with_row_index().cache()) == 100
    assert [len(ds.shard(7, n)) for n in (0, 1, 2, 6)] == [15, 15, 14, 14]
    assert len(ds.take(2).shard(7, 3)) == 0
    assert ds.repeat().shard(7, 3).cardinality() == math.inf
    assert ds.repeat().with_row_index().cardinality() == math.inf
    assert ds.filter(col("id") > 3).cardinality() is None
    assert ds.batch(3).map(lambda batch: batch).cardinality() is None, "one may come back empty"
    assert ds.filter(col("id") > 3).repeat().cardinality() == math.inf


def test_a_length_that_is_not_known_is_an_error_with_a_way_out() -> None:
    with pytest.raises(TypeError, match=r"ds\.count\(\)"):
        len(dml.range(9).filter(col("id") > 3))
    with pytest.raises(TypeError, match=r"take\(n\)"):
        len(dml.range(9).repeat())
    for ds in (dml.range(0), dml.range(9).filter(col("id") > 3), dml.range(9).repeat()):
        assert ds, "a pipeline is true"
    assert len(list(dml.range(9).filter(col("id") > 3).with_options(**OFF))) == 5


@pytest.mark.law
def test_lengths_are_those_of_the_run(tmp_path: Path) -> None:
    pool, told = DataPool(tmp_path), 0
    for number in range(400):
        ds = pipeline(random.Random(number), pool).dataset.with_options(**OFF)
        known = ds.cardinality()
        if isinstance(known, int):
            try:
                assert ds.count() == known, ds
            except DmlError:
                continue
            told += 1
    assert told > 20


def test_bytes_of_values() -> None:
    assert dml.range(1000).size_bytes() == 8000
    assert of([True, None]).size_bytes() == 2
    assert of(["a", "bcd", None]).size_bytes() == 3 * 4 + 4
    tensors = dml.from_dict({"t": np.zeros((5, 2, 3), "f4")})
    assert tensors.size_bytes() == tensors.filter(col("t").is_not_null()).size_bytes() == 120
    assert dml.range(1000).batch(7).size_bytes() == 8000


@pytest.mark.parametrize("atom_rows", [1, 3, 100])
def test_bytes_do_not_depend_on_the_cut(atom_rows: int) -> None:
    table = pa.table(
        {
            "s": ["", None, "äb"] * 20,
            "l": [[1, None], None, []] * 20,
            "n": [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}] * 20,
            "f": pa.array([[1, 2]] * 60, pa.list_(pa.int16(), 2)),
            "b": pa.array([b"ab"] * 60, pa.binary(2)),
        }
    )
    ds = dml.from_arrow(table, atom_rows=atom_rows).with_options(**OFF)
    text, lists, fixed = 60 * 4 + 20 * 3, 60 * 4 + 40 * 8, 60 * 6
    assert ds.size_bytes() == text + lists + fixed + 60 * (8 + 4) + 20 * (4 + 1)


def test_files_that_are_read(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{name}.parquet") for name in "ab"]
    for name in names:
        pq.write_table(pa.table({"x": [1]}), name)
    ds = dml.read_parquet(tmp_path)
    assert ds.filter(col("x") > 0).batch(2).input_files() == names
    assert ds.concat(ds).input_files() == names
    assert dml.range(3).input_files() == []


def test_the_schema_has_the_names_of_other_libraries() -> None:
    ds = dml.range(3)
    assert ds.element_spec == ds.features == ds.schema
