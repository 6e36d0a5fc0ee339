"""This file tests what functions of batches return: arrays and Arrow data as blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dml.expr.arrays import as_block
from dml.expr.named import user_function
from dml.expr.ops.map_batches import MapBatches
from dml.kernels.ids import RowIds
from tests.expr.checks import node_of, numbers

FN = user_function(lambda batch: batch, "map_batches", b"n", None)
NODE = MapBatches(node_of(numbers(2)), FN, None, "numpy", False, False, None)
IDS = RowIds.run(7, 40, 2)


def columns(made: Any) -> dict[str, list[Any]]:
    block = as_block(NODE, made, IDS, set(), 5)
    return dict(block.to_arrow().to_pydict())


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        ({"a": [1, 2]}, [1, 2]),
        ({"a": np.array(["x", None], object)}, ["x", None]),
        ({"a": np.ma.masked_array([1.5, 2.0], [True, False])}, [None, 2.0]),
        ({"a": np.array([2**63, None], object)}, [2**63, None]),
        (pa.table({"a": pa.chunked_array([[1], [2]])}), [1, 2]),
        (pa.table({"a": pa.array(["x", "x"]).dictionary_encode()}), ["x", "x"]),
        (pa.record_batch({"a": [True, None]}), [True, None]),
        (pa.schema([("a", pa.int8())]).empty_table(), []),
    ],
)
def test_columns(made: Any, wanted: list[Any]) -> None:
    assert columns(made) == {"a": wanted}


def test_ids() -> None:
    assert as_block(NODE, {"a": [1, 2]}, IDS, set(), 5).ids is IDS
    more = as_block(NODE, pa.table({"a": [1, 2, 3]}), IDS, set(), 5).ids
    first = IDS.take(np.zeros(3, np.int64)).derive(5, np.arange(3, dtype=np.uint64))
    for got, wanted in zip(more.arrays(), first.arrays(), strict=True):
        assert got.tolist() == wanted.tolist()


def test_arrays_that_could_still_be_written_are_copied() -> None:
    mine, given = np.array([1, 2]), np.array([3, 4])
    block = as_block(NODE, {"a": mine, "b": given}, IDS, {id(given)}, 5)
    mine[:] = given[:] = 9
    assert block.to_arrow().to_pydict() == {"a": [1, 2], "b": [9, 9]}
