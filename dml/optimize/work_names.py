"""This file names the operators of a plan for telemetry: equal names, equal work per row.

The name in the cost domain is that of the operator alone, over the types of what it takes: neither
where the rows come from nor what columns are called. The name in the fleet domain is that of the
operator over all that is below it: what says how many of the rows that it takes it gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dml.expr.fingerprint import Domain, digest
from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.expr.schema import Schema
from dml.expr.sources.source import Source
from dml.expr.value import Value
from dml.optimize.names import Memo, draws_by_default, fingerprint_of, name_parts, own_parts
from dml.plan import Plan

Names = dict[str, str]


def work_names(plan: Plan) -> tuple[Names, ...]:
    """Of every operator, and then of those of the plans beside it, the names by domain."""
    return tuple(names for each in plan.all for names in _of_chain(each))


def result_names(plan: Plan, seed: int) -> Iterator[str]:
    """Of every operator, and then of those of the plans beside it, the name of what it gives.

    In the result domain: the sources are asked for their identity.
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
    """Every operator of the chain, with the name of the rows that reach it."""
    memo: Memo = {}
    below = b""
    for node in plan.operators:
        yield node, below
        beside = [each.digest for each in node.inputs[1:]]
        below = digest(below, *own_parts(node, Domain.FLEET, memo), *beside)


def kept_name(below: bytes, parts: Sequence[Value]) -> str:
    """The name of which of the rows called ``below`` pass ``parts``, in whatever order."""
    return digest("kept", below, sorted(part.digest for part in parts)).hex()


def work_name(node: Segment) -> str:
    """The name in the cost domain of an operator that needs none of its plan."""
    return _of_segment(node).hex()


def _of_chain(plan: Plan) -> list[Names]:
    memo: Memo = {}
    read, found = _read(plan), []
    for node, below in below_each(plan):
        beside = [each.digest for each in node.inputs[1:]]
        flow = digest(read, below, *own_parts(node, Domain.FLEET, memo), *beside)
        names = {"cost": _work(node, plan, memo).hex(), "fleet": flow.hex()}
        if isinstance(node, Segment) and node.predicate:
            names["kept"] = kept_name(below, node.predicate)
        found.append(names)
    return found


def _read(plan: Plan) -> bytes:
    """Which columns are read and what is skipped changes rows and bytes of all that follows."""
    return digest(plan.stage.columns, [part.digest for part in plan.stage.predicate])


def _work(node: Node, plan: Plan, memo: Memo) -> bytes:
    """The name of what ``node`` does to a row."""
    kind = type(node).__name__
    if isinstance(node, Source):
        order = plan.stage.order
        moved = "" if order is None else type(order).__name__
        return digest(kind, _types(node.schema, plan.stage.columns), moved)
    if isinstance(node, Segment):
        return _of_segment(node)
    taken = node.inputs[0].schema
    types = _types(taken, taken.names if taken.known else ())
    return digest(own_parts(node, Domain.COST, memo), types)


def _of_segment(node: Segment) -> bytes:
    taken = node.input.schema
    shapes: dict[int, bytes] = {}
    predicate = [_shape(part, taken, shapes) for part in node.predicate]
    made = [_shape(value, taken, shapes) for _, value in node.env if value.op != "col"]
    return digest("Segment", node.version, predicate, made, len(node.env), node.tried.groups)


def _types(schema: Schema, columns: tuple[str, ...]) -> list[str]:
    return sorted(str(schema[name]) for name in columns) if schema.known else []


def _shape(value: Value, taken: Schema, memo: dict[int, bytes]) -> bytes:
    """Operations and types: constants and names of columns cost nothing."""
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
