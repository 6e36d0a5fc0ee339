"""This file refuses, before a run begins, nulls that no delivered array could show."""

from __future__ import annotations

from dml.expr.delivery import null_error
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.expr.rowwise import Env, RowWise
from dml.expr.schema import code_of
from dml.plan import Plan

KEEPING = (Rows.PERMUTED, Rows.GROUPED, Rows.REPEATED)


def refuse_nulls(plan: Plan) -> None:
    """Raise NullValueError if statistics prove that a whole-number or boolean array has a null.

    Only for batches, and only where every row arrives with the column as the source has it; all
    else is found when the batch is made. Looks at footers, reads nothing.
    """
    if not plan.batched:
        return
    source = plan.stage.source
    for name, column in _passed_on(plan).items():
        kind = plan.schema[name]
        place = source.null_in(column) if code_of(kind)[0] in "biu" else ""
        if place:
            raise null_error(name, kind, place).located(plan.operators[-1].label())


def _passed_on(plan: Plan) -> dict[str, str]:
    """Delivered column -> source column, where no operator changes it or leaves out rows."""
    found = {name: name for name in plan.schema}
    for node in reversed(plan.operators[1:]):
        if node.rows in KEEPING and not getattr(node, "drop_last", False):
            if getattr(node, "n", 1) == 0:
                return {}
            continue
        same = {name: v.params[0] for name, v in _env(node) if v.op == "col"}
        found = {name: same[column] for name, column in found.items() if column in same}
    return found


def _env(node: Node) -> Env:
    """Columns over those of the input, () for operators that may do anything to rows."""
    if isinstance(node, Segment):
        return () if node.predicate else node.env
    if isinstance(node, RowWise) and node.inputs[0].schema.known:
        return node.columns(node.inputs[0].schema)
    return ()
