"""Test flows: positions between any two rows, and errors after the rows before them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from dml.data.block import Block
from dml.errors import DmlError, UDFError
from dml.expr.flow import WHOLE, Blockwise, LocalFlow, Position, read_rows
from dml.kernels.rows.ids import RowIds


def block(values: list[int]) -> Block:
    batch = pa.RecordBatch.from_pydict({"x": pa.array(values, pa.int64())})
    return Block.from_arrow(batch, RowIds.run(1, 0, len(values)))


class Listed:
    """A flow over blocks in a list; -1 in one stands for an error there."""

    def __init__(self, blocks: list[list[int]], at: int = 0) -> None:
        self.blocks, self.at, self.closed = blocks, at, 0

    def pull(self, most: int) -> Block | None:
        if self.at == len(self.blocks):
            return None
        values = self.blocks[self.at]
        if values == [-1]:
            raise UDFError("on purpose")
        self.at += 1
        return block(values[:most])

    def position(self) -> Position:
        return {"at": self.at}

    def close(self) -> None:
        self.closed += 1


class Twice:
    """Each row twice, none for zero; settles its types by ``wanted`` rows."""

    def __init__(self, wanted: int = 0) -> None:
        self.wanted = wanted
        self.sizes: list[int] = []

    def run(self, given: Block) -> Iterator[Block]:
        self.sizes.append(given.n)
        self.wanted = 0
        for value in given.to_arrow().column(0).to_pylist():
            yield block([value] * (2 if value else 0))

    def settling(self) -> int:
        return self.wanted


def opened(blocks: list[list[int]], work: Twice, position: Position | None = None) -> LocalFlow:
    def open_input(epoch: int, position: Position | None) -> Listed:
        return Listed(blocks, (position or {"at": epoch})["at"])

    return LocalFlow(Blockwise(work.run, work.settling), open_input, 0, position)


def rest(flow: LocalFlow, most: int) -> list[int]:
    out: list[int] = []
    while (found := flow.pull(most)) is not None:
        assert 0 < found.n <= most
        out += found.to_arrow().column(0).to_pylist()
    assert flow.pull(most) is None  # again and again
    return out


BLOCKS = [[1, 2], [0], [0, 3, 0], [], [4]]


@pytest.mark.parametrize("most", [1, 2, 99])
def test_positions_between_any_two_rows(most: int) -> None:
    whole = rest(opened(BLOCKS, Twice()), 99)
    assert whole == [1, 1, 2, 2, 3, 3, 4, 4]
    flow = opened(BLOCKS, Twice())
    for given in range(len(whole) + 1):
        assert rest(opened(BLOCKS, Twice(), flow.position()), most) == whole[given:]
        flow.pull(1)


def test_types_settle_by_rows_together() -> None:
    work = Twice(wanted=3)
    assert rest(opened(BLOCKS, work), 99) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert work.sizes[0] == 3
    assert rest(opened(BLOCKS, Twice(wanted=WHOLE)), 99)[:2] == [1, 1]


def test_rows_before_an_error_come_first_and_it_comes_again() -> None:
    flow = opened([[1], [-1], [2]], Twice(wanted=99))
    found = flow.pull(9)
    assert found is not None
    assert found.n == 2
    for _ in range(2):
        with pytest.raises(DmlError, match="on purpose"):
            flow.pull(9)


def test_read_rows_stops_at_the_end() -> None:
    assert [b.n for b in read_rows(Listed([[1, 2], [3]]), 3)] == [2, 1]
    assert [b.n for b in read_rows(Listed([[1, 2], [3]]), 9)] == [2, 1]
    assert read_rows(Listed([]), 9) == []
    assert read_rows(Listed([[1]]), 0) == []
