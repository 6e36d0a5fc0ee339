"""This file detaches operators from what is below them, so that they can be sent to a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dml.expr.facts import Rows
from dml.expr.node import Node, op

if TYPE_CHECKING:
    from dml.expr.schema import Schema


@op
class Hole(Node):
    """Stands for an input that stays behind: its schema, its name and its place as written."""

    schema_below: Schema
    name: bytes

    rows = Rows.SOURCE

    def infer(self) -> Schema:
        """That of the input."""
        return self.schema_below

    @property
    def digest(self) -> bytes:
        """That of the input: what is keyed by an operator above is found again."""
        return self.name


def detached(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The chain ``nodes`` over a hole; digests and places stay what they are."""
    below = nodes[0].inputs[0]
    made: Node = Hole(below.schema, below.digest)
    given: dict[str, Any] = {name: getattr(below, name) for name in PLACES}
    made.__dict__.update(given)
    out = list[Node]()
    for node in nodes:
        copy = object.__new__(type(node))
        copy.__dict__.update(node.__getstate__())
        copy.__dict__[node.input_names[0]] = made
        out.append(copy)
        made = copy
    return tuple(out)


PLACES = ("ordinal", "level", "batched")
