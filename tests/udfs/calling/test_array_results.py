"""Test results of batch functions: arrays and Arrow data become blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dml.errors import UDFError
from dml.kernels.rows.ids import RowIds
from dml.ops.row.map_batches import MapBatches
from dml.udfs.calling.array_results import as_block
from dml.udfs.named_function import user_function
from tests.expr.checks import agrees, node_of, numbers

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
        ({"a": np.ma.masked_equal([[1, 2], [3, 4]], 2)}, [None, [3, 4]]),
        ({"a": np.ma.masked_array(np.zeros((0, 2)))}, []),
        ({"a": np.array([2**63, None], object)}, [2**63, None]),
        ({"a": [[1], [2, 3]]}, [[1], [2, 3]]),
        ({"a": [np.arange(2), np.arange(1)]}, [[0, 1], [0]]),
        (pa.table({"a": pa.chunked_array([[1], [2]])}), [1, 2]),
        (pa.table({"a": pa.array(["x", "x"]).dictionary_encode()}), ["x", "x"]),
        (pa.record_batch({"a": [True, None]}), [True, None]),
        (pa.schema([("a", pa.int8())]).empty_table(), []),
    ],
)
def test_columns(made: Any, wanted: list[Any]) -> None:
    assert columns(made) == {"a": wanted}


class Elsewhere:
    """An array that is not on this host."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("on a device")


@pytest.mark.parametrize(
    "made", [Elsewhere(), [[1, "x"], [2, 3, object()]], ["\ud800"], np.array(["\ud800", 1], object)]
)
def test_what_is_no_array_is_the_functions_fault(made: Any) -> None:
    with pytest.raises(UDFError, match="column 'a'"):
        columns({"a": made})


@pytest.mark.law
@pytest.mark.parametrize(
    ("wanted", "made", "held"),
    [
        ("float64", np.array([2**53, 1]), True),
        ("float64", np.array([2**53 + 1, 1]), False),
        ("float64", np.array([2**63 - 1, 1]), False),
        ("float64", np.array([2**64 - 1, 1], np.uint64), False),
        ("float32", np.array([2**24 + 1, 1], np.int32), False),
        ("int64", np.array([2.0**63, 1]), False),
        ("int64", np.array([1.5, 1]), False),
        ("int64", np.array([-(2.0**63), 1]), True),
        ("int32", np.ma.masked_array([2**40, 1], [True, False]), True),
        (pa.list_(pa.int64()), np.array([[1, 2], [3, 4]]), True),
        (pa.list_(pa.float64()), np.array([[1, 2], [3, 4]]), True),
        (pa.list_(pa.float64()), np.array([[2**53 + 1, 2], [3, 4]]), False),
        (pa.list_(pa.int64()), np.array([[], []]), True),
        (pa.list_(pa.int64()), np.array([1, 2]), False),
        (pa.list_(pa.int64()), np.array([[[1, 2]], [[3, 4]]]), False),
    ],
)
def test_numbers_are_taken_in_another_type_that_holds_them(
    wanted: Any, made: np.ndarray, held: bool
) -> None:
    ds = numbers(2).map_batches(lambda _: {"a": made}, schema={"a": wanted})
    if not held:
        with pytest.raises(UDFError, match="is needed"):
            ds.to_arrow()
    else:
        assert ds.to_arrow()["a"].to_pylist() == made.tolist()
    agrees(ds)


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


@pytest.mark.parametrize("place", ["_own", "_column", "_inferred"])
def test_too_little_memory_is_no_fault_of_a_batch(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise pa.ArrowMemoryError("no more")

    monkeypatch.setattr(f"dml.udfs.calling.array_results.{place}", failing)
    with pytest.raises(MemoryError):
        columns({"a": [[1], [2, 3]]})
