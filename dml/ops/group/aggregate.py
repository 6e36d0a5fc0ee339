"""``agg`` turns each group of rows into one row of aggregates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from dml.data.block import Block, Values, concat
from dml.data.schema import Schema
from dml.errors import MemoryContractError, PlanError, SchemaError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import CHUNK, Again
from dml.expr.node import Node, op
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position
    from dml.ops.group.aggregate_functions import Figure, Part
    from dml.ops.sort.row_order import Ordering

# Part of the key of row ids: "aggregat" in ASCII.
AGGREGATE = 0x6167677265676174


@op
class Aggregate(Node):
    """Outputs one row per run of rows with equal ``keys``: the keys, then the aggregates ``parts``.

    Sorted rows have one run for each group. Without keys all rows are one group, and an empty input
    gives one row, too. A key of -0.0 becomes 0.0. The row id is derived from that of the group's
    first row.
    """

    input: Node
    keys: tuple[str, ...]
    parts: tuple[Part, ...]

    rows: ClassVar[Rows] = Rows.RUNS
    # A count is saved, all rows are read again.
    resume_cost = ResumeCost(state_bytes=24, work="one pass")

    def check(self) -> None:
        """Raise PlanError for a batched or endless input."""
        if self.input.batched or self.input.endless:
            raise PlanError(
                f"agg over {'batches' if self.input.batched else 'an endless stream'}",
                why="figures are of all rows, to the last one",
                try_=".agg(...) before .batch() and .repeat()",
            )

    def schema_over(self, given: Schema) -> Schema:
        """Return the types of keys and aggregates; raise SchemaError for unfit columns."""
        return self._resolve(given)[1]

    def _resolve(self, given: Schema) -> tuple[list[Figure], Schema]:
        from dml.ops.group.aggregate_table import FIGURES  # noqa: PLC0415

        try:
            figures = [FIGURES[part[1]](part, self._kind(given, part)) for part in self.parts]
            self.ordering.check(given)
        except SchemaError as error:
            raise error.under(self.label()) from None
        kinds = [(name, given[name]) for name in self.keys]
        named = [(part[0], each.kind) for part, each in zip(self.parts, figures, strict=True)]
        return figures, Schema((*kinds, *named))

    def _kind(self, given: Schema, part: Part) -> pa.DataType:
        return pa.null() if part[2] is None else given.require(part[2], part[1])

    @property
    def ordering(self) -> Ordering:
        """Return the ordering that compares keys."""
        from dml.ops.sort.row_order import Ordering  # noqa: PLC0415

        return Ordering(self.keys, (False,) * len(self.keys), verb="group_by")

    @property
    def looks_at(self) -> frozenset[str]:  # type: ignore[override]
        """Return the key columns and the aggregated columns."""
        return frozenset((*self.keys, *(part[2] for part in self.parts if part[2] is not None)))

    @property
    def grouped_by(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the key columns."""
        return self.keys

    @property
    def gathers(self) -> int:  # type: ignore[override]
        """Return 1 if an aggregate keeps the values of a group until its end, else 0."""
        from dml.ops.group.aggregate_table import KEEPS  # noqa: PLC0415

        return int(any(part[1] in KEEPS for part in self.parts))

    @property
    def waits(self) -> bool:  # type: ignore[override]
        """True without keys: the only row is returned after the last input row was read."""
        return not self.keys

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow of one row per group."""
        return Again(partial(open_input, epoch, None), partial(self.groups, at), position)

    def groups(self, at: At, rows: Flow) -> Iterator[Block]:
        """Yield, in blocks, one row for each run of ``rows``."""
        work: _Groups | None = None
        while (block := rows.pull(CHUNK)) is not None:
            work = work or _Groups(self, block.schema, at)
            made = work.ended(block)
            if made is not None:
                yield made
        if work is None and not self.keys:
            given = self.input.schema
            work = _Groups(self, given if given.known else self._unknown(), at)
        if work is not None and (work.first is not None or not self.keys):
            yield work.rest()

    def _unknown(self) -> Schema:
        """Return a schema of null columns, for an input without rows and without known types."""
        return Schema((name, pa.null()) for name in sorted(self.looks_at))

    def group_ids(self, firsts: RowIds | None) -> RowIds:
        """Return the ids of groups from their first rows' ids (None: one empty group)."""
        key = AGGREGATE + self.level
        return RowIds.run(key, 0, 1) if firsts is None else firsts.derive(key, 0)

    def parameters_text(self) -> str:
        """Return the keys and the aggregates as text."""
        figures = [f"{name}={op}({column or ''})" for name, op, column, _ in self.parts]
        return ", ".join([*map(repr, self.keys), *figures])


class _Groups:
    """The current group: its first row, and the states of its aggregates."""

    def __init__(self, node: Aggregate, given: Schema, at: At) -> None:
        self.node, self.most_bytes = node, at.hold_bytes
        self.figures, self.schema = node._resolve(given)  # noqa: SLF001 - its own work
        self.first: Block | None = None
        self.key: tuple[object, ...] | None = None
        self.states: list[list[object]] = []

    def ended(self, block: Block) -> Block | None:
        """Add the rows of ``block``; return the output rows of groups that end in it, or None."""
        starts = self._starts(block)
        heads = block.select(self.node.keys).take(starts)
        cuts = starts if len(starts) and starts[0] == 0 else np.concatenate([[0], starts])
        parts = zip(self.figures, self.node.parts, strict=True)
        found = [each.states(self._column(block, part[2]), cuts) for each, part in parts]
        if self.first is not None:
            heads = concat([self.first, heads]) if heads.n else self.first
            for place, (each, states) in enumerate(zip(self.figures, found, strict=True)):
                open_ = self.states[place]
                if len(cuts) > len(starts):  # the current group goes on in this block
                    open_[0] = each.joined(open_[0], states.pop(0))
                found[place] = open_ + states
        self.first = heads.slice(heads.n - 1, heads.n)
        self.states = [states[-1:] for states in found]
        self._weigh()
        groups = heads.n - 1
        whole = [states[:-1] for states in found]
        return self._row(heads.slice(0, groups), whole) if groups else None

    def _starts(self, block: Block) -> np.ndarray:
        """Return the indices of the rows of ``block`` at which a group begins, ascending."""
        if not self.node.keys:
            return np.zeros(0 if self.first is not None else 1, np.int64)
        ordering = self.node.ordering
        keys = ordering.keyed(block)
        starts = ordering.starts(block, keys)
        before, self.key = self.key, keys[block.n - 1]
        return starts if before == keys[0] else np.concatenate([[0], starts])

    @staticmethod
    def _column(block: Block, name: str | None) -> Values:
        return Vec(np.zeros(block.n, bool), None) if name is None else block[name]

    def _weigh(self) -> None:
        pairs = zip(self.figures, self.states, strict=True)
        held = sum(each.state_bytes(state[0]) for each, state in pairs)
        if held > self.most_bytes:
            raise MemoryContractError(
                "the values of one group do not fit into the memory number",
                at=self.node.label(),
                why=f"they take {held} bytes, and their part of memory_limit is {self.most_bytes}",
                try_="a larger memory_limit=, or figures that keep no values, such as .sum()",
            )

    def rest(self) -> Block:
        """Return the output row of the current group."""
        if self.first is None:
            columns = self._results([[each.nothing()] for each in self.figures])
            return Block(self.schema, columns, self.node.group_ids(None))
        return self._row(self.first, self.states)

    def _results(self, states: list[list[object]]) -> tuple[Values, ...]:
        return tuple(each.to_column(some) for each, some in zip(self.figures, states, strict=True))

    def _row(self, heads: Block, states: list[list[object]]) -> Block:
        keys = tuple(map(_without_negative_zeros, heads.columns))
        return Block(self.schema, (*keys, *self._results(states)), self.node.group_ids(heads.ids))


def _without_negative_zeros(keys: Values) -> Values:
    """Return the keys of groups with -0.0 as 0.0."""
    if isinstance(keys, Vec) and keys.values.dtype.kind == "f":
        return Vec(keys.values + np.zeros(1, keys.values.dtype), keys.valid)
    return keys
