"""Test the sieve operator: which rows remain, how many, and where it resumes."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.data.block import Block
from dml.expr.flow import Flow
from dml.kernels.rows.ids import RowIds
from dml.ops.slice.sieve import Sieve
from dml.testing.executions import PLAIN, elements
from tests.expr.checks import UNUSED, node_of


def kept(node: Sieve, rows: int) -> list[int]:
    def inside(row: int) -> bool:
        return node.begin <= row and (node.stop is None or row < node.stop)

    return [
        row
        for row in range(rows)
        if not inside(row) or (node.index is not None and row % node.step == node.index)
    ]


RANGES = st.tuples(st.integers(0, 40), st.none() | st.integers(0, 50))
PLACES = st.tuples(st.integers(1, 9), st.none() | st.integers(0, 8))


@given(RANGES, PLACES, st.integers(0, 60), st.data())
def test_which_rows_stay_and_how_many(
    inside: tuple[int, int | None],
    places: tuple[int, int | None],
    rows: int,
    data: st.DataObject,
) -> None:
    (begin, stop), (step, index) = inside, places
    index = None if index is None else index % step
    node = Sieve(node_of(dml.range(rows, atom_rows=7)), begin, stop, step, index)
    wanted = kept(node, rows)
    assert node.length(rows) == len(wanted)
    found = [row["id"] for row in elements(node, PLAIN, UNUSED)]
    assert found == wanted
    place = data.draw(st.integers(0, len(wanted)))
    run = elements(node, PLAIN, UNUSED)
    before = [next(run)["id"] for _ in range(place)]
    rest = elements(node, PLAIN, UNUSED, state=run.state_dict())
    assert before + [row["id"] for row in rest] == wanted


class Numbers:
    """A flow of numbers."""

    def __init__(self, rows: int) -> None:
        self.left = list(range(rows))

    def pull(self, most: int) -> Block | None:
        if not self.left:
            return None
        some, self.left = self.left[:most], self.left[most:]
        return Block.from_arrow(pa.table({"id": some}).to_batches()[0], RowIds.run(0, 0, len(some)))


@given(RANGES, PLACES, st.integers(1, 20))
def test_no_more_rows_come_than_were_asked_for(
    inside: tuple[int, int | None], places: tuple[int, int | None], most: int
) -> None:
    step, index = places
    node = Sieve(node_of(dml.range(100)), *inside, step, None if index is None else index % step)
    flow: Flow = node.flow(lambda *_: cast("Flow", Numbers(100)), 0, None, cast("Any", None))
    rows = 0
    while (block := flow.pull(most)) is not None:
        assert 0 < block.n <= most
        rows += block.n
    assert rows == len(kept(node, 100))
