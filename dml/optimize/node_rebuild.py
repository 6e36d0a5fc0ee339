"""Nodes are rebuilt with the old schema, place and source line, without deriving them again.

A node that a user writes is checked and typed when it is created. The result of a rewriting has the
schema of the node that it replaces, and takes that schema over. ``lowering`` types every segment
once, at the end, and the assertions of ``dml.testing.plans`` do so after every rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dml.base.cached_property import results_key
from dml.expr.columns.value import Value
from dml.expr.node import Node
from dml.ops.row.rowwise import Env
from dml.ops.row.segment import Segment

N = TypeVar("N", bound=Node)
# Derived attributes of a node that stay valid when its inputs are rewritten.
LASTING = ("schema", "ordinal", "level", "where")
# The segments of a node, which are the same in its copies.
SEGMENTS = results_key("_segment")


def segment(given: Node, predicate: tuple[Value, ...], env: Env, like: Node) -> Segment:
    """Return a ``Segment`` over ``given``; schema, place and source line are those of ``like``."""
    made = object.__new__(Segment)
    made.__dict__.update(_lasting(like), input=given, predicate=predicate, env=env)
    return _settled(made)


def moved(node: N, given: Node, like: Node) -> N:
    """Return ``node``, of one input, with the input ``given`` and the schema of ``like``."""
    return _changed(node, {node.input_names[0]: given, "schema": like.schema})


def beside(node: N, fn: Callable[[Node], Node], like: Node) -> N:
    """Return ``node`` with inputs replaced by ``fn(input)``, and the schema of ``like``."""
    return _changed(node, {**node.mapped(fn), "schema": like.schema})


def over(node: N, fn: Callable[[Node], Node]) -> N:
    """Return ``node`` with inputs replaced by ``fn(input)``; ``node`` itself if none changed.

    If an input has another schema, which no rewriting causes, the node is checked like a new one.
    """
    before: dict[int, Node] = {}

    def changed(old: Node) -> Node:
        made = fn(old)
        before[id(made)] = old
        return made

    new = node.mapped(changed)
    if not new:
        return node
    inputs = [
        each for given in new.values() for each in (given if isinstance(given, tuple) else (given,))
    ]
    if any(each.schema != before[id(each)].schema for each in inputs):
        return node.replace(**new)
    return _changed(node, new)


def on(node: N, below: Node) -> N:
    """Return ``node`` with ``below`` in place of its first input; other inputs stay."""
    main = node.inputs[0]
    return over(node, lambda each: below if each is main else each)


def _changed(node: N, new: dict[str, object]) -> N:
    """Return ``node`` with the attributes ``new``, which are not checked."""
    made = object.__new__(type(node))
    made.__dict__.update({name: getattr(node, name) for name in node.field_names})
    made.__dict__.update(_lasting(node), **new)
    return _settled(made)


def _lasting(node: Node) -> dict[str, object]:
    """Return attributes that stay valid in a copy of ``node``, including its memoized segments."""
    known = {name: getattr(node, name) for name in LASTING}
    if SEGMENTS in node.__dict__ and not isinstance(node, Segment):
        known[SEGMENTS] = node.__dict__[SEGMENTS]
    return known


def _settled(made: N) -> N:
    """Return ``made`` with ``inputs`` and ``batched`` set, so that reading them never recurses."""
    found = made.__dict__
    given: list[Node] = []
    for name in made.input_names:
        given += found[name] if isinstance(found[name], tuple) else (found[name],)
    found["inputs"] = tuple(given)
    if type(made).batched is Node.batched:  # else the operator computes it itself
        found["batched"] = any(node.batched for node in given)
    else:
        _ = made.batched
    return made
