"""Name the parts of a pipeline that other pipelines may share: the source with the steps above it.

The names are those of the normal form, in the fleet domain. So pipelines that were written or
optimized differently, or go on differently, have the same names for what they have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dml.base.fingerprint import Domain, digest
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.ops.row.lifted import LiftedNode
from dml.ops.row.segment import Segment
from dml.optimize.fingerprints import Memo, name_parts
from dml.optimize.rules.normal_form import unchanged
from dml.optimize.work_names import Names
from dml.physical.plan import Plan


def prefix_names(normal: Node, plan: Plan) -> Names:
    """Return the names of a pipeline's prefixes, source first, with their last operators.

    A value is ``"<ordinal> <operator>"``: operators of ``plan`` up to this ordinal compute the rows
    of the prefix. Prefixes end below the first operator that draws random numbers, since its rows
    differ between epochs, and below the first with further inputs, whose ordinals are not below.
    """
    memo: Memo = {}
    operators = [_own(each, memo) for each in plan.operators]
    found: Names = {}
    ordinal = 0
    for node, names in prefixes_in(normal):
        ordinal = _last(_own(node, memo), operators, ordinal)
        found |= {name: f"{ordinal} {type(node).__name__}" for name in names}
    return found


def prefixes_in(normal: Node) -> Iterator[tuple[Node, list[str]]]:
    """Yield the operators of a normal form up to the end of its prefixes, each with their names.

    The last name of an operator is that of the prefix which it ends; the one before, if any, that
    of the prefix which ends with its filter. Caches have no name: their rows are those below.
    """
    memo: Memo = {}
    below = b""
    for node in normal.chain():
        if node.random or node.draws or len(node.inputs) > 1:
            return
        if node.rows in (Rows.KEPT, Rows.STORED):
            continue
        names = [digest(below, *name_parts(each, Domain.FLEET, memo)) for each in _parts(node)]
        yield node, [name.hex() for name in names]
        below = names[-1]


def _parts(node: Node) -> Iterator[Node]:
    """Yield the filter of a segment, which pipelines with other columns may share, and ``node``."""
    if isinstance(node, Segment) and node.predicate:
        alone = Segment(node.input, node.predicate, unchanged(node.input.schema))
        if alone.env != node.env:
            yield alone
    yield node


def _own(node: Node, memo: Memo) -> list[object]:
    """Return the parts of an operator's name without its inputs; of a lifted one, as written."""
    written = node.function if isinstance(node, LiftedNode) else node
    return name_parts(written, Domain.FLEET, memo)


def _last(own: list[object], operators: Sequence[list[object]], start: int) -> int:
    """Return the ordinal, from ``start`` on, of the operator that computes one named ``own``.

    Columns that are never read may be missing in it: then it is the next operator of the same kind.
    If there is none, its work is part of the operator at ``start``.
    """
    places = range(start, len(operators))
    equal = (place for place in places if operators[place] == own)
    alike = (place for place in places if operators[place][0] == own[0])
    return next(equal, next(alike, start))
