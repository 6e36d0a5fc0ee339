"""Math functions are written as sequences of IEEE basic operations in a small language.

A function is traced once over :class:`StepValue` handles and frozen into a :class:`StepTable`: a
list of steps in single assignment form, each reading earlier steps. The table is the published
meaning of the function. Three evaluators read it and must agree in every bit: the NumPy evaluator
of blocks, the source text for numba, and the scalar evaluator of the oracle.

Types of values: ``f4 f8`` (IEEE, round to nearest even), ``u4 u8`` (integers modulo a power of
two), ``b1``.

Operations, all on operands of one type unless said otherwise:

====================  ==========================================================================
``input`` ``const``   the argument; a literal (for ``lookup`` tables: a tuple of literals)
``add sub mul``       floats: rounded once, never contracted; integers: modulo 2**32 or 2**64
``div neg abs``       floats only
``and or xor``        integers, bit by bit
``shl shr``           integers, by a count below the width; ``shr`` brings in zeros
``lt le eq``          floats (false with NaN) or integers (as unsigned) -> ``b1``
``select``            (b1, a, b): a where true, else b
``patch``             (b1, a, b): the value of ``select``; the condition is true for usual
                      arguments: where it holds for a whole block, b need not be computed
``bits`` ``float``    reinterpret f4 as u4, f8 as u8, and back
``widen`` ``narrow``  f4 -> f8 (exact), f8 -> f4 (rounded once)
``lookup``            (index u8, table): the entry of a constant table; the index is always inside
====================  ==========================================================================

There is no square root, no fused operation, no library call: nothing whose result may depend on the
CPU.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

Literal = float | int | tuple[int, ...]

UNSIGNED = {"f4": "u4", "f8": "u8"}
FLOATING = {"u4": "f4", "u8": "f8"}
_LAYOUTS = {"f4": ("<f", "<I"), "f8": ("<d", "<Q")}


class MathStep(NamedTuple):
    """One operation: the steps it reads, the type of its result, the literal of a ``const``."""

    op: str
    args: tuple[int, ...]
    code: str
    literal: Literal = 0


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """One math function in one float type: step 0 is the argument, the last step is the result.

    ``ulp`` is the stated bound on the error against the exact value, in units in the last place of
    the result.
    """

    name: str
    code: str
    steps: tuple[MathStep, ...]
    ulp: float


def _left(op: str, code: str = "") -> Callable[[StepValue, StepValue | float], StepValue]:
    """Return the method for ``self op other``; ``code`` is its type, by default self's."""
    return lambda self, other: self.trace.binary(op, self, other, code)


def _right(op: str) -> Callable[[StepValue, float], StepValue]:
    """Return the method for ``other op self``, where ``other`` is a number."""
    return lambda self, other: self.trace.binary(op, self.trace.lift(other, self.code), self)


@dataclass(frozen=True, slots=True, eq=False)
class StepValue:
    """A handle on one step of a table being traced; Python operators append steps."""

    trace: StepTrace
    index: int
    code: str

    __add__, __radd__ = _left("add"), _right("add")
    __sub__, __rsub__ = _left("sub"), _right("sub")
    __mul__, __rmul__ = _left("mul"), _right("mul")
    __truediv__, __rtruediv__ = _left("div"), _right("div")
    __and__, __or__, __xor__ = _left("and"), _left("or"), _left("xor")
    __lshift__, __rshift__ = _left("shl"), _left("shr")
    __lt__, __le__ = _left("lt", "b1"), _left("le", "b1")

    def __neg__(self) -> StepValue:
        return self.trace.append("neg", (self,), self.code)

    def __abs__(self) -> StepValue:
        return self.trace.append("abs", (self,), self.code)

    def equals(self, other: StepValue | float) -> StepValue:
        """Return the b1 step that compares both (IEEE for floats)."""
        return self.trace.binary("eq", self, other, "b1")

    def bits(self) -> StepValue:
        """Return the float's bits as an integer."""
        literal = self.trace.steps[self.index].literal
        if self.trace.steps[self.index].op == "const" and isinstance(literal, float):
            as_float, as_integer = _LAYOUTS[self.code]
            (bits,) = struct.unpack(as_integer, struct.pack(as_float, literal))
            return self.trace.constant(bits, UNSIGNED[self.code])
        return self.trace.append("bits", (self,), UNSIGNED[self.code])

    def from_bits(self) -> StepValue:
        """Return the float with these bits."""
        return self.trace.append("float", (self,), FLOATING[self.code])

    def widen(self) -> StepValue:
        """Return this f4 as f8."""
        return self.trace.append("widen", (self,), "f8")

    def narrow(self) -> StepValue:
        """Return this f8 rounded to f4."""
        return self.trace.append("narrow", (self,), "f4")

    def lookup(self, table: tuple[int, ...]) -> StepValue:
        """Return the entry of ``table`` (u8) at this index (u8)."""
        return self.trace.append("lookup", (self, self.trace.constant(table, "u8")), "u8")

    def select(self, yes: StepValue | float, no: StepValue | float) -> StepValue:
        """Return ``yes`` where this b1 is true, else ``no``."""
        return self.trace.choose("select", self, yes, no)

    def patch(self, usual: StepValue, special: StepValue | float) -> StepValue:
        """Return ``usual`` where this b1, true for usual arguments, is true, else ``special``."""
        return self.trace.choose("patch", self, usual, special)


class StepTrace:
    """The steps of one table while it is being traced; equal steps are shared."""

    def __init__(self) -> None:
        self.steps: list[MathStep] = []
        self._known: dict[tuple[object, ...], StepValue] = {}

    def append(
        self, op: str, args: tuple[StepValue, ...], code: str, literal: Literal = 0
    ) -> StepValue:
        """Add a step, or return the equal step that exists already."""
        step = MathStep(op, tuple(arg.index for arg in args), code, literal)
        # repr tells -0.0 from 0.0 and finds NaN equal to itself.
        key = (op, step.args, code, repr(literal))
        if key not in self._known:
            self.steps.append(step)
            self._known[key] = StepValue(self, len(self.steps) - 1, code)
        return self._known[key]

    def constant(self, literal: Literal, code: str) -> StepValue:
        """Add a literal of the given type."""
        return self.append("const", (), code, literal)

    def lift(self, value: StepValue | float, code: str) -> StepValue:
        """Return ``value`` itself, or a Python number as a literal that is exact in ``code``."""
        if isinstance(value, StepValue):
            if value.code != code:
                raise TypeError(f"{value.code} meets {code}")
            return value
        if code in FLOATING:
            return self.constant(int(value) % (1 << 8 * int(code[1])), code)
        exact = float(value)
        if (
            code == "f4"
            and exact == exact
            and struct.unpack("<f", struct.pack("<f", exact))[0] != exact
        ):
            raise ValueError(f"{exact!r} is not a float32")
        return self.constant(exact, code)

    def binary(
        self, op: str, left: StepValue, right: StepValue | float, code: str = ""
    ) -> StepValue:
        """Add the step ``left op right``; ``code`` is its type, by default that of ``left``."""
        return self.append(op, (left, self.lift(right, left.code)), code or left.code)

    def choose(
        self, op: str, condition: StepValue, yes: StepValue | float, no: StepValue | float
    ) -> StepValue:
        """Add a ``select`` or ``patch``; one of the two arms must be a :class:`StepValue`."""
        code = (
            yes.code if isinstance(yes, StepValue) else no.code if isinstance(no, StepValue) else ""
        )
        return self.append(op, (condition, self.lift(yes, code), self.lift(no, code)), code)


def trace(name: str, code: str, body: Callable[[StepValue], StepValue], ulp: float) -> StepTable:
    """Run ``body`` once over a handle of type ``code`` and freeze the steps its result needs."""
    tracer = StepTrace()
    result = body(tracer.append("input", (), code))
    if result.code != code:
        raise TypeError(f"{name} returns {result.code}, not {code}")
    kept = _find_dependencies(tracer.steps, result.index)
    place = {old: new for new, old in enumerate(kept)}
    steps = tuple(
        step._replace(args=tuple(place[arg] for arg in step.args))
        for step in (tracer.steps[old] for old in kept)
    )
    return StepTable(name, code, steps, ulp)


def _find_dependencies(steps: list[MathStep], last: int) -> list[int]:
    """Return the indices of the steps that ``last`` depends on, ascending, from 0 to ``last``."""
    wanted, open_ = {0, last}, [last]
    while open_:
        for arg in steps[open_.pop()].args:
            if arg not in wanted:
                wanted.add(arg)
                open_.append(arg)
    return sorted(wanted)
