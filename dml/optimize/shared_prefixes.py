"""Name the parts of a pipeline that other pipelines may share: the source with the steps above it.

The names are those of the normal form, in the fleet domain. So pipelines that were written or
optimized differently, or go on differently, have the same names for what they have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dml.base.fingerprint import Domain, digest
from dml.expr.node import Node
from dml.ops.row.lifted import LiftedNode
from dml.ops.row.segment import Segment
from dml.optimize.fingerprints import Memo, fingerprint_of, name_parts
from dml.optimize.rules.normal_form import unchanged
from dml.optimize.work_names import Names
from dml.physical.plan import Plan


def prefix_names(normal: Node, plan: Plan) -> Names:
    """Return the names of a pipeline's prefixes, source first, with their last operators.

    A value is ``"<ordinal> <operator>"``: operators of ``plan`` up to this ordinal compute the rows
    of the prefix. Prefixes end below the first operator that draws random numbers, since its rows
    differ between epochs; nobody would keep them.
    """
    memo: Memo = {}
    found: Names = {}
    below, ordinal = b"", 0
    for node in normal.chain():
        if any(map(_draws, (node, *(n for each in node.inputs[1:] for n in each.walk())))):
            break
        ordinal = _last(node, plan.operators, ordinal, memo)
        others = (fingerprint_of(each, Domain.FLEET, 0, memo) for each in node.inputs[1:])
        beside = [bytes.fromhex(each) for each in others]
        parts = [*_parts(node)]
        names = [digest(below, *name_parts(each, Domain.FLEET, memo), *beside) for each in parts]
        found |= {name.hex(): f"{ordinal} {type(node).__name__}" for name in names}
        below = names[-1]
    return found


def _draws(node: Node) -> bool:
    return node.random or node.draws


def _parts(node: Node) -> Iterator[Node]:
    """Yield the filter of a segment, which pipelines with other columns may share, and ``node``."""
    if isinstance(node, Segment) and node.predicate:
        alone = Segment(node.input, node.predicate, unchanged(node.input.schema))
        if alone.env != node.env:
            yield alone
    yield node


def _last(node: Node, operators: Sequence[Node], start: int, memo: Memo) -> int:
    """Return the ordinal of the operator that computes ``node``, from ``start`` on.

    If it has no operator of its own, its work is that of the operator at ``start``.
    """
    written = _written(node)
    own = name_parts(written, Domain.FLEET, memo)
    there = [(n, _written(each)) for n, each in enumerate(operators) if n >= start]
    equal = (n for n, each in there if name_parts(each, Domain.FLEET, memo) == own)
    alike = (n for n, each in there if type(each) is type(written))
    return next(equal, next(alike, start))


def _written(node: Node) -> Node:
    """Return the operator that calls the function of a lifted one; other operators as they are."""
    return node.function if isinstance(node, LiftedNode) else node
