"""Test schemas: types given as text, codes and shapes, helpful errors for absent columns."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.data.schema import (
    CODES,
    UNKNOWN,
    Schema,
    code_of,
    data_type,
    schema_of,
    shape_of,
    short,
    tensor,
)
from dml.errors import SchemaError


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("float32", pa.float32()),
        ("f4", pa.float32()),
        (np.float32, pa.float32()),
        (np.dtype("int8"), pa.int8()),
        ("int", pa.int64()),
        (int, pa.int64()),
        (float, pa.float64()),
        (bool, pa.bool_()),
        ("bool", pa.bool_()),
        (str, pa.string()),
        ("M8[us]", pa.timestamp("us")),
        (pa.date32(), pa.date32()),
        ("i8[?]", pa.list_(pa.int64())),
        ("list<i8>", pa.list_(pa.int64())),
        ("list<string>", pa.list_(pa.string())),
        (list[str], pa.list_(pa.string())),
        (list[list[float]], pa.list_(pa.list_(pa.float64()))),
        ("list<list<int8>>", pa.list_(pa.list_(pa.int8()))),
    ],
)
def test_words(word: Any, kind: pa.DataType) -> None:
    assert data_type(word) == kind


@pytest.mark.parametrize(
    "word",
    [
        *(None, "no type", {}, [], 3, object, np.dtype("V4"), "c16"),
        # NumPy and Arrow raise a ValueError and an OverflowError for these
        *("decimal128(12, 2)", "f4[99999999999999999999]"),
        *("list<>", "list<no type>", "list<f4[3]>", "list", list, list[object]),
        *(list[int, str], "list<item: float>"),  # type: ignore[misc]
    ],
)
def test_no_words(word: Any) -> None:
    with pytest.raises(SchemaError, match="is not a type"):
        data_type(word)


def test_codes_and_shapes() -> None:
    for kind, code in CODES.items():
        assert code_of(kind) == code_of(tensor(code, (2, 3))) == code
        assert shape_of(kind) == ()
        assert shape_of(tensor(code, (2, 3))) == (2, 3)
    assert code_of(pa.string()) == "arrow"
    assert short(tensor("f4", (13,))) == "f4[13]"
    assert short(pa.string()) == "string"


def test_a_schema_is_a_value() -> None:
    a, b = Schema({"x": pa.int8(), "y": pa.string()}), Schema({"y": pa.string(), "x": pa.int8()})
    assert a == Schema(a)
    assert hash(a) == hash(Schema(a))
    assert a != b
    assert a.digest != b.digest
    assert Schema() != UNKNOWN
    assert "x" in a
    assert a.names == ("x", "y")
    assert schema_of(a.to_arrow()) == a
    assert schema_of({"x": "int8", "y": str}) == a
    assert str(UNKNOWN) == "unknown columns"


def test_absence_names_what_is_near() -> None:
    schema = Schema({"label": pa.int8()})
    with pytest.raises(SchemaError) as caught:
        schema.require("lable", "select")
    assert caught.value.try_ == "did you mean 'label'?"
    with pytest.raises(SchemaError, match="is not a schema"):
        schema_of(3)


def test_a_schema_that_travels_leaves_behind_what_was_derived_from_it() -> None:
    """The hash of a text differs between processes; a selection may be most of a schema."""
    schema = Schema({"a": pa.int64(), "b": pa.string()})
    fresh = pickle.dumps(schema)
    assert hash(schema) == hash(Schema({"a": pa.int64(), "b": pa.string()}))
    assert schema.select(("b",)) is schema.select(("b",))
    assert pickle.dumps(schema) == fresh
    assert pickle.loads(fresh) == schema
    assert pickle.loads(pickle.dumps(UNKNOWN)) == UNKNOWN


@pytest.mark.parametrize("owner", [b"one", b"other"])
def test_equal_types_keep_their_own_metadata(owner: bytes) -> None:
    """Arrow compares types without the metadata of their fields."""
    field = pa.field("f", pa.int64(), metadata={"owner": owner})
    table = pa.table({"s": pa.array([{"f": 1}], pa.struct([field])), "x": [2]})
    ds = dml.from_arrow(table).select("s").with_options(telemetry_dir="off")
    assert ds.to_arrow().schema.field("s").type.field("f").metadata == {b"owner": owner}
