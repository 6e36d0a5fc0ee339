"""Filters are tested for implication, and columns are derived from stored columns.

A filter implies another filter if both are equal, or if both compare the same value with constants
of one type; other implications are not found. Source: answering queries using views, Halevy 2001,
limited to single conjuncts and to values of equal names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dml.base.fingerprint import digest
from dml.expr.columns.value import KEYED, MIRRORED, Value
from dml.ops.relation import CALL, Columns, Naming

# Comparisons of a constant with a value, as comparisons of the value with the constant.
TURNED = {"lt": "gt", "le": "ge", "eq": "eq"}
SURE_INT = 1 << 53  # beyond it, two whole numbers may be equal as floats
ROOTS = frozenset({"col", CALL, *KEYED})


class Conjunct(NamedTuple):
    """One of the filters of a relation, and the constant with which it compares a value, if any.

    ``value`` is a digest of the compared value and the constant's type, "" for any other filter.
    ``bound`` is the constant.
    """

    name: str
    value: str = ""
    op: str = ""
    bound: float = 0.0

    @staticmethod
    def of(part: Value, naming: Naming) -> Conjunct:
        """Return the conjunct for the filter ``part``."""
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
    def stored_form(self) -> Conjunct:
        """Return the conjunct to store for rows that passed: for "eq", only the filter's name.

        A range is stored with its constant, since filters of other names may imply it; an equality
        is implied only by a filter of the same name.
        """
        return Conjunct(self.name) if self.op == "eq" else self

    def implies(self, other: Conjunct) -> bool:
        """Return True if every row that passes this filter passes ``other``."""
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
    """Return ``one`` > ``other`` and ``one`` < ``other``, each only if it holds in float32, too."""
    with np.errstate(over="ignore"):
        single = np.float32(one), np.float32(other)
    return one > other and bool(single[0] > single[1]), one < other and bool(single[0] < single[1])


def _sure(number: Any) -> bool:
    """Return True for constants whose order no conversion changes."""
    if type(number) is int:
        return abs(number) < SURE_INT
    return type(number) is float and math.isfinite(number)


def implied(stored: Iterable[Conjunct], asked: Sequence[Conjunct]) -> bool:
    """Return True if every row that passes ``asked`` has also passed ``stored``."""
    return all(any(mine.implies(theirs) for mine in asked) for theirs in stored)


class Derivation(NamedTuple):
    """The filters still to be applied to stored rows, and an expression for each column."""

    residual: tuple[Value, ...]
    columns: Columns

    @property
    def plain(self) -> bool:
        """True if no value is computed: columns are passed on, perhaps under other names."""
        return not self.residual and all(value.op == "col" for _, value in self.columns)


def made_of(
    stored: Mapping[str, str],
    passed: Iterable[str],
    predicate: Sequence[Value],
    columns: Columns,
    naming: Naming,
) -> Derivation | None:
    """Return how ``columns`` of rows that pass ``predicate`` are derived from ``stored`` columns.

    ``stored`` maps names of values to names in the store; its rows have passed the filters named
    ``passed``. Return None if a remaining filter needs a value that is not stored, or may fail.
    Columns that need such a value, or may fail, are omitted.
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
    return Derivation(
        tuple(residual), tuple((name, v) for name, v in found if v is not None and v.total)
    )


class _Rewriting:
    """Rewrites values over a pipeline's columns as values over stored columns."""

    def __init__(self, stored: Mapping[str, str], naming: Naming) -> None:
        self._stored, self._naming = stored, naming
        self._memo: dict[int, Value | None] = {}

    def of(self, value: Value) -> Value | None:
        """Return the value over stored columns; None if it needs a value that is not stored."""
        if id(value) not in self._memo:
            self._memo[id(value)] = self._rewrite(value)
        return self._memo[id(value)]

    def _rewrite(self, value: Value) -> Value | None:
        constant = not value.refs and not value.draws  # has the type of the other operand
        name = None if constant else self._stored.get(self._naming(value))
        if name is not None:
            return Value("col", (), (name,))
        if value.op in ROOTS:
            return None
        args = [self.of(arg) for arg in value.args]
        known = tuple(arg for arg in args if arg is not None)
        return Value(value.op, known, value.params) if len(known) == len(args) else None
