"""This file tests rows of data frames: what pandas and Polars hold, and what they cannot give."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.errors import SourceError
from dml.io.memory.frames import from_pandas, from_polars
from dml.io.memory.memory import from_arrow
from dml.testing.source_laws import check_source

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

# pandas has no whole numbers that may be missing unless asked for them.
COLUMNS = st.fixed_dictionaries(
    {
        "i": st.lists(st.integers(-(2**63), 2**63 - 1), min_size=5, max_size=5),
        "f": st.lists(st.none() | st.floats(allow_nan=False), min_size=5, max_size=5),
        "s": st.lists(st.none() | st.text(max_size=3), min_size=5, max_size=5),
        "b": st.lists(st.booleans(), min_size=5, max_size=5),
        "t": st.lists(
            st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)),
            min_size=5,
            max_size=5,
        ),
        "l": st.lists(st.none() | st.lists(st.integers(0, 9)), min_size=5, max_size=5),
    }
)
TYPES = {
    "i": pa.int64(),
    "f": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
    "t": pa.timestamp("us"),
}


@pytest.mark.law
@given(COLUMNS)
def test_a_frame_of_polars_keeps_all_laws(columns: dict[str, list[Any]]) -> None:
    kinds = {"f": polars.Float64, "s": polars.String, "t": polars.Datetime("us")}
    listed = polars.List(polars.Int64)
    frame = polars.DataFrame(columns, schema_overrides={**kinds, "l": listed})
    fields = {**TYPES, "l": pa.list_(pa.int64())}
    wanted = pa.table({n: pa.array(v, fields[n]) for n, v in columns.items()})
    check_source(from_polars(frame, atom_rows=2), wanted)
    assert from_polars(frame.lazy()).identity() == from_polars(frame).identity()


@pytest.mark.law
@given(COLUMNS)
def test_a_frame_of_pandas_keeps_all_laws(columns: dict[str, list[Any]]) -> None:
    frame = pandas.DataFrame({n: columns[n] for n in ("i", "f", "b")})
    frame["s"] = pandas.Series(columns["s"], dtype="str")
    frame["t"] = pandas.Series(columns["t"], dtype="datetime64[us]")
    order = ["i", "f", "b", "s", "t"]
    wanted = pa.table({n: pa.array(columns[n], TYPES[n]) for n in order})
    frame["f"] = frame["f"].astype("float64")
    check_source(from_pandas(frame, atom_rows=2), wanted)


@pytest.mark.law
def test_categories_are_their_values() -> None:
    values = ["x", "y", None, "x"]
    frame = pandas.DataFrame({"c": pandas.Categorical(values)})
    assert [row["c"] for row in dml.from_pandas(frame)] == values
    series = polars.Series("c", values, dtype=polars.Categorical)
    enum = polars.Series("e", values, dtype=polars.Enum(["x", "y"]))
    rows = list(dml.from_polars(polars.DataFrame([series, enum])))
    assert [row["c"] for row in rows] == [row["e"] for row in rows] == values


def test_index_levels_with_names_are_columns() -> None:
    frame = pandas.DataFrame({"x": [1, 2]}, index=pandas.Index(["a", "b"]))
    assert dml.from_pandas(frame).columns == ["x"]
    frame.index.name = "key"
    assert list(dml.from_pandas(frame)) == [{"key": "a", "x": 1}, {"key": "b", "x": 2}]
    levels = pandas.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["k", None])
    assert dml.from_pandas(frame.set_index(levels)).columns == ["k", "x"]


def test_missing_is_null() -> None:
    frame = pandas.DataFrame({"f": [1.0, float("nan")], "i": pandas.array([None, 2], "Int64")})
    assert list(dml.from_pandas(frame)) == [{"f": 1.0, "i": None}, {"f": None, "i": 2}]


def test_names_that_no_row_can_have_are_refused() -> None:
    with pytest.raises(SourceError, match="text, got 0"):
        dml.from_pandas(pandas.DataFrame([[1, 2]]))
    with pytest.raises(SourceError, match="two columns are called 'a'"):
        dml.from_pandas(pandas.DataFrame([[1, 2]], columns=["a", "a"]))
    frame = pandas.DataFrame({"a": [1]}, index=pandas.Index([0], name="a"))
    with pytest.raises(SourceError, match="two columns are called 'a'"):
        dml.from_pandas(frame)


def test_objects_of_several_types_are_refused() -> None:
    with pytest.raises(SourceError, match="cannot hold"):
        dml.from_pandas(pandas.DataFrame({"a": [1, "x", object()]}))


@pytest.mark.parametrize("stranger", [[1, 2], {"a": [1]}, None, "x"])
def test_what_is_no_frame_is_refused(stranger: object) -> None:
    with pytest.raises(SourceError, match="needs a pandas"):
        dml.from_pandas(stranger)
    with pytest.raises(SourceError, match="needs a polars"):
        dml.from_polars(stranger)


class Interchanged:
    """Only the interchange protocol, as older libraries have it."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __dataframe__(self, *args: Any, **options: Any) -> Any:
        return self.table.__dataframe__(*args, **options)


def test_the_interchange_protocol_is_read() -> None:
    table = pa.table({"a": [1, 2, 3], "s": ["x", "y", None]})
    check_source(from_arrow(Interchanged(table)), table)


@pytest.mark.law
@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"], pa.string_view()),
        pa.array([b"a", None], pa.binary_view()),
        pa.array([[1], [2, 3]], pa.list_view(pa.int64())),
        pa.array([[9], [1], None, [], [2, 3]], pa.large_list_view(pa.int64())).slice(1),
        pa.array([["a"], None], pa.large_list(pa.string_view())),
        pa.array([{"q": "a"}, {"q": None}], pa.struct({"q": pa.string_view()})),
        pa.RunEndEncodedArray.from_arrays([1, 2], ["a", "b"]),
    ],
)
def test_layouts_of_their_own_become_usual_ones(column: pa.Array) -> None:
    ds = dml.from_arrow(pa.table({"x": column, "n": range(len(column))})).shuffle(seed=1)
    got = {row["n"]: row["x"] for row in ds}
    assert got == dict(enumerate(column.to_pylist()))


def test_what_polars_cannot_hand_over_is_refused() -> None:
    polars = pytest.importorskip("polars")
    for frame in (
        polars.DataFrame({"x": [object()]}),
        polars.DataFrame({"x": polars.Series([1], dtype=polars.Int128)}),
        polars.LazyFrame({"x": [1]}).select("y"),
    ):
        with pytest.raises(SourceError):
            dml.from_polars(frame)


def test_numbers_that_no_type_holds_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(SourceError, match="Arrow cannot hold"):
        dml.from_pandas(pandas.DataFrame({"x": [1, 2**70]}, dtype=object))
    with pytest.raises(SourceError, match="needs an array or a dict of arrays, got a list"):
        dml.from_numpy([1, 2])


@pytest.mark.parametrize(("dtype", "kind"), [("U3", pa.string()), ("S2", pa.binary())])
def test_no_texts_have_the_type_of_texts(dtype: str, kind: pa.DataType) -> None:
    assert dml.from_numpy(np.zeros(0, dtype)).schema["item"] == kind
