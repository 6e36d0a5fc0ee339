"""Pipelines that run together share prefixes: their first operators run once for all of them.

No rewrite moves operators across a shared place, the last operator that pipelines have in common: a
filter above it can no longer skip units by statistics of files, and the operators above it run in
the caller's thread. So a place is shared only if a function below it must not be called twice for a
row, or if sharing is expected to cost less.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from dml.errors import PlanError
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node
from dml.ops.cache.shared import Shared
from dml.ops.row.select import Select
from dml.optimize.node_rebuild import on
from dml.optimize.rule import Joint
from dml.optimize.rules.pushdown import silent, wanted_by
from dml.physical.plan import Plan

# Sharing must be expected to cost at most this share: estimates are not exact.
GAIN = 0.95
CALLED = "calls functions that are not proven pure: once for each row"


@dataclasses.dataclass(frozen=True, eq=False)
class Weighed:
    """A plan, and the expected seconds of its operators, then of the operators of side inputs."""

    plan: Plan
    seconds: tuple[float, ...]


Weigh = Callable[[Node], Weighed]


@dataclasses.dataclass(frozen=True, eq=False)
class SharedStep:
    """A node that several pipelines share; ``takers`` are the indices of these pipelines."""

    number: int
    node: Node
    takers: tuple[int, ...]
    why: str


@dataclasses.dataclass(frozen=True, eq=False)
class Together:
    """Pipelines that run together, and the nodes they share, in order towards the source."""

    nodes: tuple[Node, ...]
    steps: tuple[SharedStep, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Place:
    """The last common node of the pipelines ``takers``; ``below`` is the next one below it."""

    node: Node
    takers: tuple[int, ...]
    below: Node | None

    @property
    def called(self) -> bool:
        """True if a function not proven pure is called between this place and the one below."""
        chain = self.node.chain()
        known = 0 if self.below is None else chain.index(self.below) + 1
        return not all(map(silent, chain[known:]))


def together(nodes: Sequence[Node], weigh: Weigh, workers: int) -> Together:
    """Return the pipelines ``nodes`` prepared to run together on ``workers``, sharing prefixes.

    ``weigh`` plans a pipeline and estimates the seconds of its operators.
    """
    chosen: list[tuple[_Place, str]] = []
    places = list(_places(nodes))
    before = _cost(nodes, weigh, workers) if places else 0.0
    for place in places:
        try:
            made = _parted(nodes, [*(each for each, _ in chosen), place], weigh)
        except PlanError:
            continue  # an operator above must see the source itself
        if _in_order(made, weigh):
            continue
        cost = _cost(made, weigh, workers)
        if place.called:
            chosen.append((place, CALLED))
        elif cost < GAIN * before:
            chosen.append((place, f"expected to cost {cost:.2g} s, and {before:.2g} s apart"))
        else:
            continue
        before = cost
    steps = [
        SharedStep(i, place.node, place.takers, why) for i, (place, why) in enumerate(chosen, 1)
    ]
    return Together(_parted(nodes, [place for place, _ in chosen], weigh), tuple(steps))


def _places(nodes: Sequence[Node]) -> Iterator[_Place]:
    """Yield the nodes above which pipelines differ, those furthest from the source first."""
    found: dict[Node, dict[object, list[int]]] = {}
    chains = [root.chain() for root in nodes]
    for i, chain in enumerate(chains):
        first = _least(chain)
        for here, then in zip(chain[first:], [*chain[first + 1 :], i], strict=True):
            found.setdefault(here, {}).setdefault(then, []).append(i)
    parting = {
        node: tuple(sorted(i for some in ways.values() for i in some))
        for node, ways in found.items()
        if len(ways) > 1
    }
    depth = {node: place for chain in chains for place, node in enumerate(chain)}
    for node in sorted(parting, key=lambda node: -depth[node]):
        takers = parting[node]
        under = [e for e in node.chain()[:-1] if set(takers) <= set(parting.get(e, ()))]
        yield _Place(node, takers, under[-1] if under else None)


def _least(chain: Sequence[Node]) -> int:
    """Return the least index in ``chain`` above which no operator must see the source itself."""
    first = max((k for k, node in enumerate(chain) if node.rows is Rows.ATOMS), default=0)
    while not _may_part(chain[-1], chain[first]):
        first += 1
    return first


def _may_part(root: Node, place: Node) -> bool:
    """Return False if an operator above ``place`` must see the source itself."""
    try:
        _marked(root, {place: 1})
    except PlanError:
        return False
    return True


def _parted(nodes: Sequence[Node], places: Sequence[_Place], weigh: Weigh) -> tuple[Node, ...]:
    """Return ``nodes`` with shared places marked, and unread columns dropped at these places."""
    made = tuple(
        _marked(root, {each.node: k for k, each in enumerate(places, 1) if i in each.takers})
        for i, root in enumerate(nodes)
    )
    for number, place in enumerate(places, 1):
        made = _narrowed(made, number, place.takers, weigh)
    return made


def _marked(root: Node, numbers: dict[Node, int]) -> Node:
    """Return ``root`` with a ``Shared`` node above each node in ``numbers``."""
    below, *rest = chain = root.chain()
    below = Shared(below, numbers[below]) if below in numbers else below
    for node, was in zip(rest, chain, strict=False):
        made = node
        if below is not was:
            made = on(node, below)
            made.check()
        below = Shared(made, numbers[node]) if node in numbers else made
    return below


def _narrowed(
    nodes: tuple[Node, ...], number: int, takers: Sequence[int], weigh: Weigh
) -> tuple[Node, ...]:
    """Return ``nodes`` without columns below place ``number`` that none of the ``takers`` reads."""
    wanted: frozenset[str] = frozenset()
    rests: dict[int, tuple[Node, tuple[Node, ...]]] = {}
    for i in takers:
        stream = weigh(nodes[i]).plan.stream
        marks = ((k, node) for k, node in enumerate(stream) if isinstance(node, Shared))
        at = next(k for k, node in marks if node.number == number)
        looked_at = wanted_by(stream[at + 1 :])
        if looked_at is None:
            return nodes
        wanted |= looked_at
        rests[i] = stream[at], stream[at + 1 :]
    schema = rests[takers[0]][0].schema
    names = tuple(name for name in schema if name in wanted)
    batched = rests[takers[0]][0].batched
    if not schema.known or batched or not names or len(names) == len(schema):
        return nodes
    made = list(nodes)
    for i, (shared, rest) in rests.items():
        below: Node = Shared(Select(shared.inputs[0], names), number)
        for node in rest:
            below = on(node, below)
        made[i] = below
    return tuple(made)


def _in_order(nodes: Sequence[Node], weigh: Weigh) -> bool:
    """Return True if a stream operator requests resources, which stream operators do not get."""
    streams = (weigh(root).plan.stream for root in nodes)
    return any(node.needs != Needs() for stream in streams for node in stream)


def _cost(nodes: Sequence[Node], weigh: Weigh, workers: int) -> float:
    """Return the seconds of all pipelines; shared steps count once, workers divide block work."""
    seen: set[Node] = set()
    total = 0.0
    for root in nodes:
        weighed = weigh(root)
        operators, blocks = weighed.plan.operators, len(weighed.plan.on_blocks)
        marks = [k for k, node in enumerate(operators) if isinstance(node, Shared)]
        shared = marks[-1] if marks else -1
        for k, seconds in enumerate(weighed.seconds):
            if k < len(operators) and k <= shared:
                if operators[k] in seen:
                    continue
                seen.add(operators[k])
            beside = k < blocks or k >= len(operators)
            total += seconds / workers if beside else seconds
    return total if math.isfinite(total) else 0.0


run_shared_once = Joint(
    "run_shared_once",
    "What pipelines of one run have in common from the source on is made once for all.",
    "multi-query optimization, Sellis 1988",
    together,
)
