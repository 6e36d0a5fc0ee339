"""Test type promotion: NumPy's rules with weak literals, and which literals fit a type."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dml import col, lit
from dml.data.schema import CODES, Schema, tensor
from dml.errors import SchemaError
from dml.expr.columns.promotion import comparable, fitting, natural, same_family
from dml.expr.columns.typing import type_of

NUMBERS = [kind for kind, code in CODES.items() if code != "b1"]


@pytest.mark.parametrize(("a", "b"), [*itertools.product(NUMBERS, NUMBERS)])
def test_columns_promote_as_in_numpy(a: pa.DataType, b: pa.DataType) -> None:
    schema = Schema({"a": a, "b": b})
    value = (col("a") + col("b")).value
    codes = {CODES[a], CODES[b]}
    if "u8" in codes and any(code[0] == "i" for code in codes):
        with pytest.raises(SchemaError, match="without a common type"):
            type_of(value, schema)
        return
    wanted = np.promote_types(CODES[a], CODES[b])
    assert type_of(value, schema) == pa.from_numpy_dtype(wanted)


@pytest.mark.parametrize("kind", NUMBERS)
def test_literals_are_weak(kind: pa.DataType) -> None:
    schema, whole = Schema({"a": kind}), CODES[kind][0] in "iu"
    assert type_of((col("a") + 1).value, schema) == kind
    assert type_of((1 + col("a")).value, schema) == kind
    assert type_of((col("a") + True).value, schema) == kind
    assert type_of((col("a") + 1.5).value, schema) == (pa.float64() if whole else kind)
    assert type_of((col("a") + None).value, schema) == kind
    if kind != pa.uint64():
        both = type_of((col("a") + col("b")).value, Schema({"a": kind, "b": pa.int64()}))
        assert type_of((col("a") + lit(1, "int64")).value, schema) == both


def test_tensors_keep_their_shape_beside_literals() -> None:
    schema = Schema({"t": tensor("i1", (2, 3)), "b": tensor("b1", (2,))})
    assert type_of((col("t") + 1.5).value, schema) == tensor("f8", (2, 3))
    assert type_of((col("t") / 2).value, schema) == tensor("f8", (2, 3))
    with pytest.raises(SchemaError, match="without a common type"):
        type_of((col("t") + col("b")).value, schema)


DAY, NOON = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 12)
AWARE = NOON.replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (None, pa.int8(), None),
        (127, pa.int8(), 127),
        (True, pa.int8(), 1),
        (3, pa.float32(), 3.0),
        ("a", pa.large_string(), "a"),
        (b"a", pa.large_binary(), b"a"),
        (NOON, pa.timestamp("s"), NOON),
        (DAY, pa.timestamp("ns"), dt.datetime(2020, 1, 1)),
        (dt.datetime(2020, 1, 1), pa.date32(), DAY),
        (AWARE, pa.timestamp("ms", "Europe/Berlin"), AWARE),
    ],
)
def test_literals_that_fit(value: Any, kind: pa.DataType, wanted: Any) -> None:
    assert fitting(value, kind) == wanted
    assert type(fitting(value, kind)) is type(wanted)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (128, pa.int8()),
        (-1, pa.uint64()),
        (1.5, pa.int64()),
        ("x", pa.int64()),
        (2, pa.bool_()),
        (10**400, pa.float64()),
        (3, pa.string()),
        (NOON.replace(microsecond=1), pa.timestamp("ms")),
        (dt.datetime(3000, 1, 1), pa.timestamp("ns")),
        (NOON, pa.date32()),
        (NOON, pa.timestamp("us", "UTC")),
        (AWARE, pa.timestamp("us")),
        (DAY, pa.timestamp("us", "UTC")),
    ],
)
def test_literals_that_do_not_fit(value: Any, kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="does not fit") as caught:
        fitting(value, kind)
    assert caught.value.why
    assert caught.value.try_


def test_families() -> None:
    assert same_family(pa.string(), pa.large_string())
    assert not same_family(pa.string(), pa.binary())
    assert same_family(pa.date32(), pa.timestamp("ns"))
    assert not same_family(pa.timestamp("us"), pa.timestamp("us", "UTC"))
    assert natural(AWARE) == pa.timestamp("us", "UTC")
    assert natural([1]) is None
    assert comparable(pa.duration("s"))
    assert comparable(pa.decimal128(5, 2))
    assert not comparable(pa.list_(pa.int8()))
    assert not comparable(tensor("f4", (2,)))
