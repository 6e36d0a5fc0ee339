"""This file says how each row function runs: as expressions, or called for each row, and why."""

from __future__ import annotations

from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.expr.ops.filter_rows import FilterRows
from dml.expr.ops.lifted import LiftedNode
from dml.expr.ops.map_rows import MapRows
from dml.expr.surroundings import unchanged


def refusal(node: Node) -> str:
    """Why the function of an operator is called for each row; "" if it is not, or there is none."""
    fn = node.calls if node.inputs else None
    if fn is None or isinstance(node, LiftedNode):
        return ""
    if fn.declared is False:
        return f"{fn.purity}: no call is repeated in a run, and nothing of it is stored on disk"
    if not isinstance(node, MapRows | FilterRows):
        return fn.purity or "it is not a function from row to row"
    if node.needs != Needs():
        return "it runs where it was given resources"
    if isinstance(node, MapRows) and node.declared is not None:
        return "its columns were declared"
    from dml.expr.lift import Refusal, lift  # noqa: PLC0415 - 7 ms, for row functions alone

    found = lift(fn.call, node.inputs[0].schema)
    if isinstance(found, Refusal):
        return found.reason
    if isinstance(node, MapRows) and node.lifted and not unchanged(node.lifted.given, fn.call):
        return "a global or a variable around it has changed since the pipeline was written"
    whole = isinstance(node, MapRows) == (found.columns is not None)
    return "lifting is off" if whole else "what it returns is not what this operator takes"


def tier(node: Node) -> str:
    """How the function of an operator runs, for readers of a plan; "" where there is none."""
    if isinstance(node, LiftedNode):
        return "computed as expressions; called where a row is outside of the proof"
    why = refusal(node)
    each = "batch" if node.by_atom or node.batched else "row"
    pure = ", declared pure" if node.calls is not None and node.calls.declared else ""
    return f"called for each {each}{pure}: {why}" if why else ""
