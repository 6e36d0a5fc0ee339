"""Row functions run as expressions or are called for each row; the reason is given as text."""

from __future__ import annotations

from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.ops.row.filter_rows import FilterRows
from dml.ops.row.lifted import LiftedNode
from dml.ops.row.map_rows import MapRows


def refusal(node: Node) -> str:
    """Return why ``node`` calls a function for each row; "" if it is lifted or has no function."""
    from dml.udfs.identity.environment import unchanged  # noqa: PLC0415

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
    from dml.udfs.lifting.lifter import Refusal, lift  # noqa: PLC0415 - 7 ms, for row functions alone

    found = lift(fn.code, node.inputs[0].schema)
    if isinstance(found, Refusal):
        return found.reason
    if isinstance(node, MapRows) and node.lifted and not unchanged(node.lifted.given, fn.code):
        return "a global or a variable around it has changed since the pipeline was written"
    whole = isinstance(node, MapRows) == (found.columns is not None)
    return "lifting is off" if whole else "what it returns is not what this operator takes"


def tier(node: Node) -> str:
    """Return how a node's function runs, as text for plans; "" without a function."""
    if isinstance(node, LiftedNode):
        return "computed as expressions; called where a row is outside of the proof"
    why = refusal(node)
    each = "batch" if node.by_atom or node.batched else "row"
    pure = ", declared pure" if node.calls is not None and node.calls.declared else ""
    return f"called for each {each}{pure}: {why}" if why else ""
