"""The rule engine applies rules until none fires, checks their results, and records a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from dml.errors import InternalError
from dml.expr.node import Node
from dml.optimize.node_rebuild import over
from dml.optimize.rule import NamedRule, Rule

Clock = Callable[[], float]
# The limit of rewritings, a base and more for every node, beyond which rules never terminate.
STEPS_FREE, STEPS_EACH = 1000, 50


def no_clock() -> float:
    """Return 0.0: a clock for callers that do not measure how long rules take."""
    return 0.0


class Shown(Protocol):
    """The input or result of a rule in the trace: an operator, or an incomplete plan."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The inputs to which the operator is applied."""

    def title(self) -> str:
        """Return the operator or plan as one line of text."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """One rewriting: the rule, its input, its result, and the microseconds that it took."""

    rule: NamedRule
    before: Shown
    after: Shown
    micros: float


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """A rewriting that a reader might expect, and the reason why it would be wrong or useless."""

    what: str
    why: str


@dataclasses.dataclass
class RuleTrace:
    """All rewritings of one optimization in order, and those refused: near misses, and by cost.

    ``near_misses`` finds the first kind in the finished plan. Only ``explain`` asks for it.
    """

    clock: Clock = no_clock
    applied: list[Applied] = dataclasses.field(default_factory=list)
    too_costly: list[Refused] = dataclasses.field(default_factory=list)
    near_misses: Callable[[], list[Refused]] = list

    @property
    def refused(self) -> list[Refused]:
        """All refused rewritings: near misses first, then those refused by cost, in order."""
        return [*self.near_misses(), *self.too_costly]

    def note(self, rule: NamedRule, before: Shown, after: Shown, started: float) -> None:
        """Record that ``rule`` replaced ``before`` by ``after`` in the time since ``started``."""
        self.applied.append(Applied(rule, before, after, (self.clock() - started) * 1e6))

    def names(self) -> list[str]:
        """Return the names of the applied rules, in order of use."""
        return [entry.rule.name for entry in self.applied]


class Engine:
    """Rewrites pipelines with a set of rules, which may fire in any order."""

    def __init__(self, rules: Sequence[Rule], trace: RuleTrace) -> None:
        self.rules, self.trace = tuple(rules), trace
        # by id of a node: the node, which keeps its id unique, and what it was rewritten to
        self.settled: dict[int, tuple[Node, Node]] = {}
        self.steps = 0

    def rewrite(self, root: Node) -> Node:
        """Return ``root`` rewritten until no rule fires in any node of it."""
        becoming: dict[int, Node] = {}
        stack = [root]
        while stack:
            node = stack[-1]
            now = becoming.get(id(node), node)
            pending = [each for each in now.inputs if id(each) not in self.settled]
            if id(node) in self.settled:
                stack.pop()
            elif pending:
                stack += pending
            elif (better := self._step(now := self._current(now))) is not None:
                becoming[id(node)] = better
            else:
                self.settled[id(node)] = (node, now)
                self.settled[id(now)] = (now, now)
                stack.pop()
        return self._become(root)

    def _current(self, node: Node) -> Node:
        """Return ``node`` with its rewritten inputs in place of the original ones."""
        settled = self.settled
        if all(settled[id(each)][1] is each for each in node.inputs):
            return node
        return over(node, self._become)

    def _become(self, node: Node) -> Node:
        return self.settled[id(node)][1]

    def _step(self, node: Node) -> Node | None:
        kinds = type(node), type(node.inputs[0]) if node.inputs else None
        for rule in fitting(self.rules, kinds):
            started = self.trace.clock()
            better = rule.rewrite(node)
            if better is not None:
                self._hold(rule, node, better)
                self.trace.note(rule, node, better, started)
                return better
        return None

    def _hold(self, rule: Rule, before: Node, after: Node) -> None:
        """Check that a rewriting keeps the schema and that rewriting ends; tests check the rows."""
        self.steps += 1
        if before.schema.known and after.schema != before.schema:
            raise InternalError(
                f"rule {rule.name} changed the schema",
                at=before.label(),
                why=f"{before.schema} became {after.schema}",
            )
        if self.steps > STEPS_FREE + STEPS_EACH * len(self.settled):
            raise InternalError(f"rule {rule.name} does not settle", at=before.label())


@lru_cache(maxsize=4096)
def fitting(
    rules: tuple[Rule, ...], kinds: tuple[type[Node], type[Node] | None]
) -> tuple[Rule, ...]:
    """Return those of ``rules`` that may rewrite a node whose class, and that below, are ``kinds``.

    The class below is that of the first input; it is None for a source.
    """
    kind, below = kinds
    return tuple(
        rule
        for rule in rules
        if issubclass(kind, rule.kinds)
        and (not rule.over or (below is not None and issubclass(below, rule.over)))
    )
