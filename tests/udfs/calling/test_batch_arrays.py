"""Test the arrays that a training loop receives: their kinds, and that it owns them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.data.block import Block
from dml.data.list_marks import Padded, Ragged
from dml.data.schema import Schema
from dml.data.stream_hash import stream_hash
from dml.errors import NullValueError
from dml.expr.batch_run import ScatteredBatch
from dml.kernels.rows.ids import RowIds
from dml.udfs.calling.batch_arrays import arrays_of, gathered_arrays
from tests.expr.checks import QUIET, agrees, table

T = TypeVar("T")
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


FILLS: dict[str, Any] = {"uint8": 7, "int64": -1, "float32": float("nan"), "bool": True}


@st.composite
def scattered(draw: st.DrawFn) -> ScatteredBatch:
    """Draw a batch whose rows lie in some blocks: lists, with nulls or without, and a number."""
    kind = draw(st.sampled_from(sorted(FILLS)))
    numbers = {"bool": st.booleans(), "float32": st.floats(width=32)}.get(kind, st.integers(0, 99))
    values = st.lists(st.one_of(numbers, st.none()) if draw(st.booleans()) else numbers, max_size=5)
    rows = st.lists(st.one_of(values, st.none()) if draw(st.booleans()) else values, max_size=8)
    type_ = pa.list_(pa.type_for_alias(kind))
    width = draw(st.sampled_from([None, 5, 9]))
    mark = Ragged(type_) if draw(st.booleans()) else Padded(type_, fill=FILLS[kind], width=width)
    parts: list[tuple[Block, np.ndarray | None]] = []
    for number in range(draw(st.integers(1, 3))):
        lists = pa.array(draw(rows), type_)
        schema = Schema(
            {"l": Padded(type_, fill=FILLS[kind], width=width), "n": pa.int64(), "m": mark}
        )
        ids = RowIds.run(0, 10 * number, len(lists))
        batch = pa.record_batch(
            [lists, pa.array(range(len(lists)), pa.int64()), lists], schema=schema.to_arrow()
        )
        block = Block.from_arrow(batch, ids, schema).slice(
            draw(st.integers(0, min(2, len(lists)))), len(lists)
        )
        some = st.lists(st.integers(0, block.n - 1), max_size=6) if block.n else st.just([])
        index = draw(st.one_of(st.none(), some.map(lambda n: np.array(n, np.int64))))
        parts.append((block, index))
    return ScatteredBatch(tuple(parts))


def outcome(made: Callable[[], T]) -> tuple[T | None, str]:
    """The result and "", or None and the text of the error."""
    try:
        return made(), ""
    except NullValueError as error:
        return None, str(error)


@given(scattered())
def test_lists_are_padded_from_where_they_are_as_from_one_block(batch: ScatteredBatch) -> None:
    block = batch.block()
    expected, refused = outcome(lambda: arrays_of(block))
    found, also_refused = outcome(lambda: gathered_arrays(batch, arrays_of))
    assert also_refused == refused
    if found is None or expected is None:
        return
    made, nbytes = found
    assert [*made] == [*expected]
    assert stream_hash([made]) == stream_hash([expected])
    assert all(array.flags.writeable and array.flags.owndata for array in made.values())
    assert batch.n == block.n
    assert nbytes >= max(block.nbytes, sum(made[name].nbytes for name in ("l", "n")))
