"""``apply`` computes one column by a user's function of other columns, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from dml.data.block import Block
from dml.data.row_slicing import CALLS
from dml.data.schema import Schema
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, blamed, raised
from dml.udfs.calling.python_rows import UnfitError, converted, to_values

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class Apply(Node):
    """Adds or replaces the column ``name`` by ``fn`` of the columns ``args``.

    ``fn`` is called once per row in runs without failures, with None for null; its result must fit
    ``kind``. A UDFError names the row. Raises SchemaError for missing columns.
    """

    input: Node
    fn: UserFunction
    args: tuple[str, ...]
    name: str
    kind: pa.DataType

    rows: ClassVar[Rows] = Rows.SAME

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's columns with the new one."""
        for name in self.args:
            given.require(name, self.fn.name)
        return Schema({**given, self.name: self.kind})

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield rows with the column; raise an error of the function after the rows before it."""
        for start in range(0, block.n, CALLS):
            yield from self._part(block.slice(start, start + CALLS), at)

    def _part(self, block: Block, at: At) -> Iterator[Block]:
        out: list[Any] = []
        rows = (row for each in converted(block, self.args) for row in zip(*each, strict=True))
        error = self.fn.caught(_each, self.fn.call, rows, out)
        if out:
            yield from self._with_results(block.slice(0, len(out)), out, at)
        if error is not None:
            raise raised(error, self.fn, block.ids, len(out)).located(self.label())

    def _with_results(self, block: Block, out: list[Any], at: At) -> Iterator[Block]:
        """Yield ``block`` with the column ``out``; raise for invalid values, after earlier rows."""
        try:
            made = to_values(out, self.kind, self.name, frozenset(map(type, out)))
        except UnfitError as unfit:
            if unfit.row:
                yield from self._with_results(block.slice(0, unfit.row), out[: unfit.row], at)
            error = unfit.as_error(self.fn.name).located(self.label())
            raise blamed(error, block.ids, unfit.row) from None
        schema = self.schema_over(block.schema)
        columns = dict(zip(block.schema.names, block.columns, strict=True))
        columns[self.name] = made
        yield Block(schema, tuple(columns[name] for name in schema), block.ids)

    def parameters_text(self) -> str:
        """Return the call as text."""
        return f"{self.name}={self.fn.name}({', '.join(self.args)}){self.fn.timeout_text}"


def _each(fn: Any, rows: Iterable[tuple[Any, ...]], out: list[Any]) -> None:
    for row in rows:  # results before an exception stay in ``out``
        out.append(fn(*row))  # noqa: PERF401
