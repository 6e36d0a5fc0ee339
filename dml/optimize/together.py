"""This file decides which first steps pipelines that run together have made once for all of them.

Where pipelines part, nothing moves across: a filter above can no longer be tried on the statistics
of files, and what stands above runs in the caller's thread. So a place is shared where a function
below must not be called twice for a row, or where it is expected to cost less.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from dml.errors import PlanError
from dml.expr.facts import Needs, Rows
from dml.expr.node import Node
from dml.expr.ops.select import Select
from dml.expr.ops.shared import Shared
from dml.optimize.rebuild import on
from dml.optimize.rule import Joint
from dml.optimize.rules.source import silent, wanted_by
from dml.plan import Plan

# Sharing must be expected to win so much: estimates are not exact.
GAIN = 0.95
CALLED = "calls functions that are not proven pure: once for each row"


@dataclasses.dataclass(frozen=True, eq=False)
class Weighed:
    """A plan, and the seconds that its operators are expected to take: its own, those beside."""

    plan: Plan
    seconds: tuple[float, ...]


Weigh = Callable[[Node], Weighed]


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A place that is shared: which of ``takers`` (of pipelines) pass it, and why."""

    number: int
    node: Node
    takers: tuple[int, ...]
    why: str


@dataclasses.dataclass(frozen=True, eq=False)
class Together:
    """Pipelines as they run together, and what they share: what lies deepest comes last."""

    nodes: tuple[Node, ...]
    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Place:
    """A node where several pipelines part; ``below`` is another such place under it."""

    node: Node
    takers: tuple[int, ...]
    below: Node | None

    @property
    def called(self) -> bool:
        """True if what lies between this place and the one below calls what is not proven pure."""
        chain = self.node.chain()
        known = 0 if self.below is None else chain.index(self.below) + 1
        return not all(map(silent, chain[known:]))


def together(nodes: Sequence[Node], weigh: Weigh, workers: int) -> Together:
    """How ``nodes`` run together with ``workers``; each of them as it is where nothing is shared.

    ``weigh`` plans a pipeline and estimates it.
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
    steps = [Step(i, place.node, place.takers, why) for i, (place, why) in enumerate(chosen, 1)]
    return Together(_parted(nodes, [place for place, _ in chosen], weigh), tuple(steps))


def _places(nodes: Sequence[Node]) -> Iterator[_Place]:
    """Where pipelines part, those furthest from the source first."""
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
    """The first operator that may have a mark above it: what must see the source lies below."""
    first = max((k for k, node in enumerate(chain) if node.rows is Rows.ATOMS), default=0)
    while not _may_part(chain[-1], chain[first]):
        first += 1
    return first


def _may_part(root: Node, place: Node) -> bool:
    """False if an operator above ``place`` must see the source itself."""
    try:
        _marked(root, {place: 1})
    except PlanError:
        return False
    return True


def _parted(nodes: Sequence[Node], places: Sequence[_Place], weigh: Weigh) -> tuple[Node, ...]:
    """``nodes`` with what they share marked; only columns that somebody wants pass there."""
    made = tuple(
        _marked(root, {each.node: k for k, each in enumerate(places, 1) if i in each.takers})
        for i, root in enumerate(nodes)
    )
    for number, place in enumerate(places, 1):
        made = _narrowed(made, number, place.takers, weigh)
    return made


def _marked(root: Node, numbers: dict[Node, int]) -> Node:
    """``root`` with a mark above each of the nodes that have a number."""
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
    """Columns that none of the ``takers`` looks at do not reach the shared place ``number``."""
    wanted: frozenset[str] = frozenset()
    rests: dict[int, tuple[Node, tuple[Node, ...]]] = {}
    for i in takers:
        stream = weigh(nodes[i]).plan.stream
        at = next(k for k, node in enumerate(stream) if _is(node, number))
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
    """True if what asks for resources would run where rows are in order, and has none."""
    streams = (weigh(root).plan.stream for root in nodes)
    return any(node.needs != Needs() for stream in streams for node in stream)


def _is(node: Node, number: int) -> bool:
    return isinstance(node, Shared) and node.number == number


def _cost(nodes: Sequence[Node], weigh: Weigh, workers: int) -> float:
    """Seconds of all, what is shared counted once; blocks are worked on side by side."""
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
