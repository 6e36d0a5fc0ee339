"""This file holds ``sort``: the whole input in order of some columns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dml.errors import PlanError
from dml.expr.computed import cached_property
from dml.expr.facts import Held, Rows
from dml.expr.node import Node, op
from dml.expr.ordering import Ordering
from dml.expr.schema import Schema
from dml.expr.sorting import Sorted

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position


@op
class Sort(Node):
    """Every row once, in order of the columns ``names``; equal ones stay as they came.

    Holds the rows in memory up to the run's budget, sorted runs on local disk beyond it. With
    ``most``, which changes no row, no more than the first so many will be asked for. ``verb`` is
    what the user wrote, for errors.
    """

    input: Node
    names: tuple[str, ...]
    descending: tuple[bool, ...]
    nulls_last: bool
    verb: str = "sort"
    most: int | None = None

    rows: ClassVar[Rows] = Rows.PERMUTED
    gathers: ClassVar[int] = 2
    waits: ClassVar[bool] = True
    total: bool = True

    def check(self) -> None:
        """Rows, not batches, and an end to them."""
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

    def infer(self) -> Schema:
        """The input's schema, whose columns ``names`` have an order."""
        given = self.input.schema
        if given.known:
            self.ordering.check(given)
        return given

    @cached_property
    def ordering(self) -> Ordering:
        """Which rows come first."""
        return Ordering(self.names, self.descending, self.nulls_last, self.verb, self.label())

    @property
    def looks_at(self) -> frozenset[str]:  # type: ignore[override]
        """The columns that are looked at."""
        return frozenset(self.names)

    @property
    def held(self) -> Held:
        """A count; everything is sorted again."""
        return Held(state_bytes=24, work="one pass")

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Sort by the columns."""
        return Sorted(partial(open_input, epoch, None), position, at, self.ordering, self.most)

    @property
    def ordered_by(self) -> tuple[str, ...]:  # type: ignore[override]
        """The columns."""
        return self.names

    @property
    def spreads(self) -> bool:  # type: ignore[override]
        """True if all rows are wanted: of few of them, others need not be written."""
        return self.most is None

    def spread(self, at: At, epoch: int) -> Ordering:
        """The order, parts of which may be made apart."""
        return self.ordering

    def shown(self) -> str:
        """The columns, and what is not as usual."""
        pairs = zip(self.names, self.descending, strict=True)
        names = ", ".join(f"{name!r}{' descending' if down else ''}" for name, down in pairs)
        nulls = "" if self.nulls_last else ", nulls_last=False"
        return names + nulls + ("" if self.most is None else f", most={self.most}")
