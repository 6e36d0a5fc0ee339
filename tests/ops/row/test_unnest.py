"""Test ``unnest``: the fields of structs as columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import PlanError, SchemaError
from tests.expr.checks import holds, numbers, table

POINTS = pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 4, "b": ""}])


def points() -> dml.Dataset:
    return table({"k": pa.array(range(4)), "p": POINTS, "z": pa.array([0.5] * 4)})


@pytest.mark.law
def test_fields_stand_where_the_struct_stood() -> None:
    ds = points().unnest("p")
    assert ds.columns == ["k", "a", "b", "z"]
    assert ds.schema["a"] == pa.int64()
    assert [row["a"] for row in ds] == [1, None, None, 4]
    assert [row["b"] for row in ds] == ["x", None, "y", ""]
    assert holds(ds) == 4
    assert holds(ds.filter(col("b").is_not_null()).drop("a").batch(3)) == 1


@pytest.mark.law
def test_several_and_nested() -> None:
    inner = pa.array([{"c": {"d": 1}}, {"c": None}])
    ds = table({"p": POINTS.slice(0, 2), "q": inner})
    assert ds.unnest("q", "p").columns == ["a", "b", "c"]
    deep = ds.unnest(["q"]).unnest("c")  # type: ignore[arg-type]
    assert [row["d"] for row in deep] == [1, None]
    holds(deep)
    holds(ds.drop("q").unnest("p").shuffle(2).repeat(2))


@pytest.mark.law
def test_what_only_a_run_knows() -> None:
    ds = numbers(4).map(lambda row: {"p": {"a": row["x"], "b": str(row["x"])}}, fingerprint="p")
    assert holds(ds.unnest("p")) == 4
    with pytest.raises(SchemaError, match="unnest needs structs, 'x' is int64"):
        list(numbers(3).map(lambda row: {"x": int(str(row["x"]))}, fingerprint="same").unnest("x"))


def test_what_is_refused() -> None:
    with pytest.raises(SchemaError, match="needs column 'q'"):
        points().unnest("q")
    with pytest.raises(SchemaError, match="unnest needs structs, 'k' is int64") as found:
        points().unnest("k")
    assert "test_unnest.py" in str(found.value)
    with pytest.raises(SchemaError, match="two columns the name 'k'"):
        points().with_columns(p=col("p").struct.rename_fields(["a", "k"])).unnest("p")
    with pytest.raises(PlanError, match="unnest needs at least one column"):
        points().unnest()
    empty = table({"p": pa.array([{}], pa.struct([]))})
    with pytest.raises(SchemaError, match="unnest leaves no column"):
        empty.unnest("p")
