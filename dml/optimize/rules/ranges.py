"""This file holds the rule of known ranges: checks of proven functions that no row can need.

It looks at the data's bounds, which names must not depend on; so it comes after the normal form.
"""

from __future__ import annotations

from dml.expr.facts import Rows
from dml.expr.intervals import Interval, Known, left, passed_on
from dml.expr.node import Node
from dml.expr.ops.lifted import LiftedFilter, LiftedMap
from dml.expr.ops.segment import Segment
from dml.expr.sources.source import Source
from dml.optimize.rule import rule

# Operators that leave values as they are.
MOVING = (Rows.PERMUTED, Rows.SLICE)


@rule(LiftedMap, LiftedFilter, source="bounds-check elimination; interval arithmetic, Moore 1966")
def drop_needless_checks(node: Node) -> Node | None:
    """A check of a proven function is dropped where the ranges of columns say that it never holds.

    Where values could leave 64 bits, divide by zero or be null, it stays.
    """
    match node:
        case LiftedMap() | LiftedFilter() if node.checks:
            rest = left(node.checks, known_of(node.inputs[0]))
            return None if rest == node.checks else node.replace(checks=rest)
    return None


def known_of(node: Node) -> Known:
    """Between which bounds the columns of ``node`` lie, as far as that is known.

    Kept with each node, which never changes: of a long chain it is asked often.
    """
    chain = [node]
    while "_known" not in chain[-1].__dict__ and chain[-1].inputs:
        chain.append(chain[-1].inputs[0])
    known: Known = chain[-1].__dict__.get("_known", {})
    for step in reversed(chain):
        if "_known" not in step.__dict__:
            step.__dict__["_known"] = _after(step, known)
        known = step.__dict__["_known"]
    return known


def _after(step: Node, known: Known) -> Known:
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
