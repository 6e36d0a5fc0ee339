"""This file decides how a plan is arranged: where its stages end, who runs them, in what sizes.

The three are decided together, by what the whole run is expected to take (``search``), within what
the user fixed and what memory allows. Nothing of it enters a name, a byte or a saved position, and
what is usual stays unless it is clear that something else is faster, whether operators turn out to
be cheap or dear. Where a pipeline is repeated, a cache that would pay is told, never put in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dml.expr.facts import Needs, Rows
from dml.expr.node import Node
from dml.expr.ops.lifted import LiftedNode
from dml.expr.ops.repeat import Repeat
from dml.expr.ops.segment import Segment
from dml.expr.ops.take import Take
from dml.expr.ops.take_while import TakeWhile
from dml.optimize.allowed import (
    Allowed,
    Machine,
    cut,
    must_begin,
    partitions_by_cost,
    tasks_of,
)
from dml.optimize.cost import Z80, Belief, no_regret, total
from dml.optimize.engine import Clock
from dml.optimize.estimate import Estimate
from dml.optimize.priors import driver, keeping_s
from dml.optimize.search import MAY, MUST, NEVER, Chain, Priced, Step, search, seconds
from dml.plan import Plan

# A stage may begin with a step that takes so much of the work on blocks: others gain nothing.
HEAVY: Final = 1 / 16
MORE_STAGES: Final = 2
# Passes of a pipeline that is repeated without end, to judge by.
ENDLESS: Final = 10


class Cache(NamedTuple):
    """A cache that would pay: above which operator, on how many passes, and what it would keep."""

    priced: Priced
    above: str
    passes: str
    nbytes: float


@dataclasses.dataclass(frozen=True)
class Decision:
    """How a plan is arranged, and what else was looked at, best first.

    ``doubtful`` was expected to be faster than ``chosen``, and not clearly; ``cache`` is clearly
    faster, and the user's to add. ``off`` says how far off ``chosen`` may be. ``whole`` is False if
    time was up before everything had been looked at.
    """

    chosen: Priced
    usual: Priced
    ranked: tuple[Priced, ...]
    doubtful: Priced | None
    cache: Cache | None
    off: Belief
    whole: bool

    @property
    def next(self) -> Priced | None:
        """The best of the others."""
        return next((each for each in self.ranked if each.way != self.chosen.way), None)


def decide(
    plan: Plan,
    found: Sequence[Estimate],
    machine: Machine,
    may: Allowed,
    clock: Clock,
) -> Decision | None:
    """The best arrangement that is clear, of a plan whose operators are expected to take ``found``.

    None where nobody knows what a pass takes: there is no last row.
    """
    told = _told(plan, found, _passes(plan)[1])
    if all(each is None for each in told[: len(plan.on_blocks)]):
        return None
    likely = _chain(plan, found, told, machine, may)
    chains = [_priced_at(likely, told, -Z80), likely, _priced_at(likely, told, Z80)]
    made = search(likely, clock)

    def at_each(one: Priced) -> list[float]:
        return [seconds(each, one.way) for each in chains]

    faster = [each for each in made.ranked if each.seconds < made.usual.seconds]
    clear = (each for each in faster if _clear(at_each(made.usual), at_each(each)))
    chosen = next(clear, made.usual)
    doubtful = faster[0] if faster and faster[0] != chosen else None
    kept = made.kept
    pays = kept is not None and _clear(at_each(chosen), at_each(kept))
    letter = total([each for each in told if each is not None]).source
    return Decision(
        chosen,
        made.usual,
        made.ranked,
        doubtful,
        _cache(plan, likely, kept) if kept is not None and pays else None,
        dataclasses.replace(_belief(at_each(chosen)), source=letter),
        made.whole,
    )


def _cache(plan: Plan, chain: Chain, kept: Priced) -> Cache:
    place = kept.way.kept or 0
    nbytes = (*chain.steps, *chain.over)[place].given_bytes
    passes, divisor = _passes(plan)
    told = f"{passes} passes" if divisor == 1 else f"repeat({passes})"
    return Cache(kept, plan.operators[place].title(), told, min(nbytes, chain.kept_bytes))


def _clear(usual: Sequence[float], other: Sequence[float]) -> bool:
    """True if ``other`` is faster by more than a little, and never slower: cheap, likely, dear.

    Both are made of the same operators, so that these are cheap or dear for both.
    """
    return no_regret(_belief(usual), _belief(other)) and other[0] <= usual[0]


def _belief(figures: Sequence[float]) -> Belief:
    """A belief whose middle and 80th percentile are the last two of three figures."""
    _, middle, high = (max(each, 1e-12) for each in figures)
    return dataclasses.replace(
        Belief.prior(middle), sigma=max(0.0, math.log(high) - math.log(middle)) / Z80
    )


def _passes(plan: Plan) -> tuple[int, int]:
    """Passes to judge by, and by what estimates are divided to be those of one."""
    place = _repeat_place(plan)
    if place is None:
        return 1, 1
    below, node, above = plan.stream[:place], plan.stream[place], plan.stream[place + 1 :]
    # what is cut short may never come to its second pass
    if any(isinstance(each, Take | TakeWhile) for each in above) or not isinstance(node, Repeat):
        return 1, 1
    if any(each.rows is Rows.KEPT for each in below):
        return 1, 1
    return (ENDLESS, 1) if node.n is None else (max(1, node.n), max(1, node.n))


def _repeat_place(plan: Plan) -> int | None:
    places = (i for i, node in enumerate(plan.stream) if node.rows is Rows.REPEATED)
    return next(places, None)


def _told(plan: Plan, found: Sequence[Estimate], divisor: int) -> list[Belief | None]:
    """Seconds of each operator in one pass; what has no last row counts as far as a pass goes."""
    place = _repeat_place(plan)
    rows = 0.0 if place is None else found[len(plan.on_blocks) + place].rows_in
    told: list[Belief | None] = []
    for each in found:
        belief = each.seconds
        if belief is None and each.worked_rows == math.inf and 0 < rows < math.inf:
            belief = each.per_row.times(rows)
        told.append(None if belief is None else belief.times(1 / divisor))
    return told


def _chain(
    plan: Plan,
    found: Sequence[Estimate],
    told: Sequence[Belief | None],
    machine: Machine,
    may: Allowed,
) -> Chain:
    """What is searched, by what is likely."""
    steps = list(_steps(plan, found, told, machine, may))
    blocks, source, sizes = len(plan.on_blocks), plan.stage.source, _sizes(plan, machine, may)
    atoms = source.atom_count or max(1, source.unit_count)
    at_once = max(1, source.unit_count) if _at_once(plan, machine) else atoms
    return Chain(
        tuple(steps[:blocks]),
        tuple(steps[blocks:]),
        machine.workers,
        tuple(driver(name, machine.speed) for name in may.drivers),
        sizes,
        {size: tasks_of(plan, size) for each in sizes.values() for size in each},
        atoms,
        steps[0].seconds / at_once,
        _passes(plan)[0],
        machine.kept_bytes,
        keeping_s(machine.speed),
    )


def _steps(
    plan: Plan,
    found: Sequence[Estimate],
    told: Sequence[Belief | None],
    machine: Machine,
    may: Allowed,
) -> Iterator[Step]:
    """Every operator of the chain, and then what runs beside it, in the caller's thread."""
    passes, divisor = _passes(plan)
    begins, widths = _begins(plan, told, may), _widths(plan, machine)
    keeps = _keeps(plan) if passes > 1 else 0
    # what asks for resources cannot see the stream, so no cache stands below it
    least = len(plan.on_blocks) - 1 if plan.links else 0
    operators = plan.operators
    for i, (node, each, belief) in enumerate(zip(operators, found, told, strict=False)):
        yield Step(
            _typical(belief),
            _typical(belief) if locks(node) else 0.0,
            each.bytes_out / divisor if each.bytes_out < math.inf else 0.0,
            begins.get(i, NEVER),
            widths.get(i, math.inf),
            least <= i < keeps,
        )
    yield from (Step(_typical(each)) for each in told[len(operators) :])


def _typical(belief: Belief | None) -> float:
    return 0.0 if belief is None else belief.typical


def _priced_at(chain: Chain, told: Sequence[Belief | None], z: float) -> Chain:
    """``chain``, all of whose operators take what they do ``z`` deviations from the middle."""
    factors = [1.0 if each is None else math.exp(z * each.sigma) for each in told]
    steps = [
        dataclasses.replace(each, seconds=each.seconds * factor, locked_s=each.locked_s * factor)
        for each, factor in zip((*chain.steps, *chain.over), factors, strict=True)
    ]
    blocks = len(chain.steps)
    return dataclasses.replace(
        chain,
        steps=tuple(steps[:blocks]),
        over=tuple(steps[blocks:]),
        unit_s=chain.unit_s * factors[0],
    )


def _begins(plan: Plan, told: Sequence[Belief | None], may: Allowed) -> dict[int, str]:
    """Where stages may begin, before what is heavy, and where they must."""
    spent = [_typical(each) for each in told[: len(plan.on_blocks)]]
    heavy = HEAVY * math.fsum(spent)
    found = {i: MAY for i in may.begins if spent[i] >= heavy > 0}
    return found | dict.fromkeys(must_begin(plan), MUST)


def _widths(plan: Plan, machine: Machine) -> dict[int, float]:
    """How many tasks may run at once, of stages that ask for something."""
    found: dict[int, float] = {}
    for place, link in zip(must_begin(plan), plan.links, strict=True):
        needs = link.needs
        cpus = machine.workers // needs.num_cpus if needs.num_cpus else math.inf
        most = math.inf if needs.concurrency is None else needs.concurrency
        found[place] = max(1.0, min(cpus, most))
    return found


def _sizes(plan: Plan, machine: Machine, may: Allowed) -> dict[int, tuple[int, ...]]:
    """Partition sizes, by the number of stages; more stages leave less memory to each."""
    must = must_begin(plan)
    others = sorted(may.begins - set(must))[:MORE_STAGES]
    found: dict[int, tuple[int, ...]] = {}
    for more in range(len(others) + 1):
        made = cut(plan, sorted((*must, *others[:more])))
        sizes = (machine.size_of(made),) if may.sized else partitions_by_cost.ways(made, machine)
        found[1 + len(must) + more] = sizes
    return found


def _at_once(plan: Plan, machine: Machine) -> bool:
    source = plan.stage.source
    return bool(source.unit_count) and source.unit(0).nbytes <= machine.whole_bytes


def locks(node: Node) -> bool:
    """True if ``node`` calls a function for every row: that is Python. One of blocks may not be."""
    called = node.calls is not None and not isinstance(node, LiftedNode)
    return called and not node.by_atom and not node.batched


def _keeps(plan: Plan) -> int:
    """How many operators, from the source on, give the same in every pass whatever keeps them."""
    place = _repeat_place(plan) or 0
    most = len(plan.on_blocks) + place
    return sum(1 for _ in _kept_steps(plan, most)) if plan.stage.order is None else 0


def _kept_steps(plan: Plan, most: int) -> Iterator[Node]:
    for number, node in enumerate(plan.operators[:most]):
        fn = node.calls
        draws = node.random or (isinstance(node, Segment) and node.draws)
        unsure = fn is not None and (bool(fn.purity) or number == 0)
        if draws or unsure or node.needs != Needs() or len(node.inputs) > 1:
            return
        yield node
