"""Test that pipelines without a meaning raise an error at the line where they are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.errors import DmlError, FingerprintError, PlanError, SchemaError, SourceError
from tests.refusals import nothing_left, opened, refused, write

Verb = Callable[[Any], Any]  # of Any: wrong types are what is tested

LOOSE: Any = dml
LOCK: Any = threading.Lock()

SCHEMA_CASES: list[tuple[Verb, str]] = [
    (lambda ds: ds.select("z"), "needs column 'z'"),
    (lambda ds: ds.drop("z"), "needs column 'z'"),
    (lambda ds: ds.rename({"z": "a"}), "needs column 'z'"),
    (lambda ds: ds.cast({"z": "int8"}), "needs column 'z'"),
    (lambda ds: ds.fill_null({"z": 0}), "needs column 'z'"),
    (lambda ds: ds.with_columns(a=col("z") + 1), "needs column 'z'"),
    (lambda ds: ds.filter(col("xx") > 0), "did you mean 'x'?"),
    (lambda ds: ds.filter(col("s") > 1), "string meets int64"),
    (lambda ds: ds.with_columns(a=col("s") + 1), "string meets int64"),
    (lambda ds: ds.with_columns(a=[1, 2]), "cannot be a literal"),
    (lambda ds: ds.with_columns(a=col("x") ** -1), "whole exponent"),
    (lambda ds: ds.fill_null({"x": "a"}), "int64 meets string"),
    (lambda ds: ds.cast({"x": "int65"}), "'int65' is not a type"),
    (lambda ds: ds.cast({"s": "date32"}), "not a cast"),
    (lambda ds: ds.filter(col("x")), "needs a boolean, x is int64"),
    (lambda ds: ds.filter(col("x") & (col("y") > 0)), "needs a boolean"),
    (lambda ds: ds.filter("x > 0"), "an expression or a function"),
    (lambda ds: ds.filter(True), "an expression or a function"),
    (lambda ds: ds.filter(None), "an expression or a function"),
    (lambda ds: ds.rename({"x": "y"}), "two columns the name 'y'"),
    (lambda ds: ds.drop("x", "y", "s", "k"), "leaves no column"),
    (lambda ds: ds.map(dict, schema=3), "is not a schema"),
    (lambda _: LOOSE.col(3), "needs a column name"),
]


class Uncallable:
    """Nothing that a row could be given to."""


PLAN_CASES: list[tuple[Verb, str]] = [
    (lambda ds: ds.filter((col("x") > 0) and (col("y") > 0)), "not a truth value"),
    (lambda ds: ds.select(), "keeps no column"),
    (lambda ds: ds.select("x", "x"), "twice"),
    (lambda ds: ds.drop(col("x")), "is not a column name"),
    (lambda ds: ds.rename("x"), "a dict by column"),
    (lambda ds: ds.rename({"x": 3}), "is not a column name"),
    (lambda ds: ds.fill_null([0]), "a dict by column"),
    (lambda ds: ds.cast(), "no column is named"),
    (lambda ds: ds.with_columns(), "at least one"),
    (lambda ds: ds.map(3), "needs a function"),
    (lambda ds: ds.map(Uncallable), "whose instances cannot be called"),
    (lambda ds: ds.map_batches(Uncallable), "whose instances cannot be called"),
    (lambda ds: dml.collect_all({"all of them": ds}), "got a dict"),  # and not all that is in it
    (lambda ds: dml.collect_all(each for each in [ds]), "got a generator"),
    (lambda ds: ds.batch(2).batch(2), "batch over batches"),
    (lambda ds: ds.batch(2).filter(lambda _: True), "after batch"),
    (lambda ds: ds.batch(2).flat_map(lambda _: []), "after batch"),
    (lambda ds: ds.batch(2).random_map(lambda row, _: row), "after batch"),
    (lambda ds: ds.batch(2).shuffle(), "full shuffle of batches"),
    (lambda ds: ds.skip(1).shuffle(window="atoms"), "pieces of a source"),
    (lambda ds: ds.shuffle(window="rows"), "window='rows'"),
    (lambda ds: ds.shuffle(seed="a"), "seed must be"),
    (lambda ds: ds.shuffle(8, seed=1.5), "seed must be"),
    (lambda ds: ds.shuffle(window="atoms", seed="a"), "seed must be"),
    (lambda ds: ds.random_map(lambda row, _: row, seed="a"), "seed must be"),
    (lambda ds: ds.with_columns(a=col("x").hash(0)), "positive number of buckets"),
    (lambda ds: ds.with_columns(a=col("x").bucketize([3, 1])), "ascending"),
    (lambda ds: ds.explain("nope"), "no stage 'nope'"),
    (lambda ds: ds.fingerprint("nope"), "no fingerprint for 'nope'"),
    (lambda ds: ds.stats(), "no run to tell about"),
    (lambda _: LOOSE.range(0, 10, 0), "steps of 0"),
    (lambda _: LOOSE.range(2.5), "whole numbers"),
]

SIZES: list[Verb] = [
    lambda n: lambda ds: ds.batch(n),
    lambda n: lambda ds: ds.take(n),
    lambda n: lambda ds: ds.take_rows(n),
    lambda n: lambda ds: ds.skip(n),
    lambda n: lambda ds: ds.repeat(n),
    lambda n: lambda ds: ds.shuffle(n),
    lambda n: lambda ds: ds.shuffle(window="atoms", size=n),
    lambda n: lambda ds: ds.epoch(n),
    lambda n: lambda ds: ds.prefetch(n),
    lambda n: lambda _: LOOSE.range(9, atom_rows=n),
    lambda n: lambda _: LOOSE.from_items([1], atom_rows=n or 0),
    lambda n: lambda ds: ds.with_options(num_workers=n),
    lambda n: lambda ds: ds.with_options(prefetch=n),
    lambda n: lambda ds: ds.with_options(memory_limit=n),
    lambda n: lambda ds: ds.with_options(target_partition_bytes=n),
    lambda n: lambda ds: ds.with_options(watchdog_s=n if n != 2.5 else 0),
]
NOT_ZERO: list[Verb] = [SIZES[i] for i in (0, 5, 6, 9, 10, 11, 13, 14, 15)]

OPTIONS: list[tuple[str, list[Any]]] = [
    ("executor", ["procs", None, 3]),
    ("kernels", ["fast"]),
    ("memory_limit", ["12 parsecs", "0MiB", 1.5, None]),
    ("target_partition_bytes", ["x", None]),
    ("prefetch", ["x", None]),
    ("num_workers", ["x", None]),
    ("seed", ["x", None, 1.0]),
    ("watchdog_s", ["x", None, float("nan")]),
    ("deterministic", ["x", None]),
    ("optimize", ["x"]),
    ("cache_dir", [3]),
    ("telemetry_dir", [3]),
    ("workers", [2]),
    ("memorylimit", ["1GiB"]),
]


@pytest.fixture
def ds(tmp_path: Path) -> Iterator[dml.Dataset]:
    with nothing_left(tmp_path / "scratch"):
        yield opened(tmp_path / "data")


@pytest.mark.parametrize(("verb", "words"), SCHEMA_CASES)
def test_columns_and_types(ds: dml.Dataset, verb: Verb, words: str) -> None:
    refused(SchemaError, lambda: verb(ds), words, "test_bad_input.py:")


@pytest.mark.parametrize(("verb", "words"), PLAN_CASES)
def test_operators_that_mean_nothing(ds: dml.Dataset, verb: Verb, words: str) -> None:
    refused(PlanError, lambda: verb(ds), words, "test_bad_input.py:")


@pytest.mark.parametrize("sized", SIZES)
@pytest.mark.parametrize("n", [-1, 2.5, "a", True, float("nan")], ids=repr)
def test_sizes(ds: dml.Dataset, sized: Verb, n: object) -> None:
    refused(PlanError, lambda: sized(n)(ds), "test_bad_input.py:")


@pytest.mark.parametrize("sized", NOT_ZERO)
def test_sizes_of_zero(ds: dml.Dataset, sized: Verb) -> None:
    refused(PlanError, lambda: sized(0)(ds), "test_bad_input.py:")


@pytest.mark.parametrize(("name", "values"), OPTIONS, ids=[name for name, _ in OPTIONS])
def test_options(ds: dml.Dataset, name: str, values: list[Any]) -> None:
    for value in values:
        refused(PlanError, lambda: ds.with_options(**{name: value}), name)  # noqa: B023


def test_a_wrong_option_is_told_the_right_one(ds: dml.Dataset) -> None:
    refused(PlanError, lambda: ds.with_options(memorylimit=1), "did you mean 'memory_limit'?")


def test_a_value_that_cannot_be_a_literal(ds: dml.Dataset) -> None:
    refused(SchemaError, lambda: ds.with_columns(a=object()), "test_bad_input.py:")


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.map(lambda _: {"x": bool(LOCK)}),
        lambda ds: ds.filter(lambda _: bool(LOCK)),
        lambda ds: ds.flat_map(lambda row: [row] if LOCK else []),
        lambda ds: ds.random_map(lambda _, __: {"x": bool(LOCK)}),
        lambda ds: ds.batch(3).map(lambda batch: batch if LOCK else {}),
    ],
)
def test_functions_without_a_name_have_no_fingerprint(ds: dml.Dataset, make: Verb) -> None:
    refused(FingerprintError, make(ds).fingerprint, "it is a lock", 'fingerprint="..."')


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda there: dml.read_parquet(f"{there}/b.parquet"), "does not exist"),
        (lambda _: LOOSE.read_parquet("/nowhere/at/all"), "does not exist"),
        (lambda there: dml.read_parquet(f"{there}/*.pq"), "no file matches"),
        (lambda _: LOOSE.read_parquet([]), "no paths were given"),
        (lambda _: LOOSE.read_parquet(None), "is not a path"),
        (lambda _: LOOSE.read_parquet(3), "is not a path"),
        (lambda _: LOOSE.from_dict({}), "no columns"),
        (lambda _: LOOSE.from_dict(3), "needs a dict of columns"),
        (lambda _: LOOSE.from_dict({"a": [1], "b": [1, 2]}), "1 and 2 rows"),
        (lambda _: LOOSE.from_items([]), "no items"),
        (lambda _: LOOSE.from_items("text"), "needs a list of rows"),
        (lambda _: LOOSE.from_items([1, "a"]), "mixes int and str"),
        (lambda _: LOOSE.from_items([{"a": 1}, {"b": 1}]), "row 1 has column 'b' too"),
        (lambda _: LOOSE.from_items([object()]), "no column can hold"),
        (lambda _: LOOSE.from_arrow(3), "cannot read a int"),
        (
            lambda _: LOOSE.from_items(row if row < 2 else 1 // 0 for row in range(9)),
            "after 2 rows",
        ),
    ],
)
def test_sources(tmp_path: Path, make: Callable[[str], Any], words: str) -> None:
    there = write(tmp_path / "data")
    refused(SourceError, lambda: make(there), words, "test_bad_input.py:")


@pytest.mark.parametrize("columns", [["z"], ["x", "x"], 3])
def test_columns_of_sources(tmp_path: Path, columns: Any) -> None:
    there = write(tmp_path / "data")
    refused(SchemaError, lambda: LOOSE.read_parquet(there, columns), "test_bad_input.py:")


def test_empty_places(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(SourceError, lambda: dml.read_parquet(tmp_path / "empty"), "no Parquet files")
    (tmp_path / "empty" / "a.parquet").touch()
    refused(SourceError, lambda: dml.read_parquet(tmp_path / "empty"), "is empty")


def test_schemas_that_change_between_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    for other in ({"b": [1]}, {"a": [1.5]}, {"a": [1], "b": [2]}):
        pq.write_table(pa.table(other), tmp_path / "b.parquet")
        refused(SourceError, lambda: dml.read_parquet(tmp_path), "a.parquet", "b.parquet")


def test_truncation(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "data")) / "a.parquet"
    whole = path.read_bytes()
    for size in (4, 11, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(SourceError, lambda: dml.read_parquet(path), "is truncated")


@pytest.mark.law
def test_200_flipped_bits_never_give_wrong_rows(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "data")) / "a.parquet"
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    drawn = np.random.default_rng(11)
    right = opened(tmp_path / "data").to_numpy()
    found = 0
    with nothing_left(tmp_path / "scratch"):
        for place in drawn.integers(4, footer, 200):
            bad = bytearray(whole)
            bad[place] ^= 1 << drawn.integers(8)
            path.write_bytes(bad)
            read = _read(path)
            found += isinstance(read, DmlError)
            if not isinstance(read, DmlError):  # a bit of a page's header that means nothing
                assert all(np.array_equal(read[name], right[name]) for name in right)
    assert found > 150


def _read(path: Path) -> dict[str, np.ndarray] | DmlError:
    """The rows, or the four-line error that names the file."""
    ds = dml.read_parquet(path).with_options(telemetry_dir="off")
    try:
        return ds.to_numpy()
    except DmlError as error:
        return refused(type(error), partial(_again, error), "a.parquet")


def _again(error: DmlError) -> None:
    raise error


def test_an_error_of_a_loop_says_iteration() -> None:
    with pytest.raises(PlanError) as caught:
        iter(dml.range(3).with_options(autoscale=(1, 2), telemetry_dir="off"))
    assert caught.value.at.startswith("iteration, written in ")
