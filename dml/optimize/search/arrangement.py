"""The arrangement of a plan is chosen: where its stages end, their driver, the partition size.

The three are chosen together, by the expected time of the whole run (``search``), within the user's
settings and the memory limit. The choice affects no fingerprint, no result and no saved position.
The default arrangement is kept unless another one is clearly faster, also if all costs are lower or
higher than expected. If a pipeline is repeated, a cache that would save time is reported but never
added.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dml.expr.facts import Needs, Rows
from dml.expr.node import Node
from dml.ops.row.lifted import LiftedNode
from dml.ops.row.segment import Segment
from dml.ops.slice.repeat import Repeat
from dml.ops.slice.take import Take
from dml.ops.slice.take_while import TakeWhile
from dml.optimize.cost.beliefs import Z80, Belief, no_regret, total
from dml.optimize.cost.estimate import Estimate
from dml.optimize.cost.priors import driver, keeping_s
from dml.optimize.engine import Clock
from dml.optimize.search.arrangement_space import (
    Allowed,
    MachineLimits,
    cut,
    must_begin,
    partitions_by_cost,
    tasks_of,
)
from dml.optimize.search.dynamic_programme import (
    MAY,
    MUST,
    NEVER,
    ChainProblem,
    Priced,
    StepCosts,
    search,
    seconds,
)
from dml.physical.plan import Plan

# A stage may begin with a step of at least this share of the work on blocks; less gains nothing.
HEAVY: Final = 1 / 16
MORE_STAGES: Final = 2
# Assumed passes of a pipeline that is repeated without end.
ENDLESS: Final = 10


class CachePoint(NamedTuple):
    """A cache that would save time: the operator below it, the passes as text, and its bytes."""

    priced: Priced
    above: str
    passes: str
    nbytes: float


@dataclasses.dataclass(frozen=True)
class ArrangementDecision:
    """The chosen arrangement of a plan, and the alternatives, best first.

    ``doubtful`` is expected to be faster than ``chosen``, but not clearly. ``cache`` is clearly
    faster, but only the user can add it. ``off`` is the expected time of ``chosen`` with its
    uncertainty. ``whole`` is False if the search was stopped by its time limit.
    """

    chosen: Priced
    usual: Priced
    ranked: tuple[Priced, ...]
    doubtful: Priced | None
    cache: CachePoint | None
    off: Belief
    whole: bool

    @property
    def next(self) -> Priced | None:
        """The best alternative to the chosen way; None if there is none."""
        return next((each for each in self.ranked if each.way != self.chosen.way), None)


def decide(
    plan: Plan,
    found: Sequence[Estimate],
    machine: MachineLimits,
    may: Allowed,
    clock: Clock,
) -> ArrangementDecision | None:
    """Return the fastest arrangement that is clearly faster than the default; else the default.

    ``found`` has the plan's estimates. Return None if the seconds of all operators on blocks are
    unknown, as for an endless source.
    """
    told = _pass_seconds(plan, found, _passes(plan)[1])
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
    return ArrangementDecision(
        chosen,
        made.usual,
        made.ranked,
        doubtful,
        _cache(plan, likely, kept) if kept is not None and pays else None,
        dataclasses.replace(_belief(at_each(chosen)), source=letter),
        made.whole,
    )


def _cache(plan: Plan, chain: ChainProblem, kept: Priced) -> CachePoint:
    place = kept.way.kept or 0
    nbytes = (*chain.steps, *chain.over)[place].given_bytes
    passes, divisor = _passes(plan)
    told = f"{passes} passes" if divisor == 1 else f"repeat({passes})"
    return CachePoint(kept, plan.operators[place].title(), told, min(nbytes, chain.kept_bytes))


def _clear(usual: Sequence[float], other: Sequence[float]) -> bool:
    """Return True if ``other`` is clearly faster; both have seconds at low, likely, high costs.

    Both arrangements run the same operators, so a cost is low or high for both.
    """
    return no_regret(_belief(usual), _belief(other)) and other[0] <= usual[0]


def _belief(figures: Sequence[float]) -> Belief:
    """Return a belief with the second and third of three figures as median and 80th percentile."""
    _, middle, high = (max(each, 1e-12) for each in figures)
    return dataclasses.replace(
        Belief.prior(middle), sigma=max(0.0, math.log(high) - math.log(middle)) / Z80
    )


def _passes(plan: Plan) -> tuple[int, int]:
    """Return the number of passes to plan for, and the number of passes in the estimates."""
    place = _repeat_place(plan)
    if place is None:
        return 1, 1
    below, node, above = plan.stream[:place], plan.stream[place], plan.stream[place + 1 :]
    # a stream that is cut short may never come to its second pass
    if any(isinstance(each, Take | TakeWhile) for each in above) or not isinstance(node, Repeat):
        return 1, 1
    if any(each.rows is Rows.KEPT for each in below):
        return 1, 1
    return (ENDLESS, 1) if node.n is None else (max(1, node.n), max(1, node.n))


def _repeat_place(plan: Plan) -> int | None:
    places = (i for i, node in enumerate(plan.stream) if node.rows is Rows.REPEATED)
    return next(places, None)


def _pass_seconds(plan: Plan, found: Sequence[Estimate], divisor: int) -> list[Belief | None]:
    """Return each operator's seconds in one pass; None if they are unknown.

    An operator of an endless stream counts with the rows of one pass of ``repeat``.
    """
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
    machine: MachineLimits,
    may: Allowed,
) -> ChainProblem:
    """Return the search problem for ``plan``, with the median cost of each operator."""
    steps = list(_steps(plan, found, told, machine, may))
    blocks, source, sizes = len(plan.on_blocks), plan.stage.source, _sizes(plan, machine, may)
    atoms = source.atom_count or max(1, source.unit_count)
    at_once = max(1, source.unit_count) if _at_once(plan, machine) else atoms
    return ChainProblem(
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
    machine: MachineLimits,
    may: Allowed,
) -> Iterator[StepCosts]:
    """Yield the costs of the plan's own operators, then of those of the plans beside it."""
    passes, divisor = _passes(plan)
    begins, widths = _begins(plan, told, may), _widths(plan, machine)
    keeps = _keeps(plan) if passes > 1 else 0
    # an operator with resource needs cannot see the stream, so no cache stands below it
    least = len(plan.on_blocks) - 1 if plan.links else 0
    operators = plan.operators
    for i, (node, each, belief) in enumerate(zip(operators, found, told, strict=False)):
        yield StepCosts(
            _typical(belief),
            _typical(belief) if locks(node) else 0.0,
            each.bytes_out / divisor if each.bytes_out < math.inf else 0.0,
            begins.get(i, NEVER),
            widths.get(i, math.inf),
            least <= i < keeps,
        )
    yield from (StepCosts(_typical(each)) for each in told[len(operators) :])


def _typical(belief: Belief | None) -> float:
    return 0.0 if belief is None else belief.typical


def _priced_at(chain: ChainProblem, told: Sequence[Belief | None], z: float) -> ChainProblem:
    """Return ``chain`` with all operators' costs ``z`` standard deviations from the median."""
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
    """Return, by index, the steps that may begin a stage (heavy ones), and those that must."""
    spent = [_typical(each) for each in told[: len(plan.on_blocks)]]
    heavy = HEAVY * math.fsum(spent)
    found = {i: MAY for i in may.begins if spent[i] >= heavy > 0}
    return found | dict.fromkeys(must_begin(plan), MUST)


def _widths(plan: Plan, machine: MachineLimits) -> dict[int, float]:
    """Return how many tasks may run at once, by the step that begins a stage with special needs."""
    found: dict[int, float] = {}
    for place, link in zip(must_begin(plan), plan.links, strict=True):
        needs = link.needs
        cpus = machine.workers // needs.num_cpus if needs.num_cpus else math.inf
        most = math.inf if needs.concurrency is None else needs.concurrency
        found[place] = max(1.0, min(cpus, most))
    return found


def _sizes(plan: Plan, machine: MachineLimits, may: Allowed) -> dict[int, tuple[int, ...]]:
    """Return partition sizes in bytes by number of stages, since stages share the memory limit."""
    must = must_begin(plan)
    others = sorted(may.begins - set(must))[:MORE_STAGES]
    found: dict[int, tuple[int, ...]] = {}
    for more in range(len(others) + 1):
        made = cut(plan, sorted((*must, *others[:more])))
        sizes = (machine.size_of(made),) if may.sized else partitions_by_cost.ways(made, machine)
        found[1 + len(must) + more] = sizes
    return found


def _at_once(plan: Plan, machine: MachineLimits) -> bool:
    source = plan.stage.source
    return bool(source.unit_count) and source.unit(0).nbytes <= machine.whole_bytes


def locks(node: Node) -> bool:
    """Return True if ``node`` calls a Python function for each row, not one for whole blocks."""
    called = node.calls is not None and not isinstance(node, LiftedNode)
    return called and not node.by_atom and not node.batched


def _keeps(plan: Plan) -> int:
    """Return the number of operators, from the source on, with the same output in every pass."""
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
