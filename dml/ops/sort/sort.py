"""``sort`` returns the whole input in order of some columns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dml.base.cached_property import cached_property
from dml.data.schema import Schema
from dml.errors import PlanError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.node import Node, op

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position
    from dml.ops.sort.row_order import Ordering


@op
class Sort(Node):
    """Returns every row once, in order of the columns ``names``; equal rows keep their order.

    Rows are kept in memory up to the run's budget, and beyond it in sorted runs on local disk.
    ``most`` is the maximum number of rows that will be pulled (None: unknown); it changes no row.
    ``verb`` is the user's verb, for errors.
    """

    input: Node
    names: tuple[str, ...]
    descending: tuple[bool, ...]
    nulls_last: bool
    verb: str = "sort"
    most: int | None = None

    rows: ClassVar[Rows] = Rows.PERMUTED
    # A count is saved, all rows are sorted again.
    resume_cost = ResumeCost(state_bytes=24, work="one pass")
    gathers: ClassVar[int] = 2
    waits: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for a batched or endless input."""
        if self.input.batched:
            raise PlanError(
                f"{self.verb} over batches",
                why="its input is batched",
                try_=f".{self.verb}(...) before .batch()",
            )
        if self.input.endless:
            raise PlanError(
                f"{self.verb} of an endless stream",
                why=".repeat() without a count has no last element to wait for",
                try_=f".{self.verb}(...) before .repeat(), or .take(n) before it",
            )

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema; raise SchemaError unless the columns have an order."""
        self.ordering.check(given)
        return given

    @cached_property
    def ordering(self) -> Ordering:
        """Return the ordering by the columns ``names``."""
        from dml.ops.sort.row_order import Ordering  # noqa: PLC0415

        return Ordering(self.names, self.descending, self.nulls_last, self.verb, self.label())

    @property
    def looks_at(self) -> frozenset[str]:  # type: ignore[override]
        """Return the sort columns."""
        return frozenset(self.names)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that sorts by the columns."""
        from dml.ops.sort.external_sort import Sorted  # noqa: PLC0415

        return Sorted(partial(open_input, epoch, None), position, at, self.ordering, self.most)

    @property
    def ordered_by(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the sort columns."""
        return self.names

    @property
    def spreads(self) -> bool:  # type: ignore[override]
        """True if the sort can be distributed to workers, which sort all rows: ``most`` is None."""
        return self.most is None

    def spread(self, at: At, epoch: int) -> Ordering:
        """Return the order of rows, for a sort that is distributed to workers."""
        return self.ordering

    def parameters_text(self) -> str:
        """Return as text the columns, and the options that differ from the defaults."""
        pairs = zip(self.names, self.descending, strict=True)
        names = ", ".join(f"{name!r}{' descending' if down else ''}" for name, down in pairs)
        nulls = "" if self.nulls_last else ", nulls_last=False"
        return names + nulls + ("" if self.most is None else f", most={self.most}")
