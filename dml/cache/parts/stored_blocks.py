"""Read the blocks of a part as views of its memory, with the row ids that are stored with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dml.cache.parts.wide_columns import Runs, starts
from dml.data.block import Block
from dml.data.id_columns import apart, ids_of
from dml.data.schema import Schema
from dml.kernels.rows.ids import RowIds


class StoredBlocks:
    """The blocks of a part, by number; adjacent blocks were stored as one record batch.

    ``form`` is the form of the row ids, and ``firsts`` has the first id of each block. ``schema``
    is that of all blocks; ``finish`` is called with the rows of each batch when they are read.
    """

    def __init__(
        self,
        runs: Runs,
        form: int,
        firsts: Sequence[Sequence[int]],
        schema: Schema | None,
        finish: Callable[[Block], None],
    ) -> None:
        self.runs, self.form, self.firsts, self._schema = runs, form, firsts, schema
        self.counts = [count for _, counts in runs for count in counts]
        self.places = [(run, row) for run, (_, counts) in enumerate(runs) for row in starts(counts)]
        self._finish = finish
        self._last: tuple[int, Block, list[np.ndarray]] | None = None

    def joined(self, numbers: Sequence[int]) -> Block:
        """Return the blocks ``numbers``, which are adjacent in one record batch, as one block."""
        run, start = self.places[numbers[0]]
        whole, columns = self._whole(run)
        stop, ids = start, list[RowIds]()
        for number in numbers:
            row, stop = stop, stop + self.counts[number]
            parts = [each[row:stop] for each in columns]
            ids.append(ids_of(self.form, parts, stop - row, self.firsts[number]))
        part = whole.slice(start, stop)
        return Block(part.schema, part.columns, ids[0] if len(ids) == 1 else RowIds.concat(ids))

    def _whole(self, run: int) -> tuple[Block, list[np.ndarray]]:
        """Return a record batch as one block, and the columns of its ids; memoizes one batch."""
        known = self._last
        if known is None or known[0] != run:
            batch, counts = self.runs[run]
            rows, columns = apart(batch, self.form)
            whole = Block.from_arrow(rows, RowIds.run(0, 0, sum(counts)), self._schema)
            self._finish(whole)
            known = self._last = run, whole, columns
        return known[1:]
