"""This file says what a rule is: one better way to write one operator, with its law and source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from dml.expr.node import Node

Rewrite = Callable[[Node], "Node | None"]


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite of nodes of ``kinds``; ``absorbed`` marks laws that the normal form is made of."""

    name: str
    law: str
    source: str
    kinds: tuple[type[Node], ...]
    rewrite: Rewrite
    absorbed: bool = False


def rule(*kinds: type[Node], source: str) -> Callable[[Rewrite], Rule]:
    """Make a rule of a function ``node -> better node or None``; its doc line is the law."""
    return _maker(kinds, source, absorbed=False)


def law(*kinds: type[Node], source: str) -> Callable[[Rewrite], Rule]:
    """As ``rule``, for what the normal form absorbs: fingerprints do not tell the sides apart."""
    return _maker(kinds, source, absorbed=True)


def _maker(
    kinds: tuple[type[Node], ...], source: str, *, absorbed: bool
) -> Callable[[Rewrite], Rule]:
    def make(fn: Rewrite) -> Rule:
        text = (fn.__doc__ or "").strip().split("\n")[0]
        return Rule(fn.__name__, text, source, kinds, fn, absorbed)

    return make
