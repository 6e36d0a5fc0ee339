"""Neighbouring lifted functions and column expressions are computed in one pass over a block.

A chain begins with an operator that computes columns, and ends at its first filter, because columns
above a filter would otherwise be computed for dropped rows. If the proof of a function does not
apply to a row of the block, or the first rows have not been compared yet, the operators run one
after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import is_
from typing import TYPE_CHECKING, cast

from dml.base.cached_property import cached_property
from dml.data.block import Block
from dml.errors import InternalError
from dml.expr.columns.computation import Programs, evaluate
from dml.expr.columns.value import Value, col, joined, substitute, walk
from dml.expr.node import Node
from dml.ops.row.lifted import LiftedFilter, LiftedMap, LiftedNode
from dml.ops.row.rowwise import Env
from dml.ops.row.segment import Segment

if TYPE_CHECKING:
    from dml.data.schema import Schema
    from dml.expr.flow import At

# Most operations of an output or a group of checks: an expression of more is not compiled
# (``kernels/compiled/expression_shapes.LONGEST``, which also counts casts).
MOST_OPERATIONS = 48


class LiftedChain:
    """Neighbouring operators, some of them lifted functions, that one program computes.

    ``env`` are the columns that leave the chain, as expressions over the columns that enter it;
    ``checks`` are those of all functions, and ``keep`` is the predicate of a filter at the end.
    ``schema`` is the output schema, and ``first`` an optional segment with a filter at the
    beginning.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        first = nodes[0]
        self.nodes: list[Node] = []
        # shares of the operators in the time of a pass, known once they ran one by one
        self.shares: list[float] = []
        self.schema: Schema = first.inputs[0].schema
        self.env: Env = tuple((name, col(name)) for name in self.schema)
        self.checks: tuple[Value, ...] = ()
        self.keep: Value | None = None
        self.first = first if isinstance(first, Segment) and first.predicate else None
        for node in nodes:
            if not self._added(node):
                break
            self.nodes.append(node)
        self.lifted = [node for node in self.nodes if isinstance(node, LiftedNode)]

    @staticmethod
    def of(nodes: Sequence[Node]) -> LiftedChain | None:
        """Return the longest chain at the start of ``nodes``; None if it has only one operator.

        The chain is memoized on the last operator that may belong to it, whose inputs are fixed, so
        that its compiled kernels are reused.
        """
        if len(nodes) < 2 or not _fits(nodes[0]) or isinstance(nodes[0], LiftedFilter):
            return None
        near = list(takewhile(_fits, nodes))
        found: dict[int, tuple[list[Node], LiftedChain]] = near[-1].memo.setdefault("chains", {})
        was, chain = found.get(len(near), ([], None))
        if chain is None or not all(map(is_, was, near)):
            chain = LiftedChain(near)
            found[len(near)] = near, chain
        return chain if len(chain.nodes) > 1 and chain.lifted else None

    def _added(self, node: Node) -> bool:
        """Add ``node`` to the chain and return True; return False if it needs another pass."""
        env, memo = dict(self.env), dict[int, Value]()
        checks, keep, made = self.checks, self.keep, self.env
        if keep is not None:
            return False
        if isinstance(node, LiftedNode):
            new = [substitute(check, env, memo) for check in node.checks]
            checks = _grouped([*checks, *new])
        if isinstance(node, LiftedFilter):
            keep = substitute(node.predicate, env, memo)
        elif isinstance(node, LiftedMap | Segment):
            if isinstance(node, Segment) and node.predicate and self.nodes:
                if any(value.op != "col" for _, value in node.env):
                    return False
                keep = joined("and", [substitute(part, env, memo) for part in node.predicate])
            made = tuple((name, substitute(value, env, memo)) for name, value in node.env)
        values = (*checks, *(value for _, value in made), *([] if keep is None else [keep]))
        if self.nodes and (_grows(self.nodes[-1]) or any(map(_is_long, values))):
            return False
        self.env, self.checks, self.keep = made, checks, keep
        self.schema = node.schema if isinstance(node, LiftedMap | Segment) else self.schema
        return True

    @cached_property
    def programs(self) -> Programs:
        """Return compiled programs: the columns of rows that the filter keeps, and all checks."""
        return Programs([value for _, value in self.env], self.checks, self.keep)

    @property
    def trusted(self) -> bool:
        """True once all functions were compared with their expressions without a difference."""
        return all(n.trust.compared and not n.trust.differs for n in self.lifted)

    def run(self, block: Block, at: At) -> tuple[Block, int] | None:
        """Return the output for ``block``, and how many rows passed a filter at the beginning.

        Return None if each operator must run by itself.
        """
        if not (block.n and self.trusted and all(node.stands() for node in self.lifted)):
            return None
        kept = None if self.first is None else self.first.work.predicate.keep(block, at)
        if self.programs.of(block.schema).types != tuple(self.schema.values()):
            raise InternalError("operators in one pass have other types than one by one")
        result = evaluate(self.programs, block, at, kept)
        if result.failed:
            return None
        for node in self.lifted:
            node.trust.blocks += 1
        ids = block.ids if kept is None else block.ids.take(kept)
        rows = block.n if kept is None else len(kept)
        if result.kept is not None:
            ids = ids.take_without_copy(result.kept)
        return Block(self.schema, tuple(result.outputs), ids), rows

    def sampled(self, at: At, some: Block) -> int:
        """Return the output's bytes for ``some``; 0 if no column may grow, or a check is true."""
        made = self.run(some, at) if _grows(self.nodes[-1]) else None
        return 0 if made is None else made[0].weight


def _fits(node: Node) -> bool:
    """Return True for an operator on rows whose expressions can be part of a longer program."""
    if isinstance(node, Segment):
        return node.total and node.work.first is None
    return isinstance(node, LiftedMap | LiftedFilter)


def _grows(node: Node) -> bool:
    return cast("LiftedNode | Segment", node).grows


def _grouped(checks: Sequence[Value]) -> tuple[Value, ...]:
    """Return ``checks``, joining those that read a common column, since they share operations."""
    found: list[Value] = []
    for check in checks:
        near = [each for each in found if each.refs & check.refs]
        found = [each for each in found if not each.refs & check.refs]
        found.append(joined("or", [*near, check]))
    return tuple(found)


def _is_long(value: Value) -> bool:
    """Return True if ``value`` has more operations than a kernel should have."""
    return sum(bool(part.args) for part in walk((value,))) > MOST_OPERATIONS
