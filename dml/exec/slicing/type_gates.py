"""Hold slices back until the result types of a function have settled.

A *gate* follows each function of a lane whose result types are neither declared nor proven. The
first slices reach the gate with the function's results, which have no types. Once the results
suffice to determine the types, the gate opens, and the results continue as blocks. The types of a
function of batches settle with the first batch that yields a row; until then a slice is one batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from dml.data.block import Block
from dml.data.row_slicing import SETTLING_BYTES, SETTLING_ROWS
from dml.errors import DmlError, UDFError
from dml.exec.tasks.partition import Piece
from dml.expr.flow import At, untyped
from dml.expr.node import Node
from dml.expr.user_call import blamed
from dml.udfs.calling.array_results import fitted
from dml.udfs.calling.type_inference import Firsts, Returned


class Gate:
    """A point after ``node``, operator ``index`` of a lane, whose result types are unknown."""

    def __init__(self, node: Node, index: int) -> None:
        self.node: Any = node
        self.index = index
        self.firsts = Firsts()
        self.batches = not node.returns_rows  # the function takes batches
        self.open = False
        self.misfit: tuple[int, DmlError] | None = None  # results before the error
        self.passed = 0

    def take(self, pieces: list[Piece], at: At) -> None:
        """Read pieces that reach the gate, in order; open it once they determine the types."""
        for piece in pieces:
            if self.open:
                return
            if piece.returned is not None:
                self._see(piece.returned, at)
            if piece.error is not None and not self.open:
                self.settle(at)

    def _see(self, made: Returned, at: At) -> None:
        if not self.batches:
            self.firsts.add(made)
            if self.firsts.enough:
                self.settle(at)
        elif any(block.n for block in made.out):
            at.schemas.setdefault(self.node.digest.hex(), made.out[0].schema)
            self.open = True

    def settle(self, at: At) -> None:
        """Settle the types from the results so far, and open the gate."""
        if not self.batches and untyped(self.node, at):
            self.misfit = self.firsts.settle(self.node, at)
        self.open = True
        self.firsts = Firsts()

    def wants(self, rows: int, slices: int) -> bool:
        """Return whether rows are needed beyond the ``rows`` in ``slices`` slices in progress."""
        if self.batches:
            return True
        seen = self.firsts
        if not seen.results and not slices:
            return True
        each = seen.nbytes / max(1, seen.rows)
        light = seen.nbytes + each * rows < SETTLING_BYTES
        return seen.rows + rows < SETTLING_ROWS and light

    def most_rows(self, rows: int) -> int:
        """Return how many rows to take in addition to ``rows`` in progress; 1 for batches."""
        if self.batches:
            return 1
        return max(1, SETTLING_ROWS - self.firsts.rows - rows)

    def typed(self, pieces: list[Piece], at: At) -> list[Piece]:
        """Return the pieces with typed blocks in place of results, up to the first error."""
        out: list[Piece] = []
        for piece in pieces:
            if piece.returned is None:
                out.append(piece)
                continue
            # the rows that were lost lie before these rows
            losses = piece.losses
            try:
                for block in self._blocks(piece.returned, at):
                    out.append(Piece(piece.place, piece.atom, block.bare(), losses=losses))
                    losses = ()
            except DmlError as error:
                found = error.under(self.node.label())
                out.append(Piece(piece.place, piece.atom, error=found, losses=losses))
                return out
            if losses:
                out.append(dataclasses.replace(piece, returned=None, losses=losses))
        return out

    def _blocks(self, made: Returned, at: At) -> Iterator[Block]:
        if not self.batches:
            yield from self.node.typed(self._fitting(made), at)
            return
        try:
            for block in made.out:
                yield fitted(self.node, block, at)
        except UDFError as error:  # for a group, the error names the first row
            found = blamed(error, made.parents, 0) if self.node.by_atom else error
            raise found from error.__cause__

    def _fitting(self, made: Returned) -> Returned:
        """Return ``made`` up to the first result that does not fit the types, with its error."""
        before, self.passed = self.passed, self.passed + len(made.out)
        if self.misfit is None or self.passed <= self.misfit[0]:
            return made
        count, error = self.misfit
        return made._replace(out=made.out[: count - before], error=error)
