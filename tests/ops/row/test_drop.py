"""Test ``drop``: remove columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dml.errors import SchemaError
from tests.expr.checks import holds, table

COLUMNS = {"a": pa.array([1, 2, 3, 4]), "b": pa.array([1.5, None, 3, 4]), "c": pa.array([0] * 4)}


def test_the_others_keep_their_order() -> None:
    ds = table(COLUMNS).drop("b")
    assert ds.columns == ["a", "c"]
    assert holds(ds) == 4


def test_refusals() -> None:
    with pytest.raises(SchemaError, match="leaves no column"):
        table(COLUMNS).drop("a", "b", "c")
    with pytest.raises(SchemaError, match="'d'"):
        table(COLUMNS).drop("d")
