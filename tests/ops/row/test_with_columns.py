"""Test ``with_columns``: expressions over the input's columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import SchemaError
from tests.expr.checks import holds, numbers, table


@pytest.mark.law
def test_every_expression_sees_the_input() -> None:
    ds = numbers(4).with_columns(x=col("x") + 1, y=col("x") * 2)
    assert ds.take_rows(2) == [{"x": 1, "y": 0}, {"x": 2, "y": 2}]
    assert holds(ds) == 4


def test_one_array_under_two_names() -> None:
    ds = numbers(6).with_columns(y=col("x"), z=col("x")).batch(6)
    (batch,) = ds
    batch["x"][0] = 99
    assert batch["y"][0] == batch["z"][0] == 0
    assert holds(ds) == 1


@pytest.mark.law
def test_draws_differ_by_column_stream_operator_and_epoch() -> None:
    ds = (
        numbers(5)
        .with_columns(a=dml.random(), b=dml.random(), c=dml.random(stream=1))
        .with_columns(d=dml.random(), e=dml.random(seed=9) - dml.random(seed=9))
    )
    rows = ds.take_rows(5)
    drawn = [row[name] for row in rows for name in "abcd"]
    assert len(set(drawn)) == 20
    assert all(row["e"] == 0 for row in rows)  # one draw, written twice
    assert holds(ds) == 5


def test_draws_follow_their_rows() -> None:
    plain = {row["x"]: row["u"] for row in numbers(8).with_columns(u=dml.random())}
    kept = numbers(8).with_columns(u=dml.random()).filter(col("x") > 2).shuffle(seed=1)
    assert {row["x"]: row["u"] for row in kept} == {x: u for x, u in plain.items() if x > 2}


@pytest.mark.law
def test_rewriting_keeps_the_key_of_draws() -> None:
    ds = numbers(9).shuffle(4).with_columns(u=dml.random()).filter(col("x") > 1)
    ds = ds.with_columns(v=dml.random()).select("v", "u", "x")
    assert holds(ds) == 7


@pytest.mark.law
def test_literals_and_nulls() -> None:
    columns = {"n": pa.nulls(4), "s": pa.array(["a", None, "b", "c"])}
    ds = table(columns).with_columns(i=1, f=2.5, t=dml.lit("x"), n2=None, m=col("n").is_null())
    assert str(ds.schema) == (
        "n: null, s: string, i: int64, f: double, t: string, n2: null, m: bool"
    )
    assert holds(ds) == 4


def test_refuses_absent_columns() -> None:
    with pytest.raises(SchemaError, match="needs column 'y'"):
        numbers().with_columns(z=col("y"))
