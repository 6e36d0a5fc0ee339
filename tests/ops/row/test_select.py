"""Test ``select``: choose and order columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dml.errors import PlanError, SchemaError
from tests.expr.checks import holds, table

COLUMNS = {"a": pa.array([1, 2, 3, 4]), "b": pa.array(["x", None, "y", "z"])}


@pytest.mark.law
def test_order_is_as_named() -> None:
    ds = table(COLUMNS).select("b", "a")
    assert ds.columns == ["b", "a"]
    assert holds(ds) == 4
    assert holds(table(COLUMNS).batch(3).select("b")) == 2


@pytest.mark.law
def test_after_a_function_of_unknown_columns() -> None:
    ds = table(COLUMNS).random_map(lambda row, _: {"p": row["a"], "q": row["b"]}).select("q")
    assert holds(ds) == 4


def test_refusals() -> None:
    with pytest.raises(SchemaError, match="did you mean"):
        table({"column": pa.array([1])}).select("colum")
    with pytest.raises(PlanError, match="twice"):
        table(COLUMNS).select("a", "a")
    with pytest.raises(PlanError, match="keeps no column"):
        table(COLUMNS).select()
