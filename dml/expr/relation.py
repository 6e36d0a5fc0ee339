"""This file tells what rows and columns a step gives: filters and values over a step further below.

As far down as operators keep rows by expressions and compute columns one by one, each column is a
value over what lies below, whatever order, steps and names it was written in. So two pipelines can
be compared filter by filter and column by column, and one of them cut down to some of its columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dml.expr.facts import Rows
from dml.expr.fingerprint import digest
from dml.expr.node import Node
from dml.expr.ops.apply import Apply
from dml.expr.ops.segment import Segment
from dml.expr.schema import Schema
from dml.expr.value import Value, canonical, col, substitute

# Operations on the longest way down: what is deeper counts as made by a step of its own.
MOST_DEPTH = 128
# What a user's function makes of columns: no expression, since nothing computes it over blocks.
CALL = "call"

Columns = tuple[tuple[str, Value], ...]


class Relation(NamedTuple):
    """Rows of the step that has ``base`` steps below it, by filters, as columns over its columns.

    The source is the step that has none.
    """

    base: int
    predicate: tuple[Value, ...]
    columns: Columns


class Projected(NamedTuple):
    """A step that computes some of its columns, and its place above the source."""

    place: int
    node: Node


def relations(
    given: Schema, nodes: Sequence[Node], functions: Sequence[bytes]
) -> list[Relation | None]:
    """What a source of rows and each of the ``nodes`` above it give; None for unknown types.

    ``functions`` name what the functions of the nodes do.
    """
    found = [_whole(0, given)]
    for place, (node, function) in enumerate(zip(nodes, functions, strict=True), 1):
        made = None if found[-1] is None else _over(found[-1], node, function)
        found.append(_whole(place, node.schema) if made is None else made)
    return found


def _whole(base: int, schema: Schema) -> Relation | None:
    columns = tuple((name, col(name)) for name in schema)
    return Relation(base, (), columns) if schema.known else None


def _over(below: Relation, node: Node, function: bytes) -> Relation | None:
    """What ``node`` makes of ``below``, if it looks at rows one by one, column by column."""
    env = dict(below.columns)
    match node:
        case Segment():
            memo: dict[int, Value] = {}
            parts = [substitute(part, env, memo) for part in node.predicate]
            columns = tuple((name, substitute(value, env, memo)) for name, value in node.env)
            made = Relation(below.base, tuple(dict.fromkeys((*below.predicate, *parts))), columns)
        case Apply():
            args = tuple(env[name] for name in node.args)
            env[node.name] = Value(CALL, args, (function, str(node.kind), node.version))
            made = Relation(below.base, below.predicate, tuple((n, env[n]) for n in node.schema))
        case _:
            return below if node.rows is Rows.STORED else None
    values = (*made.predicate, *(value for _, value in made.columns))
    return made if max((v.depth for v in values), default=0) <= MOST_DEPTH else None


class Naming:
    """Names of values, equal in any process for what has equal bits; draws with the ``seed``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._canonical: dict[int, Value] = {}
        self._kept: dict[int, Value] = {}  # by whose identity the others are known

    def __call__(self, value: Value) -> str:
        """The name of a value, hexadecimal."""
        self._kept[id(value)] = value
        found = canonical(value, self._canonical).digest
        return (digest(found, "seed", self.seed) if value.draws else found).hex()

    def rows(self, base: str, predicate: Collection[Value]) -> str:
        """The name of the rows that pass all filters, in any order, of the step named ``base``."""
        return digest("rows", base, sorted(map(self, predicate))).hex()

    def group(self, rows: str, columns: Columns) -> str:
        """The name of some columns of rows, in any order.

        Parts of one entry have one name for a column, whoever stored which of them.
        """
        return digest("columns", rows, sorted((self(value), name) for name, value in columns)).hex()


def projected(
    nodes: Sequence[Node], start: int, wanted: Collection[str] | None
) -> tuple[list[Projected], frozenset[str] | None]:
    """The nodes above the first ``start``, computing no column that ``wanted`` ones do not need.

    With them the columns that they read of what lies below, None if it may be all. All are wanted
    where that is None.
    """
    needed: frozenset[str] | None = None if wanted is None else frozenset(wanted)
    kept: list[tuple[int, Node, frozenset[str] | None]] = []
    for place in range(len(nodes), start, -1):
        node = nodes[place - 1]
        if not _spared(node, needed):
            kept.append((place, node, needed))
            needed = _read(node, needed)
    made: list[Projected] = []
    for place, node, asked in reversed(kept):
        below = made[-1].node if made else node.inputs[0]
        made.append(Projected(place, _cut(node, below, asked)))
    return made, needed


def _spared(node: Node, needed: frozenset[str] | None) -> bool:
    return isinstance(node, Apply) and needed is not None and node.name not in needed


def _read(node: Node, needed: frozenset[str] | None) -> frozenset[str] | None:
    """The columns of its input that a node reads for ``needed`` ones of its own."""
    match node:
        case Segment():
            values = (*node.predicate, *(value for _, value in _kept(node, needed)))
            return frozenset[str]().union(*(value.refs for value in values))
        case Apply() if needed is not None:
            return (needed - {node.name}) | set(node.args)
    return None


def _kept(node: Segment, needed: frozenset[str] | None) -> Columns:
    """The columns of a segment that are needed; one if none is, as rows are."""
    env = tuple((name, v) for name, v in node.env if needed is None or name in needed)
    return env or node.env[:1]


def _cut(node: Node, below: Node, needed: frozenset[str] | None) -> Node:
    """A node over another input, with those of its columns that are needed."""
    if isinstance(node, Segment) and len(env := _kept(node, needed)) < len(node.env):
        return node.replace(input=below, env=env)
    return node if below is node.inputs[0] else node.replace(input=below)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is asked of a store for the rows of a step, wherever that runs.

    ``names`` are those of the rows of the source and of every step above it, the last one's too;
    ``functions`` say what the functions of these steps do. ``above`` names those above the highest
    one that is stored, "" if none is, whatever the rows are that they are given.
    """

    names: tuple[str, ...]
    functions: tuple[bytes, ...]
    above: str = ""
