"""A relation describes an operator's rows and columns as filters and values over a lower one.

Where operators only filter rows by expressions and compute columns one by one, each column is an
expression over the columns of a lower operator, whatever the order of operators and the names of
temporary columns are. So two pipelines can be compared filter by filter and column by column, and a
pipeline can be reduced to some of its columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from dml.base.fingerprint import digest
from dml.data.schema import Schema
from dml.expr.columns.value import Value, canonical, col, substitute
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.ops.row.apply import Apply
from dml.ops.row.segment import Segment

# The depth of nested operations beyond which a step begins a relation of its own.
MOST_DEPTH = 128
# The operation of a user's function: it has a name, but is never computed as an expression.
CALL = "call"

Columns = tuple[tuple[str, Value], ...]


class Relation(NamedTuple):
    """The rows of the operator ``base`` that pass all of ``predicate``, and ``columns`` over them.

    ``base`` is the number of operators below that operator: 0 for the source.
    """

    base: int
    predicate: tuple[Value, ...]
    columns: Columns


class Projected(NamedTuple):
    """An operator that computes only some of its columns, and its index above the source."""

    place: int
    node: Node


def relations(
    given: Schema, nodes: Sequence[Node], functions: Sequence[bytes]
) -> list[Relation | None]:
    """Return the relations of a source and of each node above; None where types are unknown.

    ``given`` is the source's schema; ``functions`` name the behaviour of the functions of
    ``nodes``.
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
    """Return the relation of ``node`` to the base of ``below``; None if it has none."""
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
    """Names values: equal values have equal names in all processes; draws include the ``seed``."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._canonical: dict[int, Value] = {}
        self._kept: dict[int, Value] = {}  # keeps the ids of values valid

    def __call__(self, value: Value) -> str:
        """Return the name of ``value``, in hexadecimal."""
        self._kept[id(value)] = value
        found = canonical(value, self._canonical).digest
        return (digest(found, "seed", self.seed) if value.draws else found).hex()

    def rows(self, base: str, predicate: Collection[Value]) -> str:
        """Return the name of the rows of the step named ``base`` that pass all filters."""
        return digest("rows", base, sorted(map(self, predicate))).hex()

    def group(self, rows: str, columns: Columns) -> str:
        """Return the name of ``columns`` of the rows named ``rows``, in any order.

        All parts of a cache entry use the same name for a column, whichever pipeline stored the
        part.
        """
        return digest("columns", rows, sorted((self(value), name) for name, value in columns)).hex()


def projected(
    nodes: Sequence[Node], start: int, wanted: Collection[str] | None
) -> tuple[list[Projected], frozenset[str] | None]:
    """Return the nodes from index ``start`` on, reduced to the columns that ``wanted`` needs.

    If ``wanted`` is None, all columns are needed. The second value is the set of columns that these
    nodes read from below; None if they may read all.
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
    """Return the input columns that a node reads for its ``needed`` columns; None: possibly all."""
    match node:
        case Segment():
            values = (*node.predicate, *(value for _, value in _needed_columns(node, needed)))
            return frozenset[str]().union(*(value.refs for value in values))
        case Apply() if needed is not None:
            return (needed - {node.name}) | set(node.args)
    return None


def _needed_columns(node: Segment, needed: frozenset[str] | None) -> Columns:
    """Return the ``needed`` columns of a segment; one if none is needed, so that rows remain."""
    env = tuple((name, v) for name, v in node.env if needed is None or name in needed)
    return env or node.env[:1]


def _cut(node: Node, below: Node, needed: frozenset[str] | None) -> Node:
    """Return ``node`` over the input ``below``, with only its ``needed`` columns."""
    if isinstance(node, Segment) and len(env := _needed_columns(node, needed)) < len(node.env):
        return node.replace(input=below, env=env)
    return node if below is node.inputs[0] else node.replace(input=below)
