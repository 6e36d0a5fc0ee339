"""Laws of function lifting replace row functions by expressions that are proven to be equal.

A function that requests resources is not lifted, so that it is called where they are.
"""

from __future__ import annotations

from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.ops.row.filter_rows import FilterRows
from dml.ops.row.lifted import LiftedFilter, LiftedMap
from dml.ops.row.map_rows import MapRows
from dml.ops.row.segment import Segment
from dml.optimize.rule import law
from dml.optimize.rules.normal_form import parts_lowered


@law(MapRows, source="tf.data map_vectorization, section 3.3.1")
def lift_map(node: Node) -> Node | None:
    """A row function that is proven equal to expressions is replaced by these and their checks."""
    from dml.udfs.identity.environment import unchanged  # noqa: PLC0415
    from dml.udfs.lifting.lifter import Lifted  # noqa: PLC0415

    match node:
        case MapRows(
            input=given,
            fn=fn,
            on_error=how,
            lifted=Lifted(columns=columns, checks=checks, given=taken),
        ) if columns is not None and node.needs == Needs() and unchanged(taken, fn.code):
            made = LiftedMap(given, fn, columns, checks, how)
            return made.placed(node.where)
    return None


@law(FilterRows, source="tf.data map_vectorization, section 3.3.1")
def lift_filter(node: Node) -> Node | None:
    """A row predicate that is proven equal to an expression is replaced by it and its checks."""
    from dml.udfs.lifting.lifter import Lifted, lift  # noqa: PLC0415

    match node:
        case FilterRows(input=given, fn=fn, on_error=how) if (
            given.schema.known and node.needs == Needs() and fn.declared is not False
        ):
            found = lift(fn.code, given.schema)
            if isinstance(found, Lifted) and found.predicate is not None:
                made = LiftedFilter(given, fn, found.predicate, found.checks, how)
                return made.placed(node.where)
    return None


@law(Segment, source="SQL predicate pushdown past a function of rows", over=(LiftedMap,))
def filter_before_lifted_map(node: Node) -> Node | None:
    """A filter on columns that a lifted function passes on may run before the function.

    Excluded is a column that the function may change in a row where its proof does not apply.
    """
    match node:
        case Segment(input=LiftedMap() as lower) if node.predicate and not lower.skips:
            same = {name: value for name, value in lower.env if value.op == "col"}
            if same and lower.sure:
                return parts_lowered(node, lower, [*same], same)
    return None
