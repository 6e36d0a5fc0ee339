"""Test user functions in expressions: their steps, one call for each row, errors in place."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import CastError, DmlError, PlanError, SchemaError, UDFError
from tests.expr.checks import agrees, holds, node_of, table

DATA = {"x": pa.array([0, 2, -1, 7, 5]), "f": pa.array([0.5, None, 1.0, 2.0, 4.0], pa.float32())}


@dml.udf(return_dtype="float32")
def scaled(x: int, y: float | None) -> float | None:
    """A product."""
    return None if y is None else x * y


def steps(ds: dml.Dataset) -> list[str]:
    """Names of the steps after the source."""
    return [type(node).__name__ for node in node_of(ds).chain()[1:]]


@pytest.mark.law
def test_calls_stand_in_expressions() -> None:
    ds = table(DATA).with_columns(z=scaled(col("x") + 1, "f") * 2, w=scaled("x", scaled("x", "f")))
    assert dict(ds.schema) == {
        "x": pa.int64(), "f": pa.float32(), "z": pa.float32(), "w": pa.float32(),
    }  # fmt: skip
    assert ds.to_arrow()["z"].to_pylist() == [1.0, None, 0.0, 32.0, 48.0]
    assert ds.to_arrow()["w"].to_pylist() == [0.0, None, 1.0, 98.0, 100.0]
    assert holds(ds) == 5
    assert holds(table(DATA).batch(2).with_columns(z=scaled("x", "f"))) == 3
    agrees(ds.shuffle(seed=1).filter(col("z") > 0).repeat(2))


def test_a_call_alone_is_a_step_of_its_own() -> None:
    alone = table(DATA).with_columns(z=scaled("x", "f"), y=dml.apply(abs, "x", return_dtype="i8"))
    assert steps(alone) == ["Apply", "Apply"]
    assert list(alone.schema) == ["x", "f", "z", "y"]
    replaced = table(DATA).with_columns(a=1, x=scaled("x", "f"))
    assert list(replaced.schema) == ["x", "f", "a"]
    assert replaced.to_arrow()["x"].to_pylist() == [0.0, None, -1.0, 14.0, 20.0]
    twice = table(DATA).with_columns(a=scaled("x", "f"), b=scaled("x", "f"))
    assert steps(twice) == ["Apply", "WithColumns"]
    agrees(twice)
    chosen = table(DATA).select("f", q=scaled("x", "x"))
    assert chosen.to_arrow().to_pydict() == {
        "f": DATA["f"].to_pylist(), "q": [0.0, 4.0, 1.0, 49.0, 25.0],
    }  # fmt: skip


def test_a_function_is_called_once_a_row_in_order() -> None:
    seen: list[Any] = []

    def keep(x: int, f: float | None) -> int:
        seen.append((x, f))
        return len(seen)

    ds = table(DATA).with_columns(k=dml.apply(keep, "x", "f", return_dtype="int64"))
    assert ds.to_arrow()["k"].to_pylist() == [1, 2, 3, 4, 5]
    assert seen == list(zip(DATA["x"].to_pylist(), DATA["f"].to_pylist(), strict=True))


@pytest.mark.law
def test_after_a_function_of_rows_without_types() -> None:
    rows = table(DATA).map(lambda row: {**row, "k": str(row["x"])})
    agrees(rows.with_columns(z=scaled("x", "f"), n=dml.apply(len, "k", return_dtype="i8")))


def test_functions_name_the_result() -> None:
    def one(x: int) -> int:
        return x + 1

    def other(x: int) -> int:
        return x + 2

    made = [table(DATA).with_columns(z=dml.apply(f, "x", return_dtype="i8")) for f in (one, other)]
    again = table(DATA).with_columns(z=dml.udf(return_dtype="i8")(one)(col("x")))
    assert made[0].fingerprint() == again.fingerprint() != made[1].fingerprint()
    vouched = dml.udf(return_dtype="i8", fingerprint="mine")(one)
    assert table(DATA).with_columns(z=vouched("x")).fingerprint() != again.fingerprint()


@pytest.mark.law
def test_errors_stand_in_their_row() -> None:
    ds = table(DATA).with_columns(z=dml.apply(lambda x: 1 // (x - 7), "x", return_dtype="i8"))
    with pytest.raises(UDFError, match="ZeroDivisionError") as caught:
        ds.to_arrow()
    assert "row 3" in caught.value.at
    assert ds.take_rows(3) == ds.take(3).take_rows(3)
    agrees(ds)
    misfit = table(DATA).with_columns(z=dml.apply(lambda x: x * 40, "x", return_dtype="int8"))
    with pytest.raises(UDFError, match="280") as caught:
        misfit.to_arrow()
    assert "row 3" in caught.value.at
    agrees(misfit)
    before = table(DATA).with_columns(
        z=dml.apply(abs, (col("x") * 40).cast("i1"), return_dtype=int)
    )
    with pytest.raises(CastError, match="meets 280"):
        before.to_arrow()
    agrees(before)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda ds: ds.filter(scaled("x", "f") > 0), "cannot stand here"),
        (lambda ds: ds.with_columns(z=scaled("x", "y")), "needs column 'y'"),
        (lambda ds: ds.with_columns(z=scaled(1, 2)), "without a column"),
        (lambda ds: ds.with_columns(z=scaled("x", [1])), "cannot be a literal"),
        (lambda ds: ds.with_columns(z=dml.apply(3, "x", return_dtype="i8")), "needs a function"),  # type: ignore[arg-type]
        (lambda _: dml.udf(return_dtype="wide")(abs), "'wide' is not a type"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(make: Any, words: str) -> None:
    with pytest.raises(DmlError, match=words) as caught:
        make(table(DATA))
    assert isinstance(caught.value, PlanError | SchemaError)


def test_the_decorator_keeps_the_name_and_the_doc() -> None:
    assert getattr(scaled, "__name__", "") == "scaled"
    assert scaled.__doc__ == "A product."
    assert repr(scaled("x", col("f") + 1)) == "scaled(x, (f + 1))"
