"""Test ``rename``: columns get other names, and keep their places."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dml.errors import SchemaError
from tests.expr.checks import holds, table

COLUMNS = {"a": pa.array([1, 2, 3, 4]), "b": pa.array([5, 6, 7, 8])}


def test_names_may_be_swapped() -> None:
    ds = table(COLUMNS).rename({"a": "b", "b": "a"})
    assert ds.columns == ["b", "a"]
    assert ds.take_rows(1) == [{"b": 1, "a": 5}]
    assert holds(ds) == 4


def test_refusals() -> None:
    with pytest.raises(SchemaError, match="two columns the name 'b'"):
        table(COLUMNS).rename(a="b")
    with pytest.raises(SchemaError, match="'z'"):
        table(COLUMNS).rename(z="y")
