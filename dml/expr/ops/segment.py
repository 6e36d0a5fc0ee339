"""This file holds the segment: keep rows by a predicate, then compute columns, in one pass.

It is the normal form of every run of filters and column operators; users do not write it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from dml.errors import DmlError
from dml.expr import compute
from dml.expr.block import Block
from dml.expr.computed import cached_property
from dml.expr.cutting import in_parts
from dml.expr.facts import Length, Rows, Tried
from dml.expr.node import Node, op
from dml.expr.rowwise import Env
from dml.expr.schema import Schema, code_of
from dml.expr.value import Value, shown

if TYPE_CHECKING:
    from dml.expr.flow import At


@op
class Segment(Node):
    """Rows of ``input`` where all of ``predicate`` are true, as the columns ``env``.

    Predicates and columns are over the input's columns; predicates are tried in order, one that may
    fail only on rows that the ones before kept. Where none may fail, ``tried`` is another order.
    """

    input: Node
    predicate: tuple[Value, ...]
    env: Env
    tried: Tried = Tried()

    rows: ClassVar[Rows] = Rows.FEWER

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True if nothing can fail on any row."""
        return all(v.total for v in self.predicate) and all(v.total for _, v in self.env)

    def length(self, *given: Length) -> Length | None:
        """All rows, where there is no predicate."""
        return None if self.predicate else given[0]

    @property
    def draws(self) -> bool:
        """True if a predicate or column takes keyed randomness."""
        return any(v.draws for v in self.predicate) or any(v.draws for _, v in self.env)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The input columns that are looked at."""
        values = (*self.predicate, *(value for _, value in self.env))
        return frozenset().union(*(value.refs for value in values))

    @cached_property
    def work(self) -> compute.Segment:
        """The programs."""
        names = [name for name, _ in self.env]
        values = [value for _, value in self.env]
        return compute.Segment(self.predicate, names, values, self.tried.groups)

    def infer(self) -> Schema:
        """Names and types of the computed columns."""
        return self.work.schema(self.input.schema)

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """The kept rows of one block, computed; in parts where they are large."""
        for part in in_parts(block, self.schema, partial(self._sampled, at)):
            yield from self.work.run(part, at)

    def _sampled(self, at: At, some: Block) -> int:
        """Bytes that some rows become, 0 where one of them fails."""
        try:
            return sum(made.weight for made in self.work.run(some, at)) if self.grows else 0
        except DmlError:
            return 0

    @cached_property
    def grows(self) -> bool:
        """True if text or lists are computed, and not only handed on."""
        kinds = self.schema.items()
        computed = {name for name, value in self.env if value.op != "col"}
        return any(name in computed and code_of(kind) == "arrow" for name, kind in kinds)

    def shown(self) -> str:
        """What is kept and computed."""
        groups = self.tried.groups or (tuple(range(len(self.predicate))),)
        tried = (" & ".join(shown(self.predicate[i]) for i in group) for group in groups)
        kept = " then ".join(tried)
        same = [n for n, v in self.env if v.op == "col" and v.params[0] == n]
        made = [f"{n}={shown(v)}" for n, v in self.env if n not in same]
        parts = ([f"where {kept}"] if kept else []) + ([", ".join(same)] if same else []) + made
        return "; ".join(parts)
