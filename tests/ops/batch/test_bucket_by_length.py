"""Test ``bucket_by_length``: batches of rows of similar length."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from dml.data.block import Block
from dml.errors import MemoryContractError, NullValueError, PlanError, SchemaError
from tests.expr.checks import agrees, holds, node_of, table

LENGTHS = [1, 5, 2, 9, 1, 1, 4, 7, 3, 2, 5, 1]


def lists(lengths: list[int] | None = None) -> dml.Dataset:
    sizes = LENGTHS if lengths is None else lengths
    rows = [list(range(n)) for n in sizes]
    return table({"k": pa.array(range(len(rows))), "x": pa.array(rows, pa.list_(pa.int64()))})


def keys(ds: dml.Dataset) -> list[list[int]]:
    return [batch["k"].tolist() for batch in ds]


@pytest.mark.law
def test_a_bucket_is_given_when_it_is_full_and_the_rest_in_order() -> None:
    ds = lists().bucket_by_length("x", [3, 5], [3, 2, 2])
    assert keys(ds) == [[1, 3], [0, 2, 4], [6, 8], [7, 10], [5, 9, 11]]
    assert [b["x"].shape for b in ds] == [(2, 9), (3, 2), (2, 4), (2, 7), (3, 2)]
    assert holds(ds) == 5


@pytest.mark.law
def test_what_is_left() -> None:
    ds = lists().bucket_by_length("x", [3, 5], 4)
    assert keys(ds) == [[0, 2, 4, 5], [1, 3, 7, 10], [9, 11], [6, 8]]
    assert holds(ds) == 4
    dropped = lists().bucket_by_length("x", [3, 5], 4, drop_last=True)
    assert keys(dropped) == [[0, 2, 4, 5], [1, 3, 7, 10]]
    assert holds(dropped) == 2


@pytest.mark.law
def test_one_bucket_is_a_batch() -> None:
    ds = lists().bucket_by_length("x", [], 5, pad=False)
    assert keys(ds) == keys(lists().batch(5))
    assert holds(ds) == 3
    assert holds(lists([]).bucket_by_length("x", [2], 5)) == 0


@pytest.mark.law
@pytest.mark.parametrize(
    "values",
    [
        pa.array(["", "ä", "äö", "abc"]),
        pa.array([b"", b"a", b"ab", b"abc"]),
        pa.array([0, 1, 2, 3], pa.uint64()),
        pa.array([-128, 1, 2, 127], pa.int8()),
        pa.array([[0.5] * 0, [0.5], [0.5] * 2, [None] * 3], pa.large_list(pa.float32())),
    ],
)
def test_what_has_a_length(values: Any) -> None:
    ds = table({"k": pa.array(range(4)), "v": values}).bucket_by_length("v", [2, 1000], 4)
    assert keys(ds) == [[0, 1], [2, 3]]
    assert holds(ds) == 2


@pytest.mark.law
def test_a_rare_row_is_found_again() -> None:
    ds = lists([9] + [1] * 40 + [9] + [2] * 9).bucket_by_length("x", [5], [4, 3])
    assert keys(ds)[-1] == [0, 41]
    assert holds(ds) == 14


@pytest.mark.law
def test_over_repeats_shuffles_and_batches() -> None:
    ds = lists().shuffle(4, seed=1).repeat(2).bucket_by_length("x", [3], [4, 3])
    assert holds(ds.filter(col("k") != 3).shuffle(2).skip(1)) == 6
    endless = lists().repeat().bucket_by_length("x", [3], [4, 3]).take(9)
    assert holds(endless) == 9


@pytest.mark.law
def test_a_null_has_no_length() -> None:
    data = {"k": pa.array(range(6)), "x": pa.array([[1], [2, 3], [4], None, [5], [6]])}
    ds = table(data).bucket_by_length("x", [2], [2, 1])
    it = iter(ds)
    assert [next(it)["k"].tolist() for _ in range(2)] == [[1], [0, 2]]
    with pytest.raises(NullValueError, match="'x' is null, and a null has no length") as found:
        next(it)
    assert "test_bucket_by_length.py" in str(found.value)
    agrees(ds)
    assert holds(table(data).filter(~col("x").is_null()).bucket_by_length("x", [2], 2)) == 3


def test_the_name_that_others_know() -> None:
    theirs = lists().bucket_by_sequence_length("x", [3, 5], [3, 2, 2], padding_values=-1)
    ours = lists().bucket_by_length("x", [3, 5], [3, 2, 2], padding_values=-1)
    assert node_of(theirs) == node_of(ours)
    assert list(theirs)[1]["x"].tolist() == [[0, -1], [0, 1], [0, -1]]


@pytest.mark.law
def test_what_is_held_is_within_the_memory_number() -> None:
    rows = pa.array([list(range(9))] * 300)
    few = table({"x": rows}, atom_rows=300).with_options(memory_limit="1MiB")
    with pytest.raises(MemoryContractError, match="rows of BucketByLength"):
        list(few.repeat(200).bucket_by_length("x", [5], 50_000))
    assert len(list(few.repeat(200).bucket_by_length("x", [5], 100))) == 600


@pytest.mark.law
def test_state_is_small_however_long_a_row_waits() -> None:
    ds = lists([9] + [1] * 3000).bucket_by_length("x", [5], [4, 3])
    it = iter(ds)
    assert max(len(json.dumps(it.state_dict())) for _ in it) < 4096


def test_refusals() -> None:
    with pytest.raises(PlanError, match="do not rise"):
        lists().bucket_by_length("x", [3, 3], 2)
    with pytest.raises(PlanError, match="2 batch_sizes for 2 boundaries"):
        lists().bucket_by_length("x", [3, 5], [2, 2])
    with pytest.raises(PlanError, match="batch_sizes needs an integer of at least 1"):
        lists().bucket_by_length("x", [3], 0)
    with pytest.raises(PlanError, match="boundaries needs an integer"):
        lists().bucket_by_length("x", [1.5], 2)  # type: ignore[list-item]
    with pytest.raises(PlanError, match="bucket_by_length over batches"):
        lists().batch(2).bucket_by_length("x", [3], 2, pad=False)
    with pytest.raises(SchemaError, match="needs column 'y'"):
        lists().bucket_by_length("y", [3], 2)
    with pytest.raises(SchemaError, match="cannot measure 'f', which is double"):
        table({"f": pa.array([1.5])}).bucket_by_length("f", [3], 2)


def test_lists_are_copied_once_into_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = Block.take

    def counted(block: Block, index: np.ndarray) -> Block:
        taken.append(len(index))
        return take(block, index)

    monkeypatch.setattr(Block, "take", counted)
    rows = table({"l": [[1, 2], [3], [4, 5], [6]] * 16, "n": range(64)}, atom_rows=64)
    lists = rows.select("l").bucket_by_length("l", [2], 8)
    assert [batch["l"].tolist() for batch in lists][:2] == [[[1, 2], [4, 5]] * 4, [[3], [6]] * 4]
    assert taken == [8], "one batch in 32 is measured as a block"
    assert len(list(rows.bucket_by_length("l", [2], 8))) == 8
    assert taken[1:] == [8] * 9, "numbers are taken for each batch"
