"""This file finds rows and columns in others: which filter implies which, what is made of what.

All of it is sure or not said: a filter implies another if it is the same, or if both compare one
value with constants of one type. Source: answering queries using views, Halevy 2001, as far as
single conjuncts and values by name go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dml.expr.fingerprint import digest
from dml.expr.relation import CALL, Columns, Naming
from dml.expr.value import KEYED, MIRRORED, Value

# What is compared with a constant, seen from the value.
TURNED = {"lt": "gt", "le": "ge", "eq": "eq"}
SURE_INT = 1 << 53  # beyond which two whole numbers may be one as floating-point ones
ROOTS = frozenset({"col", CALL, *KEYED})


class Conjunct(NamedTuple):
    """One filter as it can be written down: a name, and what it compares with which number."""

    name: str
    value: str = ""
    op: str = ""
    bound: float = 0.0

    @staticmethod
    def of(part: Value, naming: Naming) -> Conjunct:
        """What is to be known of a filter."""
        name = naming(part)
        op, args = part.op, part.args
        if op in MIRRORED:
            op, args = MIRRORED[op], args[::-1]
        if op not in TURNED or part.params:
            return Conjunct(name)
        if args[0].op == "lit":
            op, args = TURNED[op], args[::-1]
        value, bound = args
        if bound.op != "lit" or value.op == "lit" or not _sure(bound.params[0]):
            return Conjunct(name)
        number, kind = bound.params
        against = digest(naming(value), type(number).__name__, kind).hex()
        return Conjunct(name, against, op, number)

    @property
    def kept(self) -> Conjunct:
        """What is written down of a filter that stored rows passed: no number that none asks for.

        Other filters may imply a range, so its bound is needed; a value only its own name finds.
        """
        return Conjunct(self.name) if self.op == "eq" else self

    def implies(self, other: Conjunct) -> bool:
        """True if every row that passes this one passes ``other``."""
        if self.name == other.name:
            return True
        if not self.op or self.value != other.value:
            return False
        more, less = _apart(self.bound, other.bound)
        same = self.bound == other.bound
        match other.op:
            case "gt":
                return self.op in ("gt", "ge", "eq") and (more or (same and self.op == "gt"))
            case "ge":
                return self.op in ("gt", "ge", "eq") and (more or same)
            case "lt":
                return self.op in ("lt", "le", "eq") and (less or (same and self.op == "lt"))
            case "le":
                return self.op in ("lt", "le", "eq") and (less or same)
        return False


def _apart(one: float, other: float) -> tuple[bool, bool]:
    """Whether ``one`` is more than the other, and whether it is less, whatever they become.

    A column of float32 makes one number of two that are close to each other.
    """
    with np.errstate(over="ignore"):
        single = np.float32(one), np.float32(other)
    return one > other and bool(single[0] > single[1]), one < other and bool(single[0] < single[1])


def _sure(number: Any) -> bool:
    """True for constants that are never out of order, whatever they are converted to."""
    if type(number) is int:
        return abs(number) < SURE_INT
    return type(number) is float and math.isfinite(number)


def implied(stored: Iterable[Conjunct], asked: Sequence[Conjunct]) -> bool:
    """True if all rows that pass what is ``asked`` are among those that passed what is stored."""
    return all(any(mine.implies(theirs) for mine in asked) for theirs in stored)


class Made(NamedTuple):
    """How stored columns become others: filters, then a value for each name, over stored names."""

    residual: tuple[Value, ...]
    columns: Columns

    @property
    def plain(self) -> bool:
        """True if nothing is computed: columns are handed on, under other names perhaps."""
        return not self.residual and all(value.op == "col" for _, value in self.columns)


def made_of(
    stored: Mapping[str, str],
    passed: Iterable[str],
    predicate: Sequence[Value],
    columns: Columns,
    naming: Naming,
) -> Made | None:
    """What becomes of ``stored`` columns (names in the store by names of values).

    Their rows have ``passed`` filters of these names. None if a filter that is left needs what is
    not stored; of the columns, those that can be had.
    """
    passed, rewriting = frozenset(passed), _Rewriting(stored, naming)
    residual = []
    for part in predicate:
        if naming(part) not in passed:
            made = rewriting.of(part)
            if made is None or not made.total:
                return None
            residual.append(made)
    found = ((name, rewriting.of(value)) for name, value in columns)
    return Made(tuple(residual), tuple((name, v) for name, v in found if v is not None and v.total))


class _Rewriting:
    """Values over the columns of others as values over stored ones."""

    def __init__(self, stored: Mapping[str, str], naming: Naming) -> None:
        self._stored, self._naming = stored, naming
        self._memo: dict[int, Value | None] = {}

    def of(self, value: Value) -> Value | None:
        """The same value over stored columns; None if it needs another one."""
        if id(value) not in self._memo:
            self._memo[id(value)] = self._made(value)
        return self._memo[id(value)]

    def _made(self, value: Value) -> Value | None:
        constant = not value.refs and not value.draws  # which take their type from what they meet
        name = None if constant else self._stored.get(self._naming(value))
        if name is not None:
            return Value("col", (), (name,))
        if value.op in ROOTS:
            return None
        args = [self.of(arg) for arg in value.args]
        known = tuple(arg for arg in args if arg is not None)
        return Value(value.op, known, value.params) if len(known) == len(args) else None
