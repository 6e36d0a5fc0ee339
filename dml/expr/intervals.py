"""This file says between which bounds the values of an expression lie, and which checks never hold.

Bounds are those of Python's whole numbers, which have no end: an expression whose checks are false
in a row has Python's value there. A row in which a check is true is computed by Python, so what
is proven of Python's values holds for every row that is given out.

Source: interval arithmetic (Moore, 1966), as compilers use it to drop tests of bounds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from dml.expr.schema import Schema
from dml.expr.value import Value

# float64 holds every integer up to here
EXACT = 2**53
# Of deeper expressions nothing is known: one that is taken apart costs a few frames an operation.
DEEPEST = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from ``low`` to ``high``, both possible as far as is known; never null."""

    low: int
    high: int

    def inside(self, low: int, high: int) -> bool:
        """True if every number lies from ``low`` to ``high``."""
        return low <= self.low and self.high <= high

    @property
    def fits(self) -> bool:
        """True if int64 holds every number."""
        return self.inside(-(2**63), 2**63 - 1)


# What is known of each column: nothing, unless it is here.
Known = Mapping[str, Interval]


def interval(value: Value, known: Known) -> Interval | None:
    """Between which whole numbers ``value`` lies in every row; None where that is not known."""
    return _Reading(known).of(value)


def left(checks: Sequence[Value], known: Known) -> tuple[Value, ...]:
    """What is left of ``checks`` without the parts that hold in no row."""
    reading = _Reading(known)
    return tuple(found for check in checks if (found := reading.left(check)) is not None)


def passed_on(env: Sequence[tuple[str, Value]], schema: Schema, known: Known) -> Known:
    """What is known of the columns ``env``, of the types of ``schema``, made of ``known`` ones."""
    reading = _Reading(known)
    found = ((name, reading.of(value)) for name, value in env if schema[name] == pa.int64())
    return {name: bounds for name, bounds in found if bounds is not None}


class _Reading:
    """One walk through expressions over columns of which something is known."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.memo: dict[int, Interval | None] = {}

    def of(self, value: Value) -> Interval | None:
        """As ``interval``; shared parts are looked at once."""
        if value.depth > DEEPEST:
            return None
        if id(value) not in self.memo:
            self.memo[id(value)] = self._found(value)
        return self.memo[id(value)]

    def _found(self, value: Value) -> Interval | None:
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
        """What is left of one check."""
        parts = list(_alternatives(check))
        kept = [part for part in parts if not self._never(part)]
        if len(kept) == len(parts):
            return check
        return functools.reduce(lambda a, b: Value("or", (a, b)), kept) if kept else None

    def _never(self, check: Value) -> bool:
        """True if ``check`` is false in every row."""
        if check.op == "lit" or check.depth > DEEPEST:
            return check.op == "lit" and check.params[0] is False
        if check.op == "and":
            return any(self.left(arg) is None for arg in check.args)
        given = [found for arg in check.args if (found := self.of(arg)) is not None]
        if check.op == "is_null":
            return len(given) == 1
        never = NEVER.get(check.op)
        return never is not None and len(given) == len(check.args) and never(*given)


def _alternatives(check: Value) -> Iterator[Value]:
    """The parts one of which must be true, left to right, however many."""
    waiting = [check]
    while waiting:
        part = waiting.pop()
        if part.op == "or":
            waiting += reversed(part.args)
        else:
            yield part


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
    """A quotient is monotonous in each operand on either side of zero."""
    if not _never_zero(b):
        return None
    return _spanned(a.low // b.low, a.low // b.high, a.high // b.low, a.high // b.high)


def _mod(a: Interval, b: Interval) -> Interval | None:
    """A remainder has the sign of the divisor, and is smaller."""
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
