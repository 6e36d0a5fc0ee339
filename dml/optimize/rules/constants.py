"""Laws of constants evaluate constant expressions once, and drop conditions that they decide."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from dml.data.schema import CODES, Schema, code_of
from dml.expr.columns.typing import lower, type_of
from dml.expr.columns.value import Value, bottom_up, lit, walk
from dml.expr.node import Node
from dml.kernels.interpreter import run
from dml.kernels.vec import Vec
from dml.ops.row.segment import Segment
from dml.optimize.node_rebuild import segment
from dml.optimize.rule import law

NOTHING = Schema()
KEPT = ("col", "lit", "random", "stack", "cast")
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
LOGIC = {"and": "and", "bit_and": "and", "or": "or", "bit_or": "or", "not": "not", "bit_not": "not"}
TRUE, FALSE = lit(value=True, kind=pa.bool_()), lit(value=False, kind=pa.bool_())

Better = Callable[[Value], Value]


def values_of(node: Segment) -> tuple[Value, ...]:
    """Return the parts of the segment's predicate, then the values of its columns."""
    return (*node.predicate, *(value for _, value in node.env))


def parts_of(node: Segment) -> tuple[Value, ...]:
    """Return every subexpression of the segment once; the result is memoized on the node."""
    found: tuple[Value, ...] | None = node.memo.get("parts")
    if found is None:
        found = node.memo["parts"] = tuple(walk(values_of(node)))
    return found


def with_values(node: Segment, better: Better) -> Segment | None:
    """Return ``node`` with ``better`` applied to every part of its values; None if unchanged."""
    values = values_of(node)
    done = bottom_up(values, better)
    if all(done[id(value)] is value for value in values):
        return None
    predicate = tuple(done[id(part)] for part in node.predicate)
    env = tuple((name, done[id(value)]) for name, value in node.env)
    return segment(node.input, predicate, env, node)


@law(Segment, source="tf.data arithmetic simplification, section 3.3.1")
def fold_constants(node: Node) -> Node | None:
    """An expression over literals alone is a literal of its type."""
    match node:
        case Segment() if any(map(_foldable, parts_of(node))):
            return with_values(node, _computed)
    return None


def _foldable(value: Value) -> bool:
    args = value.args
    # the first argument of most values is no literal, so the cheapest test comes first
    return (
        bool(args)
        and args[0].op == "lit"
        and value.op not in KEPT
        and value.total
        and all(arg.op == "lit" for arg in args)
    )


def _computed(value: Value) -> Value:
    if not _foldable(value):
        return value
    lowered = lower([value], NOTHING)
    (result,) = run(lowered.program, [], 1).outputs
    if not isinstance(result, Vec) or result.values.ndim > 1:
        return value
    present = result.valid is None or bool(result.valid[0])
    return lit(result.values[0].item() if present else None, lowered.types[0])


@law(Segment, source="SQL boolean simplification, three-valued")
def simplify_logic(node: Node) -> Node | None:
    """``p & true`` and ``p | false`` are p, ``p & false`` is false, ``p | true`` is true."""
    match node:
        case Segment() if any(map(_logical, parts_of(node))):
            known = _Known()
            return with_values(node, known.simplified)
    return None


def _logical(value: Value) -> bool:
    return value.op == "fill_null" or (
        value.op in LOGIC and any(arg.op == "lit" for arg in value.args)
    )


class _Known:
    """Facts that one pass learns about values: which are boolean, and which are never null."""

    def __init__(self) -> None:
        self.boolean: set[int] = set()
        self.present: set[int] = set()
        self.kept: list[Value] = []  # keeps the ids of both sets alive

    def simplified(self, value: Value) -> Value:
        """Return ``value`` without the parts that a literal decides."""
        out = self._shorter(value)
        self.kept.append(out)
        if self._is_boolean(out):
            self.boolean.add(id(out))
        if self._is_present(out):
            self.present.add(id(out))
        return out

    def _shorter(self, value: Value) -> Value:
        op = LOGIC.get(value.op)
        if op in ("and", "or") and all(id(arg) in self.boolean for arg in value.args):
            return _without_literal(value, op)
        if value.op == "fill_null" and {id(arg) for arg in value.args} <= self.boolean:
            return value.args[0] if id(value.args[0]) in self.present else value
        return value

    def _is_boolean(self, value: Value) -> bool:
        if value.op == "lit":
            return isinstance(value.params[0], bool) and value.params[1] in (None, pa.bool_())
        if value.op in LOGIC or value.op == "fill_null":
            return all(id(arg) in self.boolean for arg in value.args)
        return value.op in (*COMPARED, "is_null", "is_nan", "is_in")

    def _is_present(self, value: Value) -> bool:
        if value.op == "lit":
            return value.params[0] is not None
        if value.op == "fill_null":
            return id(value.args[1]) in self.present
        if value.op in COMPARED or value.op in LOGIC:
            return all(id(arg) in self.present for arg in value.args)
        return value.op in ("is_null", "random")


def _without_literal(value: Value, op: str) -> Value:
    """Return the operand or literal that equals ``and`` or ``or`` (``op``) with a literal."""
    rules = op == "or"
    for arg, other in (value.args, value.args[::-1]):
        if arg.op == "lit":
            return (TRUE if rules else FALSE) if arg.params[0] is rules else other
    return value


@law(Segment, source="constant propagation")
def pick_branch(node: Node) -> Node | None:
    """if_else with a literal condition is the selected branch, in the common type."""
    match node:
        case Segment() if any(map(_decided, parts_of(node))):
            given = node.input.schema
            return with_values(node, lambda value: _pick(value, given))
    return None


def _decided(value: Value) -> bool:
    return value.op == "if_else" and value.args[0].op == "lit"


def _pick(value: Value, given: Schema) -> Value:
    if not _decided(value):
        return value
    kind = type_of(value, given)
    condition = value.args[0].params[0]
    if condition is None:
        return lit(None, kind) if kind in CODES else value
    branch = value.args[1 if condition else 2]
    if branch.op == "lit":
        return lit(branch.params[0], kind) if kind in CODES else value
    same = type_of(branch, given) == kind
    return branch if same else Value("cast", (branch,), (kind, False))


@law(Segment, source="SQL predicate simplification")
def drop_true_parts(node: Node) -> Node | None:
    """A part of a predicate that is literally true keeps every row and is dropped."""
    match node:
        case Segment(predicate=parts) if any(_literally(part, wanted=True) for part in parts):
            left = tuple(part for part in parts if not _literally(part, wanted=True))
            return segment(node.input, left, node.env, node)
    return None


@law(Segment, source="SQL predicate simplification")
def keep_nothing(node: Node) -> Node | None:
    """With a part that is literally false or null, a predicate keeps no row and tests nothing."""
    match node:
        case Segment(predicate=parts) if parts != (FALSE,) and any(
            _literally(part, wanted=False) for part in parts
        ):
            return segment(node.input, (FALSE,), node.env, node)
    return None


def _literally(part: Value, *, wanted: bool) -> bool:
    return part.op == "lit" and (part.params[0] is True) == wanted


@law(Segment, source="value ranges of types")
def relax_sure_cast(node: Node) -> Node | None:
    """A strict cast to a type that represents every value of the source type cannot fail."""
    match node:
        case Segment():
            given = node.input.schema
            return None if node.total else with_values(node, lambda v: _relaxed(v, given))
    return None


def _relaxed(value: Value, given: Schema) -> Value:
    if value.op != "cast" or not value.params[1]:
        return value
    source, target = code_of(type_of(value.args[0], given)), code_of(value.params[0])
    if "arrow" in (source, target) or not holds_all(source, target):
        return value
    return Value("cast", value.args, (value.params[0], False))


def holds_all(source: str, target: str) -> bool:
    """Return True if every value of kernel type ``source`` fits into type ``target``."""
    kinds, sizes = source[0] + target[0], (int(source[1]), int(target[1]))
    if "b" in kinds or kinds in ("if", "uf"):
        return True
    if kinds in ("ff", "ii", "uu"):
        return sizes[0] <= sizes[1]
    return kinds == "ui" and sizes[0] < sizes[1]
