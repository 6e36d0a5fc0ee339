"""Test the layout of cached blocks as parts of a store."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cache.elements.element_parts import PackedEntries, Packing
from dml.cache.parts.parts import PartRows
from dml.data.block import Block
from dml.data.id_columns import FREE, PICKED, RUN, form_of
from dml.data.schema import Schema
from dml.expr.flow import CachedBlock
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from tests.cache.elements.kept_cases import small_parts

__all__ = ["small_parts"]
pytestmark = pytest.mark.usefixtures("small_parts")


def blocks(draw: random.Random, batched: bool) -> list[Block]:
    """Blocks of one schema, with ids of any kind."""
    schema = Schema([("x", pa.int64()), ("b", pa.bool_()), ("s", pa.string()),
                     ("t", pa.fixed_shape_tensor(pa.float32(), (2,)))])  # fmt: skip
    found = []
    for at in range(draw.randint(1, 6)):
        n = draw.randint(1, 20)
        ids = draw.choice([
            RowIds.run(1 << 63, 10 * at, n),
            RowIds(n, 5, 3, np.array(draw.sample(range(50), n), np.intp)),
            RowIds.of_arrays(np.arange(n, dtype=np.uint64), np.full(n, at, np.uint64)),
        ])  # fmt: skip
        valid = draw.choice([None, np.array([draw.random() < 0.5 for _ in range(n)])])
        columns = (
            Vec(np.arange(n) + 100 * at, valid),
            Vec(np.arange(n) % 2 == 0, None),
            pa.array([None if i % 3 == 1 else "é" * i for i in range(n)]),
            Vec(np.arange(2 * n, dtype="f4").reshape(n, 2), valid),
        )
        found.append(Block(schema, columns, ids))
    return found


@pytest.mark.law
@given(st.randoms(use_true_random=False), st.booleans())
def test_entries_come_back_as_they_were(draw: random.Random, batched: bool) -> None:
    given_ = blocks(draw, batched)
    packing = Packing(7, given_[0], FREE, batched=batched)
    batches: list[pa.RecordBatch] = []
    entries, first = list[CachedBlock](), 7
    for number, block in enumerate(given_):
        entry = CachedBlock(first, {"at": number}, block, {"at": number + 1})
        batches += packing.packed(entry)
        entries.append(entry)
        first += 1 if batched else block.n
    batches += packing.rest()
    runs = [(each, (each.num_rows,)) for each in batches]
    about = json.loads(json.dumps(packing.about({}, last=True)))
    packed = PackedEntries(PartRows(runs, about), batched=batched)
    assert (packed.first, packed.end) == (7, first)
    for number, entry in enumerate(entries):
        ends = entries[number + 1].first if number + 1 < len(entries) else first
        for place in (entry.first, ends - 1):
            found = packed.entry(place)
            assert found.first == entry.first
            assert found.block.schema == entry.block.schema
            assert found.block.to_arrow().equals(entry.block.to_arrow())
            for mine, theirs in zip(found.block.ids.arrays(), entry.block.ids.arrays()):  # noqa: B905
                assert np.array_equal(mine, theirs)
            assert found.since is not None
            assert found.until is not None
            assert found.since <= found.first <= ends
            positions = {each.first: each.before for each in entries} | {first: {"at": number + 1}}
            assert found.before == positions[found.since]
            assert found.until == first or found.after == positions[found.until]
    assert packed.entry(first - 1).until == first
    assert packed.entry(first - 1).after == {"at": len(entries)}


def test_ids_are_written_as_short_as_they_can_be() -> None:
    run, picked = RowIds.run(1, 5, 3), RowIds(2, 1, 5, np.array([4, 2]))
    free = RowIds.of_arrays(np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64))
    assert [form_of(each) for each in (run, picked, free)] == [RUN, PICKED, FREE]
