"""This file says what a rule is: one better way to write or to run something, its law and source.

A ``Rule`` looks at one node and what is below it. A ``Pass`` looks at a whole pipeline, from its
end; a ``Lowering`` at a plan in the making: what reads, and what sees the stream above it. A
``Choice`` says in which ways a plan may be run, of which costs decide; a ``Joint`` is such a choice
about several pipelines. All of them have a name, are told in the trace, and may be switched off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dml.expr.node import Node
from dml.plan import Plan, Stage

Rewrite = Callable[[Node], "Node | None"]
# What reads, and the operators that see the stream above it.
Split = tuple[Stage, tuple[Node, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Named:
    """What all of them have: a name, a law in one sentence, and where the idea comes from."""

    name: str
    law: str
    source: str


@dataclasses.dataclass(frozen=True, eq=False)
class Rule(Named):
    """A rewrite of nodes of ``kinds``; ``absorbed`` marks laws that the normal form is made of.

    With ``over``, only of those whose first input is one of these: the others are not even tried.
    """

    kinds: tuple[type[Node], ...]
    rewrite: Rewrite
    absorbed: bool = False
    over: tuple[type[Node], ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Pass(Named):
    """A rewrite of a whole pipeline, which keeps its operators in their places."""

    rewrite: Callable[[Node], Node]


@dataclasses.dataclass(frozen=True, eq=False)
class Lowering(Named):
    """What moves from the stream, or from the steps of a stage, into reading."""

    move: Callable[[Stage, tuple[Node, ...]], Split]


@dataclasses.dataclass(frozen=True, eq=False)
class Joint(Named):
    """A choice about several pipelines that run together."""

    choose: Callable[..., object]


@dataclasses.dataclass(frozen=True, eq=False)
class Choice(Named):
    """Ways to run a plan, none of which is always best: what the plan and the machine allow."""

    ways: Callable[[Plan, Any], Any]


def rule(
    *kinds: type[Node], source: str, over: tuple[type[Node], ...] = ()
) -> Callable[[Rewrite], Rule]:
    """Make a rule of a function ``node -> better node or None``; its doc line is the law."""
    return _maker(kinds, source, over, absorbed=False)


def law(
    *kinds: type[Node], source: str, over: tuple[type[Node], ...] = ()
) -> Callable[[Rewrite], Rule]:
    """As ``rule``, for what the normal form absorbs: fingerprints do not tell the sides apart."""
    return _maker(kinds, source, over, absorbed=True)


def whole(source: str) -> Callable[[Callable[[Node], Node]], Pass]:
    """Make a pass of a function ``root -> root``; its doc line is the law."""
    return lambda fn: Pass(fn.__name__, _first_line(fn), source, fn)


def lowering(
    source: str,
) -> Callable[[Callable[[Stage, tuple[Node, ...]], Split]], Lowering]:
    """Make a lowering of a function of a stage and what is above it; its doc line is the law."""
    return lambda fn: Lowering(fn.__name__, _first_line(fn), source, fn)


def choice(source: str) -> Callable[[Callable[[Plan, Any], Any]], Choice]:
    """Make a choice of a function of a plan and a machine; its doc line is the law."""
    return lambda fn: Choice(fn.__name__, _first_line(fn), source, fn)


def _maker(
    kinds: tuple[type[Node], ...], source: str, over: tuple[type[Node], ...], *, absorbed: bool
) -> Callable[[Rewrite], Rule]:
    def make(fn: Rewrite) -> Rule:
        return Rule(fn.__name__, _first_line(fn), source, kinds, fn, absorbed, over)

    return make


def _first_line(fn: Callable[..., object]) -> str:
    return (fn.__doc__ or "").strip().split("\n")[0]
