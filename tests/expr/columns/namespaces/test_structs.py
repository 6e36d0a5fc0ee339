"""Test functions of structs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import PlanError, SchemaError
from tests.expr.checks import agrees, computed, table

ROWS = [{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}, {"x": 4, "y": None}]
DATA = {"s": pa.array(ROWS, pa.struct([("x", pa.int32()), ("y", pa.string())]))}
S = col("s").struct


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (S.field("x") + 1, [2, None, None, 5]),
        (S.field("y").str.to_uppercase(), ["A", None, "B", None]),
        (S.rename_fields(["u", "v"]).struct.field("v"), ["a", None, "b", None]),
        (
            S.rename_fields(["u", "v"]),
            [{"u": 1, "v": "a"}, None, {"u": None, "v": "b"}, {"u": 4, "v": None}],
        ),
    ],
)
def test_functions(value: dml.Column, wanted: list[Any]) -> None:
    assert computed(DATA, value) == wanted


@pytest.mark.law
def test_fields_choose_rows() -> None:
    agrees(table(DATA).filter(S.field("x") > 0).with_columns(x=S.field("x")), epochs=(0,))


@pytest.mark.parametrize(
    "value", [S.field("z"), S.rename_fields(["u"]), col("n").struct.field("x")]
)
def test_refusals_say_why(value: dml.Column) -> None:
    with pytest.raises(SchemaError) as caught:
        table({**DATA, "n": pa.array([1, 2, 3, 4])}).with_columns(r=value)
    assert caught.value.why
    assert "test_structs.py" in caught.value.at


@pytest.mark.parametrize(
    "make",
    [
        lambda: S.field(1),  # type: ignore[arg-type]
        lambda: S.rename_fields("ab"),
        lambda: S.rename_fields(["a", "a"]),
        lambda: S.rename_fields([]),
    ],
)
def test_parameters_are_checked(make: Any) -> None:
    with pytest.raises(PlanError):
        make()
