"""Test functions of tensors against NumPy on each row, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import dml
from dml import col
from dml.errors import CastError, DmlError, PlanError, SchemaError
from tests.expr.checks import agrees, computed, table

ROWS = np.arange(24, dtype="i4").reshape(4, 2, 3)
T = col("t").tensor
Rowwise = Callable[[Any], Any]


def tensors(rows: np.ndarray) -> dict[str, pa.Array]:
    """A column "t" of these rows."""
    return {"t": pa.FixedShapeTensorArray.from_numpy_ndarray(rows)}


def rows_of(ds: dml.Dataset) -> list[Any]:
    """What each row has in "r", as NumPy sees it."""
    return [row["r"] for row in ds.select("r")]


SAME: list[tuple[dml.Column, Rowwise]] = [
    (T.reshape(-1), lambda x: x.reshape(-1)),
    (T.reshape(3, -1), lambda x: x.reshape(3, 2)),
    (T.transpose(), lambda x: x.T),
    (T.transpose(0, 1), lambda x: x),
    (T.flip(), np.flip),
    (T.flip(-1), np.fliplr),
    (T.pad([(1, 0), (0, 2)], 7), lambda x: np.pad(x, [(1, 0), (0, 2)], constant_values=7)),
    (T.crop((1, 1)), lambda x: x[0:1, 1:2]),
    (T.crop((2, 2), (0, 1)), lambda x: x[:, 1:]),
    (T.sum(0), lambda x: x.sum(0, dtype="i8")),
    (T.sum([0, -1]), lambda x: x.sum(dtype="i8")),
    (T.mean(), lambda x: x.mean()),
    (T.shape(), lambda x: np.array(x.shape)),
    (T.transpose().tensor.reshape(-1), lambda x: x.T.reshape(-1)),
    (T.flip() * 2 + 1, lambda x: np.flip(x) * 2 + 1),
    (T.crop((1, 3)).cast("f4"), lambda x: x[:1].astype("f4")),
]


@pytest.mark.parametrize("number", range(len(SAME)))
def test_rows_are_what_numpy_makes_of_each(number: int) -> None:
    value, means = SAME[number]
    ds = table(tensors(ROWS)).with_columns(r=value)
    for found, row in zip(rows_of(ds), ROWS, strict=True):
        wanted = np.asarray(means(row))
        assert np.array_equal(found, wanted)
        assert np.asarray(found).dtype == wanted.dtype
    agrees(ds, epochs=(0,))


@pytest.mark.law
@given(arrays.arrays("f4", (3, 2, 4), elements=st.floats(-(2.0**90), 2.0**90, width=32)))
def test_floats_are_added_from_the_first_on(rows: np.ndarray) -> None:
    def added(row: Any) -> np.ndarray:
        total = np.zeros(2)
        for element in row.astype("f8").T:
            total = total + element
        return total.astype("f4")

    ds = table(tensors(rows)).with_columns(r=T.sum(1))
    for found, row in zip(rows_of(ds), rows, strict=True):
        assert found.tobytes() == added(row).tobytes()


def test_lists_and_tensors() -> None:
    data = {"l": pa.array([[1, 2], None, [], [3, None], [4, 5, 6]], pa.list_(pa.int16()))}
    cut = col("l").list.to_tensor(2, -1, truncate=True)
    assert computed(data, cut) == [[1, 2], None, [-1, -1], None, [4, 5]]
    assert computed(data, cut.tensor.to_list()) == [[1, 2], None, [-1, -1], None, [4, 5]]
    nested = table(tensors(ROWS)).with_columns(r=T.to_list())
    assert nested.schema["r"] == pa.list_(pa.list_(pa.int32()))
    assert nested.to_arrow()["r"].to_pylist() == ROWS.tolist()
    with pytest.raises(CastError, match=r"list.to_tensor meets 3") as caught:
        table(data).with_columns(r=col("l").list.to_tensor(2)).to_arrow()
    assert "row 4" in caught.value.at
    assert "truncate=True" in caught.value.try_


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: T.reshape(5), "reshape to"),
        (lambda: T.reshape(-1, -1), "one of which may be -1"),
        (lambda: T.reshape(4, -1), "reshape to"),
        (lambda: T.transpose(0), "all axes"),
        (lambda: T.flip(2), "flip along axes"),
        (lambda: T.flip([0, -2]), "each once"),
        (lambda: T.pad([(1, 0)]), "pad by"),
        (lambda: T.pad([1, 0]), "a list of numbers"),
        (lambda: T.pad([(1, 0), (0, 0)], 2.5), "2.5 does not fit int32"),
        (lambda: T.pad([(1, 0), (0, 0)], None), "is None"),
        (lambda: T.crop((3, 3)), "a part that lies inside"),
        (lambda: T.crop((1, 1), (2, 0)), "a part that lies inside"),
        (lambda: T.sum(5), "sum along axes"),
        (lambda: col("n").tensor.sum(0), "n is int64"),
        (lambda: col("t").list.to_tensor(3), "needs a list"),
    ],
)
def test_what_does_not_fit_is_refused_when_written(make: Any, words: str) -> None:
    data = {**tensors(ROWS), "n": pa.array(range(4))}
    with pytest.raises(DmlError, match=words) as caught:
        table(data).with_columns(r=make())
    assert isinstance(caught.value, PlanError | SchemaError)
    assert "test_tensors.py" in caught.value.at
    assert words in str(caught.value)
