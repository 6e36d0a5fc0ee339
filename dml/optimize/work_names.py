"""Operators of a plan are named for telemetry; operators of equal names do equal work per row.

The name in the cost domain covers the operator and its input types, but neither the origin of the
rows nor column names. The name in the fleet domain also covers all operators below, which affect
how many rows the operator outputs per input row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dml.base.fingerprint import Domain, digest
from dml.data.schema import Schema
from dml.expr.columns.value import Value
from dml.expr.node import Node
from dml.io.source import Source
from dml.ops.row.segment import Segment
from dml.optimize.fingerprints import Memo, draws_by_default, fingerprint_of, name_parts
from dml.physical.plan import Plan

Names = dict[str, str]


def work_names(plan: Plan) -> tuple[Names, ...]:
    """Return every operator's names by domain, for the plan and then for the plans beside it."""
    return tuple(names for each in plan.all for names in _of_chain(each))


def result_names(plan: Plan, seed: int) -> Iterator[str]:
    """Yield the result name of every operator's rows, for the plan and the plans beside it.

    The result domain includes the identity of the sources.
    """
    for each in plan.all:
        memo: Memo = {}
        drawn, below = False, _read(each)
        for node in each.operators:
            own = name_parts(node, Domain.RESULT, memo, identified=True)
            beside = [fingerprint_of(n, Domain.RESULT, seed, memo) for n in node.inputs[1:]]
            below, drawn = digest(below, *own, *beside), drawn or draws_by_default(node)
            yield (digest(below, "seed", seed) if drawn else below).hex()


def below_each(plan: Plan) -> Iterator[tuple[Node, bytes]]:
    """Yield every operator of the chain, with the name of its input rows."""
    memo: Memo = {}
    below = b""
    for node in plan.operators:
        yield node, below
        beside = [each.digest for each in node.inputs[1:]]
        below = digest(below, *name_parts(node, Domain.FLEET, memo), *beside)


def kept_name(below: bytes, parts: Sequence[Value]) -> str:
    """Return the name of the filter ``parts``, in any order, over the rows named ``below``."""
    return digest("kept", below, sorted(part.digest for part in parts)).hex()


def work_name(node: Segment) -> str:
    """Return a segment's name in the cost domain, which does not require a plan."""
    taken = node.input.schema
    shapes: dict[int, bytes] = {}
    predicate = [_shape(part, taken, shapes) for part in node.predicate]
    made = [_shape(value, taken, shapes) for _, value in node.env if value.op != "col"]
    return digest("Segment", node.version, predicate, made, len(node.env), node.tried.groups).hex()


def _of_chain(plan: Plan) -> list[Names]:
    memo: Memo = {}
    read, found = _read(plan), []
    for node, below in below_each(plan):
        beside = [each.digest for each in node.inputs[1:]]
        flow = digest(read, below, *name_parts(node, Domain.FLEET, memo), *beside)
        names = {"cost": _work(node, plan, memo), "fleet": flow.hex()}
        if isinstance(node, Segment) and node.predicate:
            names["kept"] = kept_name(below, node.predicate)
        found.append(names)
    return found


def _read(plan: Plan) -> bytes:
    """Return a digest of the columns that are read, and of the filters that skip units."""
    return digest(plan.stage.columns, [part.digest for part in plan.stage.predicate])


def _work(node: Node, plan: Plan, memo: Memo) -> str:
    """Return the name of ``node`` in the cost domain, which stands for its work per row."""
    kind = type(node).__name__
    if isinstance(node, Source):
        order = plan.stage.order
        moved = "" if order is None else type(order).__name__
        return digest(kind, _types(node.schema, plan.stage.columns), moved).hex()
    if isinstance(node, Segment):
        return work_name(node)
    taken = node.inputs[0].schema
    types = _types(taken, taken.names if taken.known else ())
    return digest(name_parts(node, Domain.COST, memo), types).hex()


def _types(schema: Schema, columns: tuple[str, ...]) -> list[str]:
    return sorted(str(schema[name]) for name in columns) if schema.known else []


def _shape(value: Value, taken: Schema, memo: dict[int, bytes]) -> bytes:
    """Return a digest of operations and types; constants and column names do not affect cost."""
    found = memo.get(id(value))
    if found is not None:
        return found
    if value.op == "col":
        name = value.params[0]
        found = digest("col", str(taken[name]) if taken.known and name in taken else "")
    elif value.op == "lit":
        found = digest("lit", type(value.params[0]).__name__)
    elif value.op == "random":
        found = digest("random")
    else:
        found = digest(value.op, value.params, [_shape(arg, taken, memo) for arg in value.args])
    memo[id(value)] = found
    return found
