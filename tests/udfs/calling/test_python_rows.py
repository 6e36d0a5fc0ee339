"""Test rows as Python values, and the types that results settle."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml.data.block import Block
from dml.data.schema import Schema, tensor
from dml.errors import CastError, UDFError
from dml.expr.user_call import UserFunction
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from dml.udfs.calling import python_rows
from dml.udfs.calling.python_rows import (
    UnfitError,
    call_each,
    own_rows,
    settle,
    to_block,
    to_list,
    to_rows,
)

UTC = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def ids(n: int) -> RowIds:
    return RowIds.run(1, 0, n)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, None], pa.null()),
        ([1, None], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([True, None], pa.bool_()),
        (["a"], pa.string()),
        ([b"a"], pa.binary()),
        ([dt.datetime(2020, 1, 1), None], pa.timestamp("us")),
        ([UTC, None], pa.timestamp("us", "UTC")),
        ([dt.date(2020, 1, 1)], pa.date32()),
        ([dt.time(1, 2), None], pa.time64("us")),
        ([dt.timedelta(days=1), None], pa.duration("us")),
        ([Decimal("1.25"), None, Decimal(10)], pa.decimal128(38, 2)),
        ([Decimal("1.25"), 3], pa.decimal128(38, 2)),
        ([Decimal("1E-30"), Decimal("1E+30")], pa.decimal256(76, 30)),
        ([[Decimal("1.5")], []], pa.list_(pa.decimal128(38, 1))),
        ([{"a": [Decimal(1)]}], pa.struct({"a": pa.list_(pa.decimal128(38, 0))})),
        ([np.int8(1), np.float32(2)], pa.float32()),
        ([np.bool_(True)], pa.bool_()),
        ([[1], None, [2, 3]], pa.list_(pa.int64())),
        ([{"a": 1}], pa.struct({"a": pa.int64()})),
        ([np.zeros((2, 3), np.float32), None], tensor("f4", (2, 3))),
        ([np.zeros(2), np.zeros(3)], pa.list_(pa.float64())),
    ],
)
def test_settled_types(values: list[Any], kind: pa.DataType) -> None:
    assert settle(values) == kind
    block = to_block([{"v": value} for value in values], None, ids(len(values)))
    assert block.schema == Schema({"v": kind})
    back = [row["v"] for row in to_rows(block)]
    assert [type(v) for v in back if v is None] == [type(v) for v in values if v is None]
    again = to_block(to_rows(block), None, block.ids)
    assert str(back) == str([row["v"] for row in to_rows(again)])


@pytest.mark.parametrize(
    "values",
    [
        [1, "a"],
        [1, True],
        [{1}],
        [object()],
        [np.float16(1)],
        [np.zeros(2, "f2")],
        [np.zeros(2, "f2"), np.zeros(3, "f2")],
        [UTC, UTC.replace(tzinfo=None)],
        [np.array(["a"])],
        [[1], ["a"]],
        [1j],
        [dt.time(1, tzinfo=dt.UTC)],
        [Decimal("NaN")],
        [Decimal(1), 1.5],
    ],
)
def test_no_type_in_common(values: list[Any]) -> None:
    with pytest.raises(UnfitError):
        settle(values)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int8(), [1, 2.0, np.int64(3), None], [128, 1.5, True, "1", 1 << 70]),
        (pa.float32(), [1, 2.5, np.float64(3)], [True, "1"]),
        (pa.bool_(), [True, np.bool_(False)], [1, "a"]),
        (pa.string(), ["a", None], [1, [1]]),
        (pa.date32(), [dt.date(2020, 1, 1)], [dt.datetime(2020, 1, 1), 3, "2020-01-01"]),
        (pa.timestamp("s"), [dt.datetime(2020, 1, 1)],
         [dt.datetime(2020, 1, 1, microsecond=1), UTC, 3, dt.date(2020, 1, 1)]),
        (pa.timestamp("us", "UTC"), [UTC], [dt.datetime(2020, 1, 1), dt.date(2020, 1, 1)]),
        (pa.time64("us"), [dt.time(1)], [dt.time(1, tzinfo=dt.UTC), 3, dt.timedelta(1)]),
        (pa.duration("us"), [dt.timedelta(1), None], [3, 5.5, dt.time(1)]),
        (pa.decimal128(38, 2), [Decimal("1.25"), 3], [Decimal("1.125"), 1.5, True, "1"]),
        (tensor("f4", (2,)), [np.zeros(2, "f4"), [1.0, 2.0]], [np.zeros(3, "f4"), 1.0]),
        (tensor("i4", (2,)), [np.zeros(2, "i8")], [np.zeros(2)]),
    ],
)  # fmt: skip
def test_values_in_a_settled_type(kind: pa.DataType, good: list[Any], bad: list[Any]) -> None:
    schema = Schema({"v": kind})
    assert to_block([{"v": value} for value in good], schema, ids(len(good))).schema == schema
    for value in bad:
        with pytest.raises(UnfitError) as caught:
            to_block([{"v": good[0]}, {"v": value}], schema, ids(2))
        assert caught.value.row == 1


@pytest.mark.parametrize(
    ("rows", "row"),
    [
        ([{"a": 1}, {"a": 1, "b": 2}], 1),
        ([{"a": 1}, {"b": 1}], 1),
        ([{"a": 1}, None], 1),
        ([3], 0),
        ([{}, 3], 1),
        ([{1: 2}], 0),
    ],
)
def test_rows_that_are_none(rows: list[Any], row: int) -> None:
    with pytest.raises(UnfitError) as caught:
        to_block(rows, None, ids(len(rows)))
    assert caught.value.row == row


def test_rows_without_columns() -> None:
    block = to_block([{}, {}], None, ids(2))
    assert to_rows(block) == [{}, {}]
    out: list[Any] = []
    call_each(UserFunction(len, b"", "len"), block, out)
    assert out == [0, 0]


def test_tensors_are_read_only_for_functions_and_owned_by_callers() -> None:
    odd = np.array([0x7FF8000000000001], "u8").view("f8")
    block = Block(Schema({"t": tensor("f8", (1,))}), (Vec(odd.reshape(1, 1)),), ids(1))
    with pytest.raises(ValueError, match="read-only"):
        to_rows(block)[0]["t"][:] = 1
    (own,) = own_rows(block)
    assert own["t"].view("u8") == 0x7FF8000000000000  # one NaN
    own["t"][:] = 1
    assert np.isnan(to_rows(block)[0]["t"])


def test_nanoseconds_are_times_where_nothing_is_lost() -> None:
    assert to_list(pa.array([1000], pa.timestamp("ns"))) == [dt.datetime(1970, 1, 1, 0, 0, 0, 1)]
    assert to_list(pa.array([1000], pa.time64("ns"))) == [dt.time(0, 0, 0, 1)]
    assert to_list(pa.array([1000], pa.duration("ns"))) == [dt.timedelta(microseconds=1)]
    assert to_list(pa.array([0], pa.timestamp("ns", "UTC")))[0].tzinfo is not None
    with pytest.raises(CastError, match="cannot hold"):
        to_list(pa.array([1], pa.timestamp("ns")))


@pytest.mark.parametrize("error", [MemoryError("no more"), pa.ArrowMemoryError("no more")])
@pytest.mark.parametrize("place", ["column_of", "_array"])
def test_too_little_memory_is_no_fault_of_a_row(
    error: Exception, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(f"dml.udfs.calling.python_rows.{place}", failing)
    rows = [{"a": np.zeros((1, 2)), "b": [1]}, {"a": np.zeros((2, 2)), "b": [2]}]
    with pytest.raises(MemoryError):
        to_block(rows, None, ids(2))


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_rows_are_the_same_by_a_generated_loop_and_without_one(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Compiling a loop over many names takes longer than it saves."""
    monkeypatch.setattr(python_rows, "GENERATED", most)
    python_rows._loop.cache_clear()
    rows = [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
    block = to_block(rows, None, ids(2)).bare()
    out: list[Any] = []
    assert to_rows(block) == rows
    assert [list(row) for row in to_rows(block)] == [["a", "b"]] * 2
    call_each(UserFunction(lambda row: row["b"], b"", "f"), block, out)
    assert out == ["x", "y"]
    python_rows._loop.cache_clear()


def test_no_code_is_generated_for_thousands_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{number}" for number in range(2 * python_rows.GENERATED)]
    block = to_block([dict.fromkeys(names, 1)], None, ids(1)).bare()
    monkeypatch.setattr("builtins.exec", lambda *_: pytest.fail("code for each name"))
    assert to_rows(block) == [dict.fromkeys(names, 1)]


# -------------------------------------------------------------- values that Python cannot hold

AT = 150  # the row whose nanoseconds no datetime has


@pytest.fixture(scope="module")
def nanoseconds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nanoseconds") / "d.parquet"
    times = np.arange(300) * 1000
    times[AT] += 1
    table = pa.table({"x": np.arange(300), "t": pa.array(times, pa.timestamp("ns"))})
    pq.write_table(table, path, row_group_size=100)
    return path


def texts(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"], "t": str(row["t"]), "k": str(print)}


def drawn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {**texts(row), "r": rng.random()}


def carried(state: int, row: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return state + 1, texts(row)


def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [texts(row), texts(row)]


def every(row: dict[str, Any]) -> bool:
    return len(str(row["t"])) > 0 and str(print) != ""


@dml.udf(return_dtype="str")
def text_of_time(time: Any) -> str:
    return str(time) + str(print)


def kept_of(row: dict[str, Any]) -> bool:
    return bool(row["x"] >= 0)


TYPES = {"x": "i8", "t": "str", "k": "str"}
VERBS: dict[str, Callable[..., dml.Dataset]] = {
    "map": lambda ds, **by: ds.map(texts, **by),
    "map with a schema": lambda ds, **by: ds.map(texts, schema=TYPES, **by),
    "map and filter": lambda ds, **by: ds.map(texts, schema=TYPES, **by).filter(kept_of),
    "random_map": lambda ds, **by: ds.random_map(drawn, seed=1, **by),
    "flat_map": lambda ds, **by: ds.flat_map(twice, **by),
    "filter": lambda ds, **by: ds.filter(every, **by),
    "take_while": lambda ds, **by: ds.take_while(every, **by),
    "scan": lambda ds: ds.scan(0, carried),
    "udf": lambda ds: ds.with_columns(t=text_of_time(dml.col("t"))),
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_row_is_named_whose_value_python_cannot_hold(
    nanoseconds: Path, verb: str, executor: str
) -> None:
    ds = VERBS[verb](dml.read_parquet(nanoseconds))
    ds = ds.with_options(executor=executor, num_workers=2, telemetry_dir="off").batch(1)
    rows = list[int]()
    with pytest.raises(UDFError, match=r"cannot be called.*cannot hold") as found:
        rows.extend(batch["x"][0] for batch in ds)
    assert [*dict.fromkeys(rows)] == [*range(AT)], "the rows before it come"
    assert (found.value.row_group, found.value.row) == (1, AT)
    assert found.value.file.endswith("d.parquet")
    assert "row group 1, row 150" in str(found.value)


@pytest.mark.parametrize("verb", [name for name in VERBS if name not in {"scan", "udf"}])
def test_a_value_that_python_cannot_hold_costs_its_row_only(nanoseconds: Path, verb: str) -> None:
    ds = VERBS[verb](dml.read_parquet(nanoseconds), on_error="skip").batch(1)
    ds = ds.with_options(executor="sync", telemetry_dir="off")
    rows = [batch["x"][0] for batch in ds]
    assert [*dict.fromkeys(rows)] == [*range(AT), *range(AT + 1, 300)]
