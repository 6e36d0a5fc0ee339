"""This file rebuilds nodes without deriving again what a rewriting keeps: schema, place and line.

A node that a user writes is checked and typed when it is made. What a rewriting makes has the
schema of what it replaces, so it is taken over; ``lower`` types every segment once, at the end, and
the assertions of ``dml.testing.plans`` after every rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.expr.rowwise import Env
from dml.expr.value import Value

N = TypeVar("N", bound=Node)
# What a node knows of itself that does not depend on what its inputs are made of.
LASTING = ("schema", "batched", "ordinal", "level", "where")


def segment(given: Node, predicate: tuple[Value, ...], env: Env, like: Node) -> Segment:
    """A segment over ``given`` that stands for ``like``: its schema, places and line."""
    made = object.__new__(Segment)
    made.__dict__.update(_lasting(like), input=given, predicate=predicate, env=env)
    return made


def moved(node: N, given: Node, like: Node) -> N:
    """``node`` (of one input) over ``given``, now where ``like`` stood: with the schema of that."""
    made = object.__new__(type(node))
    made.__dict__.update({name: getattr(node, name) for name in node.field_names})
    made.__dict__.update(_lasting(node), schema=like.schema)
    made.__dict__[node.input_names[0]] = given
    return made


def over(node: N, fn: Callable[[Node], Node]) -> N:
    """``node`` over ``fn(input)``; the same object when nothing changed.

    Inputs of another schema (which a rewriting never makes) are checked as if newly written.
    """
    new = {name: fn(old) for name, old in zip(node.input_names, node.inputs, strict=True)}
    if all(new[name] is getattr(node, name) for name in new):
        return node
    if any(new[name].schema != getattr(node, name).schema for name in new):
        return node.replace(**new)
    made = object.__new__(type(node))
    made.__dict__.update({name: getattr(node, name) for name in node.field_names})
    made.__dict__.update(_lasting(node), **new)
    return made


def _lasting(node: Node) -> dict[str, object]:
    return {name: getattr(node, name) for name in LASTING}
