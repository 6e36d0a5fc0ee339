"""A rule is a way to write or run a pipeline better, with its law and the source of the idea.

A ``Rule`` rewrites one node, looking at the nodes below it. A ``Pass`` rewrites a whole pipeline,
from its end. A ``Lowering`` changes an incomplete plan: its reading stage, and the operators over
the stream. A ``Choice`` lists the ways in which a plan may be run, and costs select one of them; a
``Joint`` is such a choice about several pipelines. All of them have names, are recorded in the
trace, and can be disabled.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from dml.expr.node import Node
from dml.physical.plan import Plan, Stage

Rewrite = Callable[[Node], "Node | None"]
# The stage that reads, and the operators over the stream above it.
Split = tuple[Stage, tuple[Node, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class NamedRule:
    """The base of all rules: a name, a law in one sentence, and the source of the idea."""

    name: str
    law: str
    source: str


@dataclasses.dataclass(frozen=True, eq=False)
class Rule(NamedRule):
    """A rewriting of nodes of ``kinds``; ``absorbed`` marks the laws of the normal form.

    With ``over``, the rule is only tried on nodes whose first input is of one of these kinds.
    """

    kinds: tuple[type[Node], ...]
    rewrite: Rewrite
    absorbed: bool = False
    over: tuple[type[Node], ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Pass(NamedRule):
    """A rewrite of a whole pipeline, which keeps its operators in their places."""

    rewrite: Callable[[Node], Node]


@dataclasses.dataclass(frozen=True, eq=False)
class Lowering(NamedRule):
    """A move of operators from the stream, or from a stage's steps, into reading the source."""

    move: Callable[[Stage, tuple[Node, ...]], Split]


@dataclasses.dataclass(frozen=True, eq=False)
class Joint(NamedRule):
    """A choice among the ways to run several pipelines together."""

    choose: Callable[..., object]


@dataclasses.dataclass(frozen=True, eq=False)
class Choice(NamedRule):
    """The ways to run a plan that the plan and the machine allow, none of which is always best."""

    ways: Callable[[Plan, Any], Any]


def rule(
    *kinds: type[Node], source: str, over: tuple[type[Node], ...] = (), absorbed: bool = False
) -> Callable[[Rewrite], Rule]:
    """Turn a function ``node -> better node or None``, whose docstring is the law, into a rule."""
    return lambda fn: Rule(fn.__name__, _first_line(fn), source, kinds, fn, absorbed, over)


# As ``rule``, for laws of the normal form: fingerprints do not distinguish the two sides.
law = functools.partial(rule, absorbed=True)


def whole(source: str) -> Callable[[Callable[[Node], Node]], Pass]:
    """Turn a function ``root -> root``, whose docstring is the law, into a pass."""
    return lambda fn: Pass(fn.__name__, _first_line(fn), source, fn)


def lowering(
    source: str,
) -> Callable[[Callable[[Stage, tuple[Node, ...]], Split]], Lowering]:
    """Turn a function of a stage and its stream, whose docstring is the law, into a lowering."""
    return lambda fn: Lowering(fn.__name__, _first_line(fn), source, fn)


def choice(source: str) -> Callable[[Callable[[Plan, Any], Any]], Choice]:
    """Turn a function of a plan and a machine, whose docstring is the law, into a choice."""
    return lambda fn: Choice(fn.__name__, _first_line(fn), source, fn)


def _first_line(fn: Callable[..., object]) -> str:
    return (fn.__doc__ or "").strip().split("\n")[0]
