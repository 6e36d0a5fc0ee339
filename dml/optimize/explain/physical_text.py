"""The physical plan is shown as text: every operator of its tree, with its expected cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.io.partial_source import Leading
from dml.ops.row.lifted import LiftedNode
from dml.ops.row.lifted_chain import LiftedChain
from dml.ops.row.tiers import tier
from dml.optimize.cost.estimate import Estimate
from dml.optimize.explain.cost_table import expected_text
from dml.physical.operators import (
    Coalesce,
    Ordered,
    PhysicalOperator,
    RunChoices,
    SampleCheck,
    SharedStream,
    SliceSteps,
    SourceScan,
    TaskSteps,
    physical_tree,
)
from dml.physical.plan import Plan, Stage

NAMES_SHOWN = 12
# The text about slices that are delivered in the order in which they complete.
FREE = "elements go out as they are made"
# Letters of the first word of a line, the kind of the operator.
KIND = 10


@dataclass(frozen=True)
class PlanLine:
    """A line of a physical plan about an operator, the output of a plan, or its functions.

    ``facts`` are what is known of an operator; ``more`` has lines that stand below it. Operators
    of further inputs are deeper. ``by_workers`` is that of the physical operator.
    """

    kind: str
    title: str
    facts: Sequence[str] = ()
    more: Sequence[str] = ()
    depth: int = 0
    operator: bool = False
    by_workers: bool = False

    def texts(self) -> Iterator[str]:
        """Yield the line as text, then the lines below it."""
        indent = "  " * self.depth
        facts = f"  [{'; '.join(self.facts)}]" if self.facts else ""
        yield f"{indent}{self.kind.ljust(KIND)}{self.title}{facts}"
        yield from (f"{indent}{' ' * KIND}{each}" for each in self.more)


def physical_text(
    plan: Plan,
    choices: Mapping[Plan, RunChoices] | None = None,
    expected: Sequence[Estimate] = (),
    remarks: Mapping[Node, str] | None = None,
    hits: Collection[Node] = (),
) -> str:
    """Return the operators of ``plan`` as text, the last one first, one per line.

    Operators of further inputs are indented. ``choices`` are those of the run, by default the usual
    ones; ``expected`` are the costs of the operators in the order of ``work_names``; ``remarks``
    are texts about single operators, and ``hits`` are the caches that hold all rows.
    """
    return lines_text(plan_lines(plan, choices, expected, remarks, hits))


def lines_text(lines: Iterable[PlanLine]) -> str:
    """Return the lines of a plan as text."""
    return "\n".join(text for line in lines for text in line.texts())


def plan_lines(
    plan: Plan,
    choices: Mapping[Plan, RunChoices] | None = None,
    expected: Sequence[Estimate] = (),
    remarks: Mapping[Node, str] | None = None,
    hits: Collection[Node] = (),
) -> list[PlanLine]:
    """Return the lines of ``physical_text``."""
    tree = tree_of(plan, choices or dict.fromkeys(plan.all, RunChoices()))
    return list(_Lines(expected, remarks or {}, hits).of(plan, tree, 0, "deliver"))


def tree_of(plan: Plan, choices: Mapping[Plan, RunChoices]) -> PhysicalOperator:
    """Return the operators that run ``plan``, with those of its further inputs."""
    beside = [[tree_of(each, choices) for each in plans] for plans in plan.beside]
    return physical_tree(plan, choices[plan], beside=beside)


class _Lines:
    """The lines of a plan, with ``expected`` costs by ordinal; see ``physical_text``."""

    def __init__(
        self, expected: Sequence[Estimate], remarks: Mapping[Node, str], hits: Collection[Node]
    ) -> None:
        self.expected, self.remarks, self.hits = expected, remarks, hits

    def of(self, plan: Plan, tree: PhysicalOperator, first: int, kind: str) -> Iterator[PlanLine]:
        """Yield the lines of ``plan``; the ordinal of its source among all plans is ``first``."""
        yield PlanLine(kind, f"{'batches' if plan.batched else 'rows'}: {plan.schema}")
        begins = _begins(plan, first + len(plan.operators))
        for operator in tree.chain():
            yield from self._operator(operator, first)
            if len(operator.inputs) > 1:
                number = operator.first - len(plan.on_blocks)
                pairs = zip(plan.beside[number], operator.inputs[1:], strict=True)
                for each, below in pairs:
                    for line in self.of(each, below, begins[each], "beside"):
                        yield replace(line, depth=line.depth + 1)
        yield from (PlanLine("note", note) for note in _notes(plan))

    def _operator(self, operator: PhysicalOperator, first: int) -> Iterator[PlanLine]:
        made = partial(PlanLine, operator=True, by_workers=operator.by_workers)
        if isinstance(operator, SampleCheck):
            what = f"{operator.samples} samples of a pass are compared with the plan as written"
            yield made(operator.kind, what)
        elif isinstance(operator, Coalesce):
            yield made(operator.kind, f"up to {operator.units} neighbouring units into one block")
        elif isinstance(operator, SourceScan):
            title, more = _scanned(operator.stage)
            facts = self._facts(first, operator.stage.source, operator)
            yield made(operator.kind, title, facts, more)
        else:
            pairs = list(enumerate(operator.nodes, first + operator.first))
            for ordinal, node in reversed(pairs):
                kind = "cache hit" if node in self.hits else _kind(operator, node)
                yield made(kind, node.title(), self._facts(ordinal, node, operator))

    def _facts(self, ordinal: int, node: Node, operator: PhysicalOperator) -> list[str]:
        """Return what is known of an operator: its rows, seconds, state, and more."""
        facts = [expected_text(self.expected[ordinal])] if self.expected else []
        facts += filter(None, [self.remarks.get(node)])
        if isinstance(operator, Ordered):
            held = node.resume_cost
            facts.append(f"state {held.state_bytes} B, resume {held.work}")
        if isinstance(operator, SliceSteps) and operator.lane.free:
            facts.append(FREE)
        return facts


def _scanned(stage: Stage) -> tuple[str, list[str]]:
    """Return the title of a scan, and lines about the units that it reads."""
    source, more = stage.source, list[str]()
    have = f"{len(stage.columns)} of {len(source.schema)} columns"
    if isinstance(source, Leading):
        more.append(f"{source.units} of {source.whole.unit_count} units")
    if stage.predicate and source.unit_count:
        more.append(f"skips units by {' & '.join(map(repr, stage.predicate))}")
    if stage.first:
        more.append(f"tries units by {', '.join(stage.first)} first, where that pays")
    if stage.order is not None:
        more.append(f"in the order of {stage.order.title()}")
    return f"{source.title()}: {have}{_in_brackets(stage.columns)}", more


def _begins(plan: Plan, number: int) -> dict[Plan, int]:
    """Return the ordinal of the source of each plan beside ``plan``, the first one's ``number``."""
    found: dict[Plan, int] = {}
    for each in (other for plans in plan.beside for other in plans):
        found[each] = number
        number += sum(len(below.operators) for below in each.all)
    return found


def _kind(operator: PhysicalOperator, node: Node) -> str:
    if node.rows in (Rows.KEPT, Rows.STORED) and not isinstance(operator, SharedStream):
        return "cache"
    if isinstance(operator, TaskSteps) and operator.number > 1:
        return f"{operator.kind} {operator.number}"
    return operator.kind


def _notes(plan: Plan) -> Iterator[str]:
    """Yield notes on the functions that operators call: their names, and how they run."""
    for node in plan.operators:
        fn = node.calls
        if fn is not None:
            what = fn.name if isinstance(node, LiftedNode) else node.title()
            yield from (f"{what}: {note}" for note in (fn.reason, tier(node)) if note)
    called = [node for node in plan.stage.steps if not isinstance(node, LiftedNode)]
    moving = [node.title() for node in called if node.calls and not node.calls.purity]
    yield from (f"{title}: moves to processes if threads take turns at it" for title in moving)
    for nodes in (plan.stage.steps, *(link.steps for link in plan.links), plan.stream):
        yield from _passes(nodes)


def _passes(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield a note for each group of neighbours in ``nodes`` that one program computes."""
    rest = list(nodes)
    while rest:
        chain = LiftedChain.of(rest)
        if chain is not None:
            names = [node.calls.name if node.calls else "expressions" for node in chain.nodes]
            yield f"{', '.join(names)}: computed together, in one pass over a block"
        del rest[: 1 if chain is None else len(chain.nodes)]


def _in_brackets(names: Iterable[str]) -> str:
    shown = list(names)
    more = " ..." if len(shown) > NAMES_SHOWN else ""
    return f" ({', '.join(shown[:NAMES_SHOWN])}{more})" if shown else ""
