"""This file holds ``map``: a user's function from row to row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dml.expr import rows as convert
from dml.expr.block import Block
from dml.expr.calls import UserFunction, blamed, raised
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node, op
from dml.expr.rows import each_row
from dml.expr.schema import UNKNOWN, Schema
from dml.expr.skipping import RAISE, Skipping
from dml.expr.typing import lower
from dml.kernels.ids import RowIds

if TYPE_CHECKING:
    from dml.expr.flow import At
    from dml.expr.lift import Lifted

# Rows that are dicts at one time: few enough to stay in the processor's cache.
CALLS = 16384


def returned(
    node: Node,
    fn: UserFunction,
    out: list[Any],
    ids: RowIds,
    at: At,
    *,
    parents: RowIds | None = None,
) -> Iterator[Block]:
    """The rows ``out`` that ``fn`` returned, settling the schema if need be.

    Where one does not fit, the rows before it, then the error, which blames the row of ``parents``
    (or ``ids``) that it was made of. Shared by the operators that call a function per row; ``node``
    keys the settled schema.
    """
    key = node.digest.hex()
    schema = node.schema if node.schema.known else at.schemas.get(key)
    try:
        made = convert.to_block(out, schema, ids.slice(0, len(out)), fn.fresh)
    except convert.UnfitError as unfit:
        if unfit.row:
            yield from returned(node, fn, out[: unfit.row], ids, at, parents=parents)
        error = unfit.as_error(fn.name).located(node.label())
        raise blamed(error, ids if parents is None else parents, unfit.row) from None
    at.schemas.setdefault(key, made.schema)
    yield made


@op
class MapRows(Skipping):
    """Each row replaced by the dict that ``fn`` makes of its dict.

    Called once per row in runs without failures. The output schema is ``declared``, or that of the
    expressions that ``fn`` is proven to be, or settled by the first rows in source order; later
    rows must fit it. UDFError names the row; with ``on_error="skip"`` a row for which ``fn`` raises
    is lost instead.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """One for one, but for rows that are lost."""
        return Rows.FEWER if self.skips else Rows.SAME

    @cached_property
    def lifted(self) -> Lifted | None:
        """What ``fn`` is proven to be as expressions over the input; None where nothing is."""
        if self.declared is not None or not self.input.schema.known:
            return None
        from dml.expr.lift import Lifted, lift  # noqa: PLC0415 - 7 ms, for row functions alone

        found = lift(self.fn.call, self.input.schema)
        return found if isinstance(found, Lifted) and found.columns is not None else None

    def infer(self) -> Schema:
        """What was declared or is proven: lifted or called, a function's types are the same."""
        if self.lifted is None:
            return self.declared or UNKNOWN
        names = [name for name, _ in self.lifted.columns or ()]
        values = [value for _, value in self.lifted.columns or ()]
        return Schema(zip(names, lower(values, self.input.schema).types, strict=True))

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The mapped rows; where the function raises, the rows before it, then the error."""
        for start in range(0, block.n, CALLS):
            yield from self._part(block.slice(start, start + CALLS), at)

    def _part(self, block: Block, at: At) -> Iterator[Block]:
        out: list[Any] = []
        error, ids = each_row(self.fn, block, out), block.ids
        if error is not None and self.skips:
            ids, error = ids.take(self.survivors(block, error, out, at)), None
        if out:
            yield from returned(self, self.fn, out, ids, at)
        if error is not None:
            raise raised(error, self.fn, block.ids, len(out)).located(self.label())

    def shown(self) -> str:
        """The function's name, and what it needs."""
        return f"{self.fn.name}{self.skipping}{self.needs.shown()}"
