"""Test how expressions are computed on blocks: predicates by conjuncts, errors in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col, lit
from dml.data.block import Block
from dml.data.schema import Schema, tensor
from dml.errors import CastError, SchemaError
from dml.exec.memory.spill import DiskSpill
from dml.expr.columns.computation import ComputedSegment, Predicate, truth
from dml.expr.flow import At
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

AT = At(0, 0, KernelTiers(Path("unused"), "numpy"), {}, DiskSpill, 1 << 20)


def block(**columns: list[Any]) -> Block:
    batch = pa.RecordBatch.from_pydict(columns)
    return Block.from_arrow(batch, RowIds.run(1, 0, batch.num_rows))


def test_parts_that_may_fail_see_rows_that_passed() -> None:
    given = block(x=[1, 1000, None, 3])
    sure, risky = (col("x") < 500).value, (col("x").cast("int8") > 1).value
    kept = Predicate([sure, risky]).keep(given, AT)
    assert kept is not None
    assert kept.tolist() == [3]
    assert Predicate([]).keep(given, AT) is None
    assert Predicate([lit(True).value]).keep(given, AT) is None


def test_a_predicate_is_boolean_or_null() -> None:
    given = block(x=[1, 2], n=[None, None])
    with pytest.raises(SchemaError, match="filter needs a boolean"):
        Predicate([col("x").value]).keep(given, AT)
    kept = Predicate([col("n").value]).keep(given, AT)
    assert kept is not None
    assert kept.tolist() == []


def test_truth() -> None:
    flags = Vec(np.array([True, True, False]), np.array([True, False, True]))
    assert truth(flags, 3).tolist() == [True, False, False]
    assert truth(Vec(np.array(True)), 2).tolist() == [True, True]
    assert truth(pa.nulls(2), 2).tolist() == [False, False]


@pytest.mark.parametrize("bad", range(7))
def test_rows_before_a_failing_cast_come_first(bad: int) -> None:
    values = [1, 2, 3, 4, 5, 6, 7]
    values[bad] = 999
    segment = ComputedSegment((), ["y"], [col("x").cast("int8").value])
    made, run = [], segment.run(block(x=values), AT)
    with pytest.raises(CastError, match="999") as caught:
        made += [v for out in run for v in out.to_arrow().column(0).to_pylist()]
    assert made == []  # a comprehension that raises adds nothing
    found = caught.value.row_id  # type: ignore[attr-defined]
    assert int(found.low()[0]) == bad
    first = segment.run(block(x=values), AT)
    if bad:
        assert next(first).to_arrow().column(0).to_pylist() == values[:bad]


def test_a_literal_of_a_tensor_type_has_its_shape() -> None:
    kind = tensor("f8", (2, 2))
    given = Block(
        Schema({"t": kind}), (Vec(np.zeros((3, 2, 2)), np.array([True] * 3)),), RowIds.run(1, 0, 3)
    )
    segment = ComputedSegment((), ["r"], [lit(1.5).fill_null(col("t")).value])
    (out,) = segment.run(given, AT)
    assert out.schema == Schema({"r": kind})
    values = out["r"]
    assert isinstance(values, Vec)
    assert values.values.shape == (3, 2, 2)


def test_no_rows() -> None:
    segment = ComputedSegment([(col("x") > 0).value], ["y"], [(col("x") + 1).value])
    (out,) = segment.run(block(x=[1]).slice(1, 1), AT)
    assert out.n == 0
    assert out.schema == Schema({"y": pa.int64()})


def test_values_of_extension_types_are_chosen() -> None:
    ids = pa.array([b"0" * 16, None, b"2" * 16], pa.uuid())
    ds = dml.from_arrow(pa.table({"k": [0, 1, 2], "u": ids}))
    made = ds.with_columns(
        some=dml.when(col("k") > 0).then(col("u")).otherwise(None),
        none=dml.when(col("k") > 9).then(col("u")).otherwise(None),
    ).to_arrow()
    assert made["some"].combine_chunks().equals(pa.array([None, None, b"2" * 16], pa.uuid()))
    assert made["none"].null_count == 3
