"""Test rows in memory as a source: inferred types, read-only views, errors."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.data.schema import tensor
from dml.errors import DmlError, PlanError, SourceError
from dml.io.column_store import arrow_bytes
from dml.io.memory.memory import Memory, from_arrow, from_dict, from_items, from_numpy
from dml.kernels.vec import Vec
from dml.testing.source_laws import check_other_process, check_same_data, check_source, everything

UTC = dt.UTC


def rows_of(source: Memory) -> list[dict[str, Any]]:
    return list(everything(source).to_arrow().to_pylist())


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ([1, None, -3], pa.int64()),
        ([1, 2.5, None], pa.float64()),
        ([float("nan"), None], pa.float64()),
        ([True, None], pa.bool_()),
        (["ä", None, ""], pa.string()),
        ([b"\xff", None], pa.binary()),
        ([dt.datetime(2020, 1, 2, 3)], pa.timestamp("us")),
        ([dt.datetime(2020, 1, 2, 3, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        ([dt.date(2020, 1, 2), None], pa.date32()),
        ([dt.time(1, 2), None], pa.time64("us")),
        ([dt.timedelta(seconds=1)], pa.duration("us")),
        ([decimal.Decimal("1.25")], pa.decimal128(3, 2)),
        ([[1, 2], [], None], pa.list_(pa.int64())),
        ([(1, 2)], pa.list_(pa.int64())),
        ([np.int8(1), None], pa.int8()),
        ([np.float32(1), np.float64(2)], pa.float64()),
        ([np.int8(1), 2], pa.int64()),
        ([np.datetime64("2020-01-01T00:00:00.000000001"), None], pa.timestamp("ns")),
        ([np.zeros((2, 3), np.float32), None], tensor("f4", (2, 3))),
        ([np.zeros(2, np.int16), np.zeros(3, np.int16)], pa.list_(pa.int16())),
        ([None, None], pa.null()),
    ],
)
def test_types_are_those_of_the_values(items: list[Any], kind: pa.DataType) -> None:
    source = from_items(items, atom_rows=2)
    assert source.schema["item"] == kind
    if kind == tensor("f4", (2, 3)):
        values = everything(source)["item"]
        assert isinstance(values, Vec)
        assert values.values.shape == (2, 2, 3)
        assert values.valid is not None
        assert values.valid.tolist() == [True, False]
    else:
        plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in items]
        check_source(source, pa.table({"item": pa.array(plain, kind)}))


class Odd(int):
    """An integer that converts to another one."""

    def __int__(self) -> int:
        return 99

    def __float__(self) -> float:
        raise ZeroDivisionError


def test_a_subclass_of_int_is_stored_as_its_value() -> None:
    assert rows_of(from_dict({"x": [Odd(3), 4]})) == [{"x": 3}, {"x": 4}]


PLAIN: tuple[st.SearchStrategy[Any], ...] = (
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.binary(),
)


@given(st.sampled_from(PLAIN).flatmap(lambda each: st.lists(each | st.none(), max_size=9)))
def test_plain_values_become_the_array_that_pyarrow_makes(values: list[Any]) -> None:
    made = everything(from_dict({"x": values})).to_arrow().column("x")
    made.validate(full=True)
    wanted = pa.array(values)
    assert (made.type, repr(made.to_pylist())) == (wanted.type, repr(wanted.to_pylist()))


def test_dicts_are_rows() -> None:
    source = from_items([{"x": 1, "y": "a"}, {"y": None, "x": 2}])
    assert rows_of(source) == [{"x": 1, "y": "a"}, {"x": 2, "y": None}]
    declared = from_items([{"x": 1}, {}], schema={"x": "float32", "z": "string"})
    assert rows_of(declared) == [{"x": 1.0, "z": None}, {"x": None, "z": None}]
    assert declared.schema["x"] == pa.float32()


def test_a_declared_schema_types_plain_values_and_none_at_all() -> None:
    assert from_items([1, 2], schema={"n": "uint8"}).schema.names == ("n",)
    empty = from_items([], schema={"n": "uint8"})
    assert (empty.row_count, empty.unit_count) == (0, 0)
    check_source(empty, pa.table({"n": pa.array([], pa.uint8())}))
    images = from_items([np.ones((2, 2)), None], schema={"x": tensor("f4", (2, 2))})
    assert images.schema["x"] == tensor("f4", (2, 2))


columns = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(),
        "s": st.none() | st.text(max_size=4),
        "b": st.none() | st.booleans(),
    }
)
kinds = {"i": "int64", "f": "float64", "s": "string", "b": "bool"}


@pytest.mark.law
@given(st.lists(columns, max_size=12), st.integers(1, 5), st.integers(1, 5))
def test_laws_for_items_and_tables_in_any_chunks(
    rows: list[dict[str, Any]], atom_rows: int, chunk: int
) -> None:
    source = from_items(rows, schema=kinds, atom_rows=atom_rows)
    table = pa.Table.from_pylist(rows, source.schema.to_arrow())
    check_source(source, table)
    pieces = [table.slice(i, chunk) for i in range(0, len(rows), chunk)]
    chunked = pa.concat_tables(pieces) if pieces else table
    check_source(from_arrow(chunked, atom_rows=atom_rows), table)
    check_same_data(source, from_arrow(chunked, atom_rows=atom_rows))


def test_numpy_columns_are_views_that_cannot_be_written() -> None:
    mine = np.arange(6, dtype=np.int32).reshape(3, 2)
    source = from_numpy({"x": mine, "y": np.array([1.5, 2.5, 3.5])})
    assert source.schema["x"] == tensor("i4", (2,))
    (block,) = source.read(source.unit(0), ("x",))
    values = block["x"]
    assert isinstance(values, Vec)
    assert np.shares_memory(values.values, mine)
    with pytest.raises(ValueError, match="read-only"):
        values.values[0, 0] = 9
    assert mine.flags.writeable
    part = from_arrow(pa.chunked_array([mine[:, 0].copy(), mine[:, 1].copy()]), atom_rows=3)
    for unit in range(2):
        (block,) = part.read(part.unit(unit), ("item",))
        assert isinstance(item := block["item"], Vec)
        assert not item.values.flags.writeable
    taken = source.rows_at(np.array([2, 0]), ("x",))["x"]
    assert isinstance(taken, Vec)
    assert not np.shares_memory(taken.values, mine)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([1, 2], ">i2"), pa.int16()),
        (np.array([True, False]), pa.bool_()),
        (np.array([1.5, 2], np.float16), pa.float16()),
        (np.array(["2020-01-01", "NaT"], "M8[ms]"), pa.timestamp("ms")),
        (np.array(["a", "bc"]), pa.string()),
        (np.array([b"a", b"bc"]), pa.binary()),
        (np.array(["a", None], object), pa.string()),
        (np.arange(8)[::3], pa.int64()),
    ],
)
def test_numpy_types(array: np.ndarray[Any, Any], kind: pa.DataType) -> None:
    source = from_numpy(array, atom_rows=1)
    assert source.schema["item"] == kind
    check_source(source, pa.table({"item": pa.array(array.tolist(), kind)}))


def test_numpy_masks_and_structured_arrays() -> None:
    masked = from_numpy(np.ma.array([1, 2], mask=[False, True]))
    assert rows_of(masked) == [{"item": 1}, {"item": None}]
    records = np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")])
    assert rows_of(from_numpy(records)) == [{"a": 1, "b": 2.0}]


class OnlyStream:
    """Speaks the stream protocol and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def test_arrow_through_the_capsule_protocol() -> None:
    table = pa.table({"x": pa.chunked_array([[1], [2, None]]), "s": ["a", "b", None]})
    check_source(from_arrow(OnlyStream(table), atom_rows=2), table)
    check_source(from_arrow(table.to_batches()[0]), table.slice(0, 1))
    check_source(from_arrow(pa.array([1, 2])), pa.table({"item": [1, 2]}))
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    check_source(from_arrow(reader), table)


def test_dictionary_columns_are_decoded() -> None:
    coded = pa.chunked_array([["a", "b"], ["c", None]]).dictionary_encode()
    source = from_arrow(pa.table({"s": coded}), atom_rows=3)
    assert source.schema["s"] == pa.string()
    check_source(source, pa.table({"s": ["a", "b", "c", None]}))


@pytest.mark.law
def test_atoms_are_decided_by_content_not_by_chunks() -> None:
    text = pa.array(["x" * 4096] * 3000)
    whole = from_arrow(pa.table({"t": text}))
    chunked = from_arrow(pa.table({"t": pa.chunked_array([text.slice(0, 7), text.slice(7)])}))
    assert whole.atom_rows == chunked.atom_rows == (8 << 20) // 4100
    assert whole == chunked
    assert from_numpy(np.zeros(10, np.int8)).atom_rows == 65_536


@pytest.mark.law
def test_equal_in_another_process() -> None:
    check_other_process(
        from_items([{"a": 1, "b": "x"}, {"a": None, "b": "y"}]),
        "from dml.io.memory.memory import from_items\n"
        "source = from_items([{'a': 1, 'b': 'x'}, {'a': None, 'b': 'y'}])",
    )
    assert from_items([1]) != from_items([2])
    assert from_items([0.0]) != from_items([-0.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_items([1, "a"]), "column 'item' mixes int and str"),
        (lambda: from_items([{"x": 1}, {"x": True}]), "column 'x' mixes int and bool"),
        (lambda: from_items([None, 2**70]), "row 1 of column 'item' does not fit int64"),
        (lambda: from_items([{"x": object()}]), "row 0 of column 'x' is <object"),
        (lambda: from_items([{"x": 1}, {"y": 1}]), "row 1 has column 'y' too"),
        (lambda: from_items([{"x": 1}, {}]), "row 1 has no column 'x'"),
        (lambda: from_items([{"x": 1}, 2]), "row 1 is 2, but row 0 is a dict"),
        (lambda: from_items([2, {"x": 1}]), "row 1 is a dict, but row 0 is 2"),
        (lambda: from_items([{1: 2}]), "column names are text, got 1"),
        (lambda: from_items([]), "from_items got no items"),
        (lambda: from_items("abc"), "needs a list of rows, got a str"),
        (lambda: from_items([1.5], schema={"x": "int32"}), "row 0 of column 'x' does not fit"),
        (lambda: from_items([1], schema={"x": "int8", "y": "int8"}), "plain values are one column"),
        (lambda: from_items([[1], ["a"]]), "row 1 of column 'item' does not fit"),
        (lambda: from_items([np.zeros(2), np.zeros((2, 2))]), "row 1 of column 'item' has dtype"),
        (lambda: from_dict({}), "no columns"),
        (lambda: from_dict({"x": [1], "y": [1, 2]}), "'x' and 'y' have 1 and 2 rows"),
        (lambda: from_dict({"x": "abc"}), "column 'x' is a str"),
        (lambda: from_dict({"x": 3}), "column 'x' is a int"),
        (lambda: from_dict([1]), "from_dict needs a dict of columns"),  # type: ignore[arg-type]
        (lambda: from_numpy(np.zeros(2, complex)), "dtype complex128"),
        (lambda: from_numpy(np.zeros((2, 2), np.float16)), "shape \\(2, 2\\) and dtype float16"),
        (lambda: from_numpy(np.array(3)), "is a single value"),
        (lambda: from_arrow(3), "from_arrow cannot read a int"),
        (lambda: from_arrow(pa.table([[1], [2]], ["x", "x"])), "two columns are called 'x'"),
    ],
)
def test_refused_with_row_and_column(make: Callable[[], Memory], message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        make()
    assert len(str(caught.value).splitlines()) <= 4


LENT: dict[str, Callable[[Any], Memory]] = {
    "numpy": lambda array: from_numpy({"x": array}),
    "dict": lambda array: from_dict({"x": array}),
    "arrow": lambda array: from_arrow(pa.table({"x": pa.array(array)})),
}


@pytest.mark.parametrize("given", LENT)
def test_what_is_changed_afterwards_has_another_name(given: str) -> None:
    array = np.arange(200_000)
    source = LENT[given](array)
    name, units = source.identity(), [source.unit(i) for i in range(source.unit_count)]
    assert source.identity() == name
    assert [source.changed_ns(unit) for unit in units] == [0] * len(units)
    array[100_000] = -1
    changed = [source.changed_ns(unit) > 0 for unit in units]
    assert changed == [unit.index == 100_000 // source.atom_rows for unit in units]
    assert source.identity() == LENT[given](array).identity() != name
    assert not any(source.changed_ns(unit) for unit in units), "it is named anew"


def test_what_was_stored_before_an_array_was_changed_is_not_served(tmp_path: Path) -> None:
    array = np.arange(1000)
    ds = dml.from_numpy({"x": array}).map(dict, pure=True).cache(tier="disk")
    ds = ds.with_options(cache_dir=str(tmp_path), verify="off")
    name = ds.fingerprint()
    assert ds.to_numpy()["x"].sum() == 499_500
    array[:] = 7
    assert ds.fingerprint() != name
    assert ds.to_numpy()["x"].sum() == 7000


def test_rows_of_arrays_that_change_during_the_run_are_not_stored(tmp_path: Path) -> None:
    array, calls = np.arange(100), [0]

    def changing(row: dict[str, Any]) -> dict[str, Any]:
        calls[0] += 1
        if calls[0] == 1:
            array[-1] = -1
        return row

    def stored(fn: Callable[..., Any]) -> dml.Dataset:
        ds = dml.from_numpy({"x": array}).map(fn, fingerprint="the rows as they are")
        options: Any = {"cache_dir": str(tmp_path), "verify": "off", "executor": "sync"}
        return ds.cache(tier="disk").with_options(**options)

    stored(changing).to_numpy()
    array[-1] = 99
    assert stored(dict).to_numpy()["x"].tolist() == list(range(100))


def test_bad_atom_rows() -> None:
    with pytest.raises(PlanError, match="atom_rows of at least 1"):
        from_items([1], atom_rows=0)
    assert issubclass(PlanError, DmlError)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array(["ab", None, "cde"]), 12 + 5),
        (pa.array(["ab", "xyz", "c"]).slice(1, 1), 4 + 3),
        (pa.array([b"ab"], pa.large_binary()), 4 + 2),
        (pa.array([[1, 2], None, [3]]), 12 + 3 * 8),
        (pa.array([[[1], []]]), 4 + 8 + 8),
        (pa.array([{"a": 1, "b": "xy"}]), 8 + 4 + 2),
        (pa.array([dt.date(2020, 1, 1)]), 4),
        (pa.chunked_array([["a"], ["bc"]]), 8 + 3),
        (pa.array(["", ""]).slice(2), 0),
    ],
)
def test_bytes_are_counted_by_content(array: pa.Array, expected: int) -> None:
    assert arrow_bytes(array) == expected
    assert arrow_bytes(pa.array(array.to_pylist(), array.type)) == expected
