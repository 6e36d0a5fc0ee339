"""Test types of expressions and their lowering to flat programs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col, lit, when
from dml.data.schema import Schema, tensor
from dml.errors import SchemaError
from dml.expr.columns.typing import lower, type_of
from tests.expr.checks import agrees, computed, table

SCHEMA = Schema({
    "i": pa.int32(), "f": pa.float32(), "b": pa.bool_(), "s": pa.string(), "n": pa.null(),
    "t": pa.timestamp("us"), "z": pa.timestamp("us", "UTC"), "l": pa.list_(pa.int64()),
    "v": tensor("f4", (2,)), "m": tensor("b1", (2,)), "c": pa.decimal128(5, 2),
})  # fmt: skip


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (col("f") / col("f"), pa.float32()),
        (col("f") / 2, pa.float32()),
        (col("f") / col("i"), pa.float64()),
        (col("i") / 2, pa.float64()),
        (lit(1) / 2, pa.float64()),
        (col("i").sqrt(), pa.float64()),
        (col("f").sqrt(), pa.float32()),
        (col("i").round(-1), pa.int32()),
        (col("b") & True, pa.bool_()),
        (col("b") & 1, pa.int64()),
        (col("b") + 1, pa.int64()),
        (col("n") + 1, pa.int64()),
        (col("n").fill_null("a"), pa.string()),
        (col("n") == col("n"), pa.bool_()),
        (when(col("b")).then(None).otherwise("a"), pa.string()),
        (when(col("b")).then(None).otherwise(None), pa.null()),
        (col("v") + 1, tensor("f4", (2,))),
        (col("v") / 2, tensor("f4", (2,))),
        (col("v").cast("int8"), tensor("i1", (2,))),
        (col("v").is_null(), pa.bool_()),
        (col("l").is_null(), pa.bool_()),
        (col("c") == col("c"), pa.bool_()),
        (col("t").cast(pa.date32()), pa.date32()),
        (lit("a", pa.large_string()), pa.string()),
        (lit(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)), pa.timestamp("us", "UTC")),
    ],
)
def test_types(value: dml.Column, kind: pa.DataType) -> None:
    assert type_of(value.value, SCHEMA) == kind


@pytest.mark.parametrize(
    "value",
    [
        col("b") + col("b"),
        -col("b"),
        col("s") + "a",
        col("s") < 1,
        col("l") == col("l"),
        col("l").is_in([]),
        col("l").hash(),
        col("c").hash(),
        col("v") > 0,
        col("v").hash(),
        col("v").is_nan(),
        col("v").bucketize([1]),
        dml.stack("v", "v"),
        dml.stack("s"),
        ~col("m"),
        col("m") & col("m"),
        when(col("v")).then(1).otherwise(2),
        col("i").is_nan(),
        col("i").fill_nan(0),
        col("i").fill_null("a"),
        col("s").cast("date32"),
        col("v").cast("string"),
        col("z").cast("string"),
        col("i").cast(tensor("f4", (2,))),
        col("v").cast(tensor("f4", (3,))),
        col("t") == col("z"),
        col("z") > dt.datetime(2020, 1, 1),
        col("t") > dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        col("z").cast(pa.timestamp("us")),
        lit("x", "int64"),
        lit(1.5, "int64"),
        lit(3, "string"),
        col("absent"),
    ],
)
def test_refusals_have_a_reason(value: dml.Column) -> None:
    with pytest.raises(SchemaError) as caught:
        type_of(value.value, SCHEMA)
    assert caught.value.why
    assert caught.value.try_


def test_equal_parts_are_computed_once() -> None:
    part = col("i") * 3
    lowered = lower([(part + part).value, part.value], SCHEMA)
    assert [step.op for step in lowered.program.steps] == ["lit", "mul", "add"]
    assert len(lowered.inputs) == 1


def test_types_of_other_columns_are_not_lost() -> None:
    value = when(col("b")).then(None).otherwise("a").cast(pa.binary()).value
    steps = lower([value], SCHEMA).program.steps
    assert [step.params[-1] for step in steps if step.code == "arrow" and step.params] == [
        pa.string(), pa.string(), pa.binary(),
    ]  # fmt: skip


FOUR = pa.ExtensionArray.from_storage(
    tensor("f8", (2, 2)),
    pa.array([[1.0, 2.0, -3.0, 0.5], None, [0.0] * 4], pa.list_(pa.float64(), 4)),
)


@pytest.mark.parametrize(
    "value",
    [
        col("t") + 1,
        col("t") // 0,
        col("t") % 2,
        -col("t"),
        abs(col("t")),
        col("t") ** 2,
        col("t").exp(),
        col("t").round(1),
        col("t").clip(0, 1),
        col("t").cast("int8"),
        col("t").cast("int8") & 3,
        col("t").cast("int8") + 1.5,
        col("t").fill_null(0),
        col("t").fill_nan(1),
        lit(1.0).fill_null(col("t")),
        dml.maximum(col("t"), col("t") * 2),
        when(col("t").is_null()).then(0.0).otherwise(col("t")),
        when(col("t").is_null()).then(None).otherwise(col("t")),
        (col("t") * 1e308 * 10).cast("float32"),
        (col("t") * 1e300).cast("float32", strict=False),
        col("t").is_null(),
    ],
)
def test_tensors_through_every_operation(value: dml.Column) -> None:
    ds = table({"t": FOUR}).with_columns(r=value)
    agrees(ds, epochs=(0,))
    kind = ds.schema["r"]
    shape = () if kind == pa.bool_() else (2, 2)
    made = ds.select("r").to_arrow()["r"]
    assert made.type == kind
    assert len(made) == 3
    assert table({"t": FOUR}).with_columns(r=col("t")).schema["r"].shape == [2, 2]
    block = next(iter(ds.fill_null({"r": 0} if shape else {"t": 0}).batch(3)))
    assert block["r"].shape == (3, *shape)


def test_constant_parts_are_folded_to_the_same() -> None:
    columns: dict[str, Any] = {"x": pa.array([1, 2], pa.int8())}
    assert computed(columns, (lit(1) + lit(2)) * col("x")) == [3, 6]
    assert computed(columns, lit(1.0).fill_null(None) + col("x")) == [2.0, 3.0]
    assert computed(columns, lit("a").fill_null("b")) == ["a", "a"]
    assert computed(columns, lit(None).cast("string").fill_null("b")) == ["b", "b"]
    assert computed(columns, lit(np.float32(0.5)) + col("x")) == [1.5, 2.5]


WIDE = Schema({
    "h": pa.float16(), "d": pa.decimal128(10, 2), "e": pa.decimal128(12, 3), "i": pa.int64(),
    "u": pa.uint64(), "t": pa.timestamp("us"), "m": pa.timestamp("ms"), "k": pa.duration("us"),
    "z": pa.timestamp("us", "Europe/Berlin"), "s": pa.string(), "y": pa.date32(),
})  # fmt: skip
FUNCTION = ".map(f) with a function of Python's values"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: col("s").cast("float16"), ".map(f) with a function that converts"),
        (lambda: col("s").cast("date32"), '.str.to_date("%Y-%m-%d")'),
        (lambda: col("s").cast("timestamp[us]"), '.str.to_datetime("%Y-%m-%d %H:%M:%S")'),
        (lambda: 1 + col("s"), '.cast("int64") of the text'),
        (lambda: col("z").cast("string"), '.dt.strftime("%Y-%m-%d %H:%M:%S")'),
        (lambda: col("d").cast("float64"), ".map(f) with a function that converts"),
        (lambda: col("h").cast("float32"), ".map(f) with a function that converts"),
        (lambda: col("d") + col("d"), FUNCTION),
        (lambda: col("d") * 2, FUNCTION),
        (lambda: col("d") > col("e"), FUNCTION),
        (lambda: col("h") + 1, FUNCTION),
        (lambda: -col("h"), FUNCTION),
        (lambda: col("k") + col("k"), FUNCTION),
        (lambda: col("t") + col("k"), FUNCTION),
        (lambda: col("t") - col("t"), '.dt.epoch("us")'),
        (lambda: col("z") - col("z"), '.dt.epoch("us")'),
        (lambda: col("y") - col("y"), '.dt.epoch("us")'),
        (lambda: col("t") - col("m"), ".cast(...) one side"),
        (lambda: col("i") + col("u"), ".cast(...) one side"),
        (lambda: col("i") < col("u"), ".cast(...) one side"),
        (lambda: col("z").dt.truncate("1h"), ".map(f)"),
    ],
)
def test_what_is_not_computed_says_what_is(make: Any, named: str) -> None:
    with pytest.raises(SchemaError) as caught:
        type_of(make().value, WIDE)
    assert named in caught.value.try_


def test_what_such_errors_name_computes() -> None:
    times = [dt.datetime(2024, 1, 1, 2), dt.datetime(2024, 1, 1)]
    columns = {"t": pa.array(times), "m": pa.array(times[::-1], pa.timestamp("ms"))}
    between = col("t").dt.epoch("us") - col("m").cast(pa.timestamp("us")).dt.epoch("us")
    wanted = [
        (a - b) // dt.timedelta(microseconds=1) for a, b in zip(times, times[::-1], strict=True)
    ]
    assert computed(columns, between) == wanted
    assert computed(columns, col("t") == col("m").cast(pa.timestamp("us"))) == [False, False]


def test_tensors_of_half_floats_are_lists() -> None:
    rows = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(4, dtype="f2").reshape(2, 2))
    assert table({"a": rows}).to_list() == [{"a": [0.0, 1.0]}, {"a": [2.0, 3.0]}]
