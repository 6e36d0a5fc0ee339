"""Test ``map`` after ``batch``: functions of dicts of arrays, and who owns the arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml.errors import UDFError
from tests.expr.checks import holds, numbers, table

Batch = dict[str, Any]


def doubled(batch: Batch) -> Batch:
    return {"x": batch["x"] * 2, "t": np.ones((len(batch["x"]), 2), np.float32)}


@pytest.mark.law
def test_batches_and_resuming() -> None:
    assert holds(numbers(7).batch(3).map(doubled)) == 3
    assert holds(numbers(7).batch(3).map(doubled).shuffle(2)) == 3
    assert holds(numbers(0).batch(3).map(doubled)) == 0


@pytest.mark.law
def test_other_lengths_and_their_draws() -> None:
    ds = numbers(5).batch(2).map(lambda batch: {"x": np.repeat(batch["x"], 2)})
    ds = ds.with_columns(u=dml.random())
    drawn = [u for batch in ds for u in batch["u"]]
    assert len(set(drawn)) == 10  # every row has an id of its own
    assert holds(ds) == 3
    assert holds(numbers(5).batch(2).map(lambda batch: {"x": batch["x"][:0]})) == 0


def test_inputs_are_read_only_and_outputs_are_not_shared() -> None:
    kept = np.ones(3)

    def constant(batch: Batch) -> Batch:
        with pytest.raises(ValueError, match="read-only"):
            batch["x"][0] = 1
        return {"x": kept, "same": batch["x"], "again": batch["x"]}

    for batch in numbers(6).batch(3).map(constant):
        assert batch["x"].tolist() == [1, 1, 1]
        assert batch["same"].tolist() == batch["again"].tolist()
        for name in batch:
            batch[name][:] = 5
        assert kept.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["f8", "M8[us]"])
def test_a_buffer_that_is_filled_again(dtype: str) -> None:
    buffer = np.zeros(2, dtype)

    def filling(batch: Batch) -> Batch:
        buffer[:] = batch["x"]
        return {"x": buffer}

    batches = list(numbers(6).batch(2).map(filling).shuffle(3))
    assert sorted(batch["x"].astype("i8").tolist() for batch in batches) == [[0, 1], [2, 3], [4, 5]]


def test_kinds_of_arrays() -> None:
    def made(batch: Batch) -> Batch:
        return {
            "big": batch["x"].astype(">i4"),
            "text": np.array(["a", "b"]),
            "half": batch["x"].astype("f2"),
            "cols": np.asfortranarray(np.ones((2, 3))),
            "void": np.ones((2, 0)),
        }

    (batch,) = numbers(2).batch(2).map(made)
    kinds = {name: array.dtype.str for name, array in batch.items()}
    assert kinds == {"big": "<i4", "text": "|O", "half": "<f2", "cols": "<f8", "void": "<f8"}
    assert batch["cols"].flags.c_contiguous
    assert batch["void"].shape == (2, 0)


def test_masked_values_are_null() -> None:
    def masked(batch: Batch) -> Batch:
        hidden = batch["x"] == 1
        return {"f": np.ma.masked_array(batch["x"] * 1.5, hidden), "i": batch["x"]}

    (batch,) = numbers(3).batch(3).map(masked)
    assert np.isnan(batch["f"]).tolist() == [False, True, False]


def test_nulls_of_tensors_are_none() -> None:
    kind = pa.fixed_shape_tensor(pa.int64(), (2,))
    storage = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    ds = table({"t": pa.ExtensionArray.from_storage(kind, storage)})
    seen: list[Any] = []

    def looking(batch: Batch) -> Batch:
        seen.extend(batch["t"])
        return {"n": np.array([one is None for one in batch["t"]])}

    (batch,) = ds.batch(2).map(looking)
    assert batch["n"].tolist() == [False, True]
    assert seen[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (3, "not a dict of arrays"),
        ({}, "not a dict of arrays"),
        ({"a": [1, 2], "b": [1]}, "unequal lengths"),
        ({"a": 1}, "a single value"),
    ],
)
def test_refusals(returned: Any, what: str) -> None:
    box = [returned]
    with pytest.raises(UDFError, match=what):
        list(numbers(2).batch(2).map(lambda _: box[0]))


def test_later_batches_keep_the_types_of_the_first() -> None:
    def odd(batch: Batch) -> Batch:
        return {"v": batch["x"] if batch["x"][0] < 2 else batch["x"] + np.nan}

    with pytest.raises(UDFError, match="column 'v' of double, while int64 is needed"):
        list(numbers(4).batch(2).map(odd))


def test_stop_iteration_is_an_error() -> None:
    with pytest.raises(UDFError, match="StopIteration"):
        list(numbers(4).batch(2).map(lambda _: next(iter(()))))
