"""Test the arrays that a training loop receives: their kinds, and that it owns them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import NullValueError
from tests.expr.checks import QUIET, agrees, table

NOON = dt.datetime(2020, 1, 2, 12)
COLUMNS: dict[str, Any] = {
    "i": pa.array([1, 2, 3], pa.int8()),
    "b": pa.array([True, False, True]),
    "f": pa.array([1.5, None, 2.5], pa.float32()),
    "s": pa.array(["a", None, "ä"]),
    "y": pa.array([b"a", None, b""]),
    "l": pa.array([[1, 2], None, []]),
    "g": pa.array([[1.5, None], None, [2.5]]),
    "t": pa.array([NOON, None, NOON], pa.timestamp("ms")),
    "z": pa.array([NOON, None, NOON], pa.timestamp("us", "UTC")),
    "d": pa.array([NOON.date(), None, NOON.date()]),
    "e": pa.array([dt.timedelta(1), None, None]),
    "r": pa.array([{"a": 1}, None, {"a": 2}]),
    "h": pa.array([np.float16(1), None, np.float16(2)]),
    "n": pa.nulls(3),
}
DTYPES = {
    "i": "int8", "b": "bool", "f": "float32", "s": "object", "y": "object", "l": "object",
    "g": "object", "t": "datetime64[ms]", "z": "datetime64[us]", "d": "datetime64[D]",
    "e": "timedelta64[us]", "r": "object", "h": "float16", "n": "object",
}  # fmt: skip


def test_kinds() -> None:
    (batch,) = table(COLUMNS, atom_rows=9).batch(3)
    assert {name: str(array.dtype) for name, array in batch.items()} == DTYPES
    assert np.isnan(batch["f"]).tolist() == [False, True, False]
    assert np.isnat(batch["t"]).tolist() == [False, True, False]
    assert batch["l"][0].dtype == np.int64
    assert batch["g"][0] == [1.5, None]
    assert batch["s"].tolist() == ["a", None, "ä"]


@pytest.mark.law
@pytest.mark.parametrize("rewriting", [True, False])
def test_whoever_writes_into_a_batch_changes_no_other(rewriting: bool) -> None:
    ds = table(COLUMNS, atom_rows=2).with_options(optimize=rewriting)
    for made in (
        ds.batch(1),
        ds.batch(3),
        ds.repeat(2).batch(2),
        ds.batch(2).repeat(2),
        ds.batch(1).shuffle(3),
        ds.shuffle(2).batch(2),
        ds.with_columns(f=col("f").fill_null(col("i")), k=col("i"), j=col("i") + 1).batch(3),
    ):
        wanted = [repr(batch) for batch in made.epoch(0)]
        found = []
        for batch in made.epoch(0):
            found.append(repr(batch))
            for array in batch.values():
                assert array.flags.writeable
                spoil(array)
        assert found == wanted


def spoil(array: np.ndarray) -> None:
    if array.dtype == object:
        for part in array:
            if isinstance(part, np.ndarray):
                part[:] = 0
        array[:] = "spoilt"
    else:
        array[:] = np.zeros(1, "i8").astype(array.dtype)


def test_a_users_own_arrays_are_neither_changed_nor_given_out() -> None:
    mine = {"x": np.arange(6.0), "t": np.zeros((6, 2), np.int8)}
    ds = dml.from_numpy(mine).with_options(**QUIET)
    for size in (6, 4):
        for batch in ds.batch(size):
            batch["x"][:] = -1
            batch["t"][:] = -1
    for row in ds:
        row["t"][:] = -1
    assert mine["x"].tolist() == list(range(6))
    assert not mine["t"].any()
    assert not next(iter(ds))["t"].any()


def test_there_is_one_nan() -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x3FF0000000000000], "u8")
    floats = bits.view("f8")
    columns = {"f": pa.array(floats), "l": pa.array([floats, floats[:1], floats[2:]])}
    ds = table(columns).with_columns(g=col("f").cast("float32"))
    (batch,) = ds.batch(3)
    assert batch["f"].view("u8").tolist() == [0x7FF8 << 48, 0x7FF8 << 48, 0x3FF0 << 48]
    assert batch["g"].view("u4").tolist() == [0x7FC00000, 0x7FC00000, 0x3F800000]
    assert batch["l"][0].view("u8").tolist() == [0x7FF8 << 48, 0x7FF8 << 48, 0x3FF0 << 48]
    agrees(table({"f": pa.array(floats)}).batch(2))


@pytest.mark.parametrize(("kind", "fill"), [("int8", "0"), ("bool", "False")])
def test_a_null_that_no_array_can_show(kind: str, fill: str) -> None:
    ds = table({"v": pa.array([1, None]).cast(kind), "x": pa.array([1, 2])}).filter(col("x") > 0)
    with pytest.raises(NullValueError, match="column 'v' has a null") as caught:
        list(ds.batch(2))
    assert caught.value.try_.startswith(f".fill_null({{'v': {fill}}})")
    (batch,) = ds.filter(col("v").is_not_null()).batch(2)
    assert batch["v"].dtype == kind
    assert [row["v"] for row in ds][1] is None  # rows can
