"""This file applies rules until none fires, holds them to their promises, and writes the trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from dml.errors import InternalError
from dml.expr.node import Node
from dml.optimize.rule import Rule

Clock = Callable[[], float]
# A node that is rewritten more often than this goes in circles.
MOST_STEPS = 1000


def no_clock() -> float:
    """Stands for a clock where nobody asks how long rules take."""
    return 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Applied:
    """One rewriting: which rule, what it saw, what it made, how long it took."""

    rule: str
    law: str
    source: str
    before: str
    after: str
    micros: float


@dataclasses.dataclass
class Trace:
    """Every rewriting of one optimization, in order."""

    clock: Clock = no_clock
    applied: list[Applied] = dataclasses.field(default_factory=list)

    def note(self, rule: Rule, before: Node, after: Node, started: float) -> None:
        """Remember that ``rule`` made ``after`` of ``before``."""
        micros = (self.clock() - started) * 1e6
        entry = Applied(rule.name, rule.law, rule.source, before.title(), after.title(), micros)
        self.applied.append(entry)

    def names(self) -> list[str]:
        """Rules in order of use."""
        return [entry.rule for entry in self.applied]


class Engine:
    """Rewrites with a set of rules that may fire in any order."""

    def __init__(self, rules: Sequence[Rule], trace: Trace) -> None:
        self.rules, self.trace = tuple(rules), trace
        self.by_kind: dict[type[Node], tuple[Rule, ...]] = {}
        self.settled: dict[int, Node] = {}  # by id; the values keep the keys alive
        self.steps = 0

    def rewrite(self, root: Node) -> Node:
        """The node with no rule left to fire in it."""
        done: dict[int, Node] = {}
        for node in root.walk():
            inputs_done = node.map_inputs(lambda child: done[id(child)])
            done[id(node)] = self._settle(inputs_done)
        return done[id(root)]

    def _settle(self, node: Node) -> Node:
        """``node`` over settled inputs, with no rule left to fire at it or at what it becomes."""
        if id(node) in self.settled:
            return node
        while (better := self._step(node)) is not None:
            node = better.map_inputs(self._settle)
        self.settled[id(node)] = node
        return node

    def _step(self, node: Node) -> Node | None:
        for rule in self._rules_for(type(node)):
            started = self.trace.clock()
            better = rule.rewrite(node)
            if better is not None:
                self._hold(rule, node, better)
                self.trace.note(rule, node, better, started)
                return better
        return None

    def _rules_for(self, kind: type[Node]) -> tuple[Rule, ...]:
        found = self.by_kind.get(kind)
        if found is None:
            found = tuple(rule for rule in self.rules if issubclass(kind, rule.kinds))
            self.by_kind[kind] = found
        return found

    def _hold(self, rule: Rule, before: Node, after: Node) -> None:
        """Promises: same schema, and an end. Same rows is held in tests, against the oracle."""
        self.steps += 1
        if before.schema.known and after.schema != before.schema:
            raise InternalError(
                f"rule {rule.name} changed the schema",
                at=before.label(),
                why=f"{before.schema} became {after.schema}",
            )
        if self.steps > MOST_STEPS + 50 * len(self.settled):
            raise InternalError(f"rule {rule.name} does not settle", at=before.label())
