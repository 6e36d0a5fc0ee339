"""This file holds the law of constants: what needs no row is computed once."""

from __future__ import annotations

from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.expr.schema import Schema
from dml.expr.typing import lower
from dml.expr.value import Value, lit, rebuilt
from dml.kernels.interpret import run
from dml.kernels.vec import Vec
from dml.optimize.rule import law

NOTHING = Schema()
KEPT = ("col", "lit", "random", "stack", "cast")


@law(Segment, source="tf.data arithmetic simplification, section 3.3.1")
def fold_constants(node: Node) -> Node | None:
    """An expression over literals alone is a literal of its type."""
    match node:
        case Segment():
            memo: dict[int, Value] = {}
            predicate = tuple(_folded(part, memo) for part in node.predicate)
            env = tuple((name, _folded(value, memo)) for name, value in node.env)
            same = all(a is b for a, b in zip(predicate, node.predicate, strict=True))
            if same and all(a[1] is b[1] for a, b in zip(env, node.env, strict=True)):
                return None
            return Segment(node.input, predicate, env).placed(node.where)
    return None


def _folded(value: Value, memo: dict[int, Value]) -> Value:
    found = memo.get(id(value))
    if found is None:
        found = rebuilt(value, lambda arg: _folded(arg, memo))
        if found.op not in KEPT and found.args and all(a.op == "lit" for a in found.args):
            found = _computed(found)
        memo[id(value)] = found
    return found


def _computed(value: Value) -> Value:
    lowered = lower([value], NOTHING)
    (result,) = run(lowered.program, [], 1).outputs
    if not isinstance(result, Vec):
        return value
    present = result.valid is None or bool(result.valid[0])
    return lit(result.values[0].item() if present else None, lowered.types[0])
