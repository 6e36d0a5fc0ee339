"""A segment keeps rows by a predicate, then computes columns, in one pass.

A segment is the normal form of consecutive filters and column operators; users do not write it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar

from dml.base.cached_property import cached_property
from dml.data.block import Block
from dml.data.row_slicing import in_parts
from dml.data.schema import Schema
from dml.errors import DmlError
from dml.expr.columns import computation
from dml.expr.columns.value import Value, value_text, walk
from dml.expr.facts import FilterOrder, Length, Rows
from dml.expr.node import Node, op
from dml.ops.row.rowwise import Env, growing, slow_rows

if TYPE_CHECKING:
    from dml.expr.flow import At

NamedColumns = Env
SLOW = attrgetter("slow")


@op
class Segment(Node):
    """Keeps the rows where all of ``predicate`` are true, and computes the columns ``env``.

    Predicates and columns are expressions over the input's columns. Predicates are evaluated in
    order; one that may fail is evaluated only on the rows that the earlier ones kept. If none may
    fail, ``tried`` may have another order. Fingerprints are computed from ``named``, if it is not
    empty, instead of ``env``: it still contains the columns that were dropped because no later
    function looks them up.
    """

    input: Node
    predicate: tuple[Value, ...]
    env: Env
    tried: FilterOrder = FilterOrder()
    named: NamedColumns = ()

    rows: ClassVar[Rows] = Rows.FEWER

    @property
    def _values(self) -> tuple[Value, ...]:
        return (*self.predicate, *(value for _, value in self.env))

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True if no predicate and no column can fail on any row."""
        return all(value.total for value in self._values)

    def length(self, *given: Length) -> Length | None:
        """Return the input's length; None with a predicate."""
        return None if self.predicate else given[0]

    @cached_property
    def slow(self) -> bool:  # type: ignore[override]
        """True if an expression takes so long that rows are computed in parallel."""
        return True in map(SLOW, self._values)

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """True if a predicate or column draws keyed random numbers."""
        return any(value.draws for value in self._values)

    @property
    def has_orders(self) -> bool:  # type: ignore[override]
        """True for several infallible predicates, of which at least one is costly."""
        parts = self.predicate
        return len(parts) > 1 and all(part.total for part in parts) and any(map(is_costly, parts))

    @cached_property
    def reads(self) -> frozenset[str]:
        """Return the input columns that are read."""
        return frozenset().union(*(value.refs for value in self._values))

    @cached_property
    def work(self) -> computation.ComputedSegment:
        """Return the compiled predicates and columns."""
        names = [name for name, _ in self.env]
        values = [value for _, value in self.env]
        return computation.ComputedSegment(self.predicate, names, values, self.tried.groups)

    def infer(self) -> Schema:
        """Return the names and types of the computed columns."""
        return self.work.schema(self.input.schema)

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the kept rows of ``block`` with the computed columns; several blocks if large."""
        if self.slow:
            yield from slow_rows(self, self.work, block, at)
            return
        for part in in_parts(block, self.schema, partial(self._sampled, at)):
            yield from self.work.run(part, at)

    def _sampled(self, at: At, some: Block) -> int:
        """Return the bytes of the output for ``some``; 0 if ``grows`` is False, or a row fails."""
        try:
            return sum(made.weight for made in self.work.run(some, at)) if self.grows else 0
        except DmlError:
            return 0

    @cached_property
    def grows(self) -> bool:
        """True if text or list columns are computed, not only passed on."""
        return growing(self.env, self.schema)

    def parameters_text(self) -> str:
        """Return the predicates and the columns as text."""
        groups = self.tried.groups or (tuple(range(len(self.predicate))),)
        tried = (" & ".join(value_text(self.predicate[i]) for i in group) for group in groups)
        kept = " then ".join(tried)
        same = [n for n, v in self.env if v.op == "col" and v.params[0] == n]
        made = [f"{n}={value_text(v)}" for n, v in self.env if n not in same]
        parts = ([f"where {kept}"] if kept else []) + ([", ".join(same)] if same else []) + made
        return "; ".join(parts)


def is_costly(value: Value) -> bool:
    """Return True if ``value`` uses a function of a namespace, such as one of texts or lists."""
    return any("." in each.op for each in walk((value,)))
