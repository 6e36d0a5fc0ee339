"""Interval arithmetic bounds integer expressions, and finds overflow checks that cannot fail.

Bounds are those of Python's unlimited integers. If all checks of an expression are false in a row,
its value equals Python's; otherwise the row is computed by Python. So proofs about Python's values
hold for every returned row.

Source: interval arithmetic (Moore, 1966), as compilers use it to eliminate bounds checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from dml.data.schema import Schema
from dml.expr.columns.value import Value, joined, operands

# float64 holds every integer up to this one exactly
EXACT = 2**53
# Deeper expressions have no bounds: the recursion takes a few stack frames per operation.
DEEPEST = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of an integer expression that is never null: ``low`` and ``high``, both inclusive."""

    low: int
    high: int

    def inside(self, low: int, high: int) -> bool:
        """Return True if every number of the interval is from ``low`` to ``high``, inclusive."""
        return low <= self.low and self.high <= high

    @property
    def fits(self) -> bool:
        """True if every number of the interval fits into int64."""
        return self.inside(-(2**63), 2**63 - 1)


# Intervals of columns; a column that is missing has no known bounds.
Known = Mapping[str, Interval]


def interval(value: Value, known: Known) -> Interval | None:
    """Return the interval of ``value`` over all rows, given those of columns; None if unknown."""
    return _Reading(known).of(value)


def left(checks: Sequence[Value], known: Known) -> tuple[Value, ...]:
    """Return ``checks`` without the parts that are proven to be false in every row."""
    reading = _Reading(known)
    return tuple(found for check in checks if (found := reading.left(check)) is not None)


def passed_on(env: Sequence[tuple[str, Value]], schema: Schema, known: Known) -> Known:
    """Return the known intervals of the int64 columns in ``env``, which has (name, value) pairs.

    ``schema`` has the types of these columns, ``known`` the intervals of the columns they read.
    """
    reading = _Reading(known)
    found = ((name, reading.of(value)) for name, value in env if schema[name] == pa.int64())
    return {name: bounds for name, bounds in found if bounds is not None}


class _Reading:
    """One traversal of expressions; ``known`` has the intervals of some of the columns."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.memo: dict[int, Interval | None] = {}

    def of(self, value: Value) -> Interval | None:
        """Return the interval of ``value``, or None; shared subexpressions are evaluated once."""
        if value.depth > DEEPEST:
            return None
        if id(value) not in self.memo:
            self.memo[id(value)] = self._derive(value)
        return self.memo[id(value)]

    def _derive(self, value: Value) -> Interval | None:
        if value.op == "col":
            return self.known.get(value.params[0])
        if value.op == "lit":
            number, kind = value.params
            same = type(number) is int and kind == pa.int64()
            return Interval(number, number) if same else None
        if value.op == "cast":
            found = self.of(value.args[0])
            return found if value.params[0] == pa.int64() else None
        if value.op not in ARITHMETIC:
            return None
        given = [found for arg in value.args if (found := self.of(arg)) is not None]
        return ARITHMETIC[value.op](*given) if len(given) == len(value.args) else None

    def left(self, check: Value) -> Value | None:
        """Return ``check`` without parts proven false; None if all of it is false in every row."""
        parts = list(operands([check], "or"))
        kept = [part for part in parts if not self._never(part)]
        if len(kept) == len(parts):
            return check
        return joined("or", kept) if kept else None

    def _never(self, check: Value) -> bool:
        """Return True if ``check`` is proven to be false in every row."""
        if check.op == "lit" or check.depth > DEEPEST:
            return check.op == "lit" and check.params[0] is False
        if check.op == "and":
            return any(self.left(arg) is None for arg in check.args)
        given = [found for arg in check.args if (found := self.of(arg)) is not None]
        if check.op == "is_null":
            return len(given) == 1
        never = NEVER.get(check.op)
        return never is not None and len(given) == len(check.args) and never(*given)


def _spanned(*numbers: int) -> Interval:
    return Interval(min(numbers), max(numbers))


def _add(a: Interval, b: Interval) -> Interval:
    return Interval(a.low + b.low, a.high + b.high)


def _sub(a: Interval, b: Interval) -> Interval:
    return Interval(a.low - b.high, a.high - b.low)


def _mul(a: Interval, b: Interval) -> Interval:
    return _spanned(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)


def _neg(a: Interval) -> Interval:
    return Interval(-a.high, -a.low)


def _abs(a: Interval) -> Interval:
    if a.low <= 0 <= a.high:
        return Interval(0, max(-a.low, a.high))
    return _spanned(abs(a.low), abs(a.high))


def _never_zero(a: Interval) -> bool:
    return a.low > 0 or a.high < 0


def _floor_division(a: Interval, b: Interval) -> Interval | None:
    """Return the interval of ``a // b``; None if ``b`` may be 0.

    On either side of zero the quotient is monotonic in each operand, with extremes at the ends.
    """
    if not _never_zero(b):
        return None
    return _spanned(a.low // b.low, a.low // b.high, a.high // b.low, a.high // b.high)


def _mod(a: Interval, b: Interval) -> Interval | None:
    """Return the interval of ``a % b``, which has the sign of ``b``; None if ``b`` may be 0."""
    if not _never_zero(b):
        return None
    if a.low >= 0 and b.low > a.high:
        return a
    return Interval(0, b.high - 1) if b.low > 0 else Interval(b.low + 1, 0)


ARITHMETIC: dict[str, Callable[..., Interval | None]] = {
    "py_add": _add,
    "py_sub": _sub,
    "py_mul": _mul,
    "py_neg": _neg,
    "py_abs": _abs,
    "py_floordiv": _floor_division,
    "py_mod": _mod,
}

NEVER: dict[str, Callable[..., bool]] = {
    "overflow_add": lambda a, b: _add(a, b).fits,
    "overflow_sub": lambda a, b: _sub(a, b).fits,
    "overflow_mul": lambda a, b: _mul(a, b).fits,
    "overflow_neg": lambda a: _neg(a).fits,
    "overflow_abs": lambda a: _abs(a).fits,
    "overflow_floordiv": lambda a, b: (q := _floor_division(a, b)) is not None and q.fits,
    "overflow_mod": lambda a, b: _never_zero(b) and a.fits,
    "overflow_truediv": lambda a, b: (
        _never_zero(b) and a.inside(-EXACT, EXACT) and b.inside(-EXACT, EXACT)
    ),
}
