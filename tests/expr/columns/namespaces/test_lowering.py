"""Test namespace functions inside pipelines: early type errors, fingerprints, lowering."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.data.schema import Schema
from dml.errors import SchemaError
from dml.expr.columns.namespaces import Namespaced
from dml.expr.columns.typing import lower, type_of
from dml.expr.columns.value import Value, value_text
from tests.expr.checks import QUIET, agrees, table

SCHEMA = Schema({"s": pa.string(), "n": pa.null()})
WORDS = {"s": pa.array(["a b", None, "c", "", "d e f"]), "x": pa.array([1, 2, None, 4, 5])}
COUNT = col("s").str.split(" ").list.len()


def test_functions_lower_to_one_step_each() -> None:
    lowered = lower([(COUNT + 1).value, COUNT.value], SCHEMA)
    assert [s.op for s in lowered.program.steps] == ["str.split", "list.len", "lit", "add"]
    assert [s.code for s in lowered.program.steps] == ["arrow", "i8", "i8", "i8"]


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(SchemaError, match="not an operation"):
        type_of(Value("str.rot13", (col("s").value,)), SCHEMA)


def test_a_column_of_nulls_is_taken_as_what_the_function_takes() -> None:
    assert type_of(col("n").str.split("a").value, SCHEMA) == pa.list_(pa.string())
    assert type_of(col("n").dt.year().value, SCHEMA) == pa.int64()
    with pytest.raises(SchemaError, match="needs a list"):
        type_of(col("n").list.len().value, SCHEMA)


def test_parameters_are_part_of_the_name() -> None:
    a, b = (table(WORDS).filter(col("s").str.contains(word)) for word in ("a", "b"))
    again = table(WORDS).filter(col("s").str.contains("a"))
    literal = table(WORDS).filter(col("s").str.contains("a", literal=True))
    names = {ds.fingerprint() for ds in (a, b, again, literal)}
    assert len(names) == 3


def test_order_of_text_is_part_of_the_name() -> None:
    both = {"s": pa.array(["a"]), "t": pa.array(["b"])}
    one = table(both).with_columns(r=col("s").str.concat(col("t")))
    other = table(both).with_columns(r=col("t").str.concat(col("s")))
    assert one.fingerprint() != other.fingerprint()


@pytest.mark.law
@pytest.mark.parametrize("optimize", [True, False])
def test_functions_before_and_after_batch_and_shuffle(*, optimize: bool) -> None:
    ds = table(WORDS).with_options(optimize=optimize).shuffle(seed=1).with_columns(k=COUNT)
    ds = ds.filter(col("s").str.len_chars() > 0).batch(2)
    ds = ds.with_columns(u=col("s").str.to_uppercase()).filter(COUNT < 3)
    agrees(ds)


@pytest.mark.law
def test_padded_columns_are_the_lists_that_they_were() -> None:
    lists = pa.array([[1, 2], None, [], [3]], pa.list_(pa.int64()))
    ds = table({"l": lists}).padded_batch(2).with_columns(s=col("l").list.sum().fill_null(0))
    agrees(ds.with_columns(r=col("l").list.reverse()).drop("l"), epochs=(0,))


@pytest.mark.law
def test_predicates_go_to_files_and_stay_true(tmp_path: Path) -> None:
    pq.write_table(pa.table(WORDS), tmp_path / "a.parquet", row_group_size=2)
    ds = dml.read_parquet(tmp_path / "a.parquet").with_options(**QUIET)
    kept = ds.filter((col("x") > 1) & col("s").str.contains("[c-e]")).select("s")
    assert kept.to_arrow()["s"].to_pylist() == ["d e f"]
    agrees(kept)


@pytest.mark.law
def test_functions_of_literals_are_folded_or_kept() -> None:
    ds = table(WORDS).filter(dml.lit("abc").str.starts_with("a")).with_columns(
        n=dml.lit("a b").str.len_chars() + col("x"), p=dml.lit("a b").str.split(" ")
    )  # fmt: skip
    agrees(ds)
    assert ds.to_arrow()["p"].to_pylist() == [["a", "b"]] * 5


def test_columns_are_named_as_users_write_them() -> None:
    value = col("s").str.pad_start(3, "0").str.contains("a")
    assert value_text(value.value) == "s.str.pad_start(3, '0').str.contains('a', False)"
    assert isinstance(value, Namespaced)
    assert repr(col("s").str) == "Strings of s"
