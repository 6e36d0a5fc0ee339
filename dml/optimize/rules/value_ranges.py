"""The rule of known ranges drops checks of lifted functions that can never be true.

The rule uses the data's bounds, on which fingerprints must not depend; so it runs after the normal
form.
"""

from __future__ import annotations

from dml.expr.columns.intervals import Interval, Known, left, passed_on
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.io.source import Source
from dml.ops.row.lifted import LiftedFilter, LiftedMap
from dml.ops.row.segment import Segment
from dml.optimize.rule import rule
from dml.optimize.rules.known_counts import along_chain

# Operators that leave values as they are.
MOVING = (Rows.PERMUTED, Rows.SLICE)


@rule(LiftedMap, LiftedFilter, source="bounds-check elimination; interval arithmetic, Moore 1966")
def drop_needless_checks(node: Node) -> Node | None:
    """A check of a lifted function is dropped if column ranges prove that it is never true.

    The check stays where values could exceed 64 bits, divide by zero or be null.
    """
    match node:
        case LiftedMap() | LiftedFilter() if node.checks:
            rest = left(node.checks, along_chain(node.inputs[0], "known", _after, {}))
            return None if rest == node.checks else node.replace(checks=rest)
    return None


def _after(step: Node, known: Known) -> Known:
    """Return the known bounds of the columns of ``step``, given those of the node below."""
    match step:
        case Source():
            found = {name: step.bounds(name) for name in step.schema}
            return {name: Interval(*ends) for name, ends in found.items() if ends is not None}
        case LiftedMap() | Segment():
            return passed_on(step.env, step.schema, known)
        case LiftedFilter():
            return known
    same = step.rows in MOVING and len(step.inputs) == 1
    return known if same and step.schema == step.inputs[0].schema else {}
