"""Test parcels: an unpacked partition equals the packed one, bit for bit."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import InternalError, UDFError
from dml.exec.process.exception_codec import shipped
from dml.exec.process.partition_codec import Parcel, in_memory, pack, unpack
from dml.exec.tasks.partition import Piece
from dml.exec.tasks.skipped_rows import Loss
from dml.exec.tasks.slices import Outcome
from dml.kernels.rows.ids import RowIds, source_key
from dml.kernels.vec import Vec
from dml.testing.strategies_data import columns, table
from dml.udfs.calling.type_inference import Returned


def block_of(data: pa.Table, ids: RowIds | None = None) -> Block:
    batches = data.combine_chunks().to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=data.schema)
    return Block.from_arrow(
        batch, RowIds.run(source_key("t"), 0, batch.num_rows) if ids is None else ids
    )


def ids_of(draw: random.Random, rows: int) -> RowIds:
    """Ids in each of their forms."""
    form = draw.choice(["run", "picked", "written", "sliced"])
    if form == "run":
        return RowIds.run(source_key("t"), draw.randrange(1 << 40), rows)
    if form == "picked":
        return RowIds.at(7, np.array([draw.randrange(1 << 20) for _ in range(rows)], dtype="i8"))
    high, low = (np.frombuffer(draw.randbytes(8 * (rows + 4)), dtype="u8") for _ in "ab")
    if form == "written":
        return RowIds.of_arrays(high[:rows], low[:rows])
    return RowIds.of_arrays(high, low).slice(2, 2 + rows)


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    """Pieces of one or two schemas, some without a block, some with an error."""
    seeded = draw(st.randoms(use_true_random=False))
    pieces, rows = list[Piece](), 0
    kinds = columns(seeded)
    for place in range(seeded.randint(0, 5)):
        if seeded.random() < 0.2:
            kinds = columns(seeded)
        count = seeded.choice([0, 1, 3, 9, 40])
        start = seeded.randint(0, count)
        block: Block | None = block_of(table(seeded, kinds, count), ids_of(seeded, count))
        if block is not None and seeded.random() < 0.5:
            block = block.slice(start, seeded.randint(start, count))
        error = None
        if seeded.random() < 0.2:
            block, error = None, UDFError("it failed", why="x", row=seeded.randint(0, 9))
        rows += 0 if block is None else block.n
        losses = (Loss(1, 2, seeded.randint(1, 2), "what", "at"),) * seeded.randint(0, 2)
        ends = seeded.random() < 0.3
        stands = (place, seeded.randint(0, 3))
        if block is not None and seeded.random() < 0.3:  # before types have settled
            out = [{"x": seeded.random(), "b": b"b" * seeded.randint(0, 9)} for _ in range(block.n)]
            made = Returned(out, list(range(block.n)), block.ids, block.ids, 9 * block.n, error)
            pieces.append(Piece(*stands, ends=ends, losses=losses, returned=made))
            rows -= block.n
            continue
        pieces.append(Piece(*stands, block, ends, error, losses))
    return Outcome(pieces, seeded.randint(0, 99), rows, seeded.random() < 0.5, 7)


def bits(values: Any) -> Any:
    """Values as something that compares by bits; what lies under a null does not count."""
    if not isinstance(values, Vec):
        return values.type, values.to_pylist()
    valid = np.ones(len(values.values), bool) if values.valid is None else values.valid
    return values.values.dtype, values.values.shape, valid.tolist(), values.values[valid].tobytes()


def equal(a: Piece, b: Piece) -> bool:
    same = (a.place, a.atom, a.ends, a.losses) == (b.place, b.atom, b.ends, b.losses)
    same &= str(a.error) == str(b.error) and type(a.error) is type(b.error)
    if a.returned is not None and b.returned is not None:
        return same and told(a.returned) == told(b.returned)
    if a.block is None or b.block is None:
        return same and a.block is b.block and a.returned is b.returned
    same &= a.block.schema == b.block.schema and a.block.n == b.block.n
    same &= [i.tolist() for i in a.block.ids.arrays()] == [i.tolist() for i in b.block.ids.arrays()]
    return same and [bits(c) for c in a.block.columns] == [bits(c) for c in b.block.columns]


def told(made: Returned) -> Any:
    """What a function returned, as something that can be compared."""
    ids = [[part.tolist() for part in each.arrays()] for each in (made.ids, made.parents)]
    return made._replace(ids=ids, parents=None, error=str(made.error))  # type: ignore[arg-type]


def travelled(parcel: Parcel) -> Parcel:
    """The parcel as another process sees it, its buffers beside it."""
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(parcel, protocol=5, buffer_callback=buffers.append)
    found: Parcel = pickle.loads(sent, buffers=[bytes(each.raw()) for each in buffers])
    return found


@pytest.mark.law
@given(outcomes())
def test_what_is_unpacked_is_what_was_packed(outcome: Outcome) -> None:
    for parcel in (pack(outcome), travelled(pack(outcome)), pickle.loads(pickle.dumps(outcome))):
        found = unpack(parcel) if isinstance(parcel, Parcel) else parcel
        assert len(found.value) == len(outcome.value)
        assert all(map(equal, found.value, outcome.value))
        sizes = (found.held_bytes, found.rows, found.done, found.parked_bytes)
        assert sizes == (outcome.held_bytes, outcome.rows, outcome.done, outcome.parked_bytes)


def test_every_nan_keeps_its_bits() -> None:
    patterns = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], "u8")
    block = block_of(pa.table({"x": patterns.view("f8")}))
    found = unpack(travelled(pack(Outcome([Piece(0, 0, block)], 0, 3)))).value[0].block
    assert found.columns[0].values.view("u8").tolist() == patterns.tolist()


def test_rows_without_columns_are_still_counted() -> None:
    block = Block(Schema({}), (), RowIds.run(source_key("t"), 5, 3))
    found = unpack(travelled(pack(Outcome([Piece(0, 0, block)], 0, 3)))).value[0].block
    assert found.n == 3
    assert found.ids.low().tolist() == [5, 6, 7]


def test_a_slice_sends_its_own_part_only() -> None:
    rows = 100_000
    words = pa.array([f"word {n}" for n in range(rows)])
    data = pa.table({"n": np.arange(rows), "b": np.arange(rows) % 3 == 0, "w": words})
    ids = RowIds.of_arrays(np.arange(rows, dtype="u8"), np.arange(rows, dtype="u8"))
    part = block_of(data, ids).slice(50_000, 50_100)
    parcel = pack(Outcome([Piece(0, 0, part)], 0, 100))
    assert len(pickle.dumps(parcel)) < 10_000
    assert parcel.nbytes < 8_000
    assert equal(unpack(parcel).value[0], Piece(0, 0, part))


def test_columns_are_read_where_they_lie() -> None:
    block = block_of(pa.table({"x": np.arange(1000.0)}))
    parcel = pack(Outcome([Piece(0, 0, block)], 0, 1000))
    found = unpack(parcel).value[0].block.columns[0].values
    begin = pa.py_buffer(parcel.columns[0]).address
    assert begin <= found.__array_interface__["data"][0] < begin + len(parcel.columns[0])


def test_what_a_function_returned_lies_where_columns_do_and_counts() -> None:
    ids = RowIds.run(source_key("t"), 0, 3)
    made = Returned([{"b": bytes(100_000)} for _ in range(3)], [1, 2, 3], ids, ids, 300_000)
    kept: list[int] = []

    def keep(fill: Any) -> Any:
        buffer = in_memory(fill)
        kept.append(len(buffer))
        return buffer

    parcel = pack(Outcome([Piece(0, 0, returned=made)], 300_000, 0), keep)
    assert kept == [parcel.nbytes]
    assert parcel.nbytes > 300_000
    assert len(parcel.places) < 2_000
    assert equal(unpack(parcel).value[0], Piece(0, 0, returned=made))


def test_equal_schemas_share_a_stream() -> None:
    pieces = [Piece(n, 0, block_of(pa.table({"x": [float(n)]}))) for n in range(5)]
    assert len(pack(Outcome(pieces, 0, 5)).columns) == 1
    pieces.insert(2, Piece(9, 0, block_of(pa.table({"y": ["a"]}))))
    assert len(pack(Outcome(pieces, 0, 6)).columns) == 3


def test_an_error_that_is_none_of_dmls_is_a_bug() -> None:
    piece = Piece(0, 0, error=UDFError("x"))
    parcel = pack(Outcome([piece], 0, 0))
    schemas, ((bare, _error, *rest),) = pickle.loads(parcel.places)
    place = bare, shipped(ValueError("y")), *rest
    broken = Parcel(parcel.outcome, pickle.dumps((schemas, [place])), ())
    with pytest.raises(InternalError, match="none of dml's"):
        unpack(broken)
