"""This file computes with values of a traced row: expressions that mean what Python means.

A ``Traced`` is a value of the row, or something computed from it: a value expression and the kind
of its Python value. Every operator notes as a check where the expression would not be Python's
result: null operands, integers beyond 64 bits, zero divisors, integers that float64 cannot hold
where Python compares or divides exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa

from dml.expr.trace import Tracer, UnliftableError
from dml.expr.value import Value, lit

INT64 = range(-(2**63), 2**63)
EXACT = 2**53  # float64 holds every integer up to here
KINDS: dict[str, pa.DataType] = {
    "i": pa.int64(),
    "f": pa.float64(),
    "b": pa.bool_(),
    "s": pa.string(),
}


class Traced:
    """A value of the row or computed from it: ``kind`` is i(nt), f(loat), b(ool) or s(tr).

    ``source`` is the column that it is read from, which may be null; None for computed values,
    whose operands were checked.
    """

    __slots__ = ("kind", "source", "tracer", "value")

    def __init__(
        self, tracer: Tracer, value: Value, kind: str, source: Value | None = None
    ) -> None:
        tracer.count()
        self.tracer, self.value, self.kind, self.source = tracer, value, kind, source

    def used(self) -> Traced:
        """This value as an operand: Python would raise, or differ, if it were null."""
        if self.source is not None:
            self.tracer.check(Value("is_null", (self.source,)))
        return self

    def made(self, op: str, *args: Value, kind: str, params: tuple[Any, ...] = ()) -> Traced:
        """A computed value."""
        return Traced(self.tracer, Value(op, args, params), kind)

    def cast(self, kind: str) -> Traced:
        """The same number in another kind, where every value has one (or is null)."""
        if kind == self.kind:
            return self
        return self.made("cast", self.value, kind=kind, params=(KINDS[kind], False))

    def number(self) -> Traced:
        """This value as Python computes with it: True is 1."""
        if self.kind == "s":
            raise UnliftableError("it computes with text")
        return self.used().cast("i") if self.kind == "b" else self.used()

    def operand(self, other: object) -> Traced | None:
        """What the other side of an operator is; None if Python would not know it either."""
        if isinstance(other, Traced):
            return other
        kind = {bool: "b", int: "i", float: "f", str: "s"}.get(type(other), "")
        if kind == "i" and other not in INT64:
            raise UnliftableError("it uses an integer beyond 64 bits")
        return Traced(self.tracer, lit(other, KINDS[kind]), kind) if kind else None

    def __bool__(self) -> bool:
        if self.source is not None and self.tracer.ask(Value("is_null", (self.source,))):
            return False
        return self.tracer.ask(truth(self))

    def __pos__(self) -> Traced:
        return self.number()

    def __neg__(self) -> Traced:
        return unary("neg", self)

    def __abs__(self) -> Traced:
        return unary("abs", self)

    def __invert__(self) -> Traced:
        if self.kind != "i":
            raise UnliftableError("it inverts the bits of something that is not an integer")
        return self.made("bit_not", self.used().value, kind="i")

    def __pow__(self, exponent: object, modulo: object = None) -> Traced:
        if self.kind not in "ib" or type(exponent) is not int or modulo is not None:
            raise UnliftableError("a power of floats is computed by the C library")
        if not 1 <= exponent <= 16:
            raise UnliftableError("it raises an integer to a power other than 1 to 16")
        base = result = self.number()
        for _ in range(exponent - 1):
            result = arithmetic("mul", result, base)
        return result

    def __rpow__(self, base: object) -> NoReturn:
        raise UnliftableError("it raises to a power that depends on the row")

    def __round__(self, digits: object = None) -> Traced:
        if digits is not None:
            raise UnliftableError("it rounds to decimals, which Python does exactly")
        return self.whole("round", (0,))

    def __floor__(self) -> Traced:
        return self.whole("floor")

    def __ceil__(self) -> Traced:
        return self.whole("ceil")

    def __trunc__(self) -> Traced:
        return self.whole("trunc")

    def whole(self, op: str, params: tuple[Any, ...] = ()) -> Traced:
        """A float as an int, which Python makes as large as need be, and not of NaN or inf."""
        this = self.number()
        if this.kind == "i":
            return this
        rounded = this.made(op, this.value, kind="f", params=params)
        low, high = lit(-(2.0**63), KINDS["f"]), lit(2.0**63, KINDS["f"])
        inside = Value(
            "and", (Value("ge", (rounded.value, low)), Value("lt", (rounded.value, high)))
        )
        self.tracer.check(Value("not", (inside,)))
        return rounded.cast("i")

    def __eq__(self, other: object) -> Any:
        return equality("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return equality("ne", self, other)

    def _no(self, *_: object) -> NoReturn:
        raise UnliftableError("it needs the plain value, to format, index, look up or hash it")

    def _no_float(self) -> NoReturn:
        raise UnliftableError("it calls a function of the C library, whose last bits are its own")

    __float__ = _no_float
    __int__ = __index__ = __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _no
    __str__ = __repr__ = __format__ = __complex__ = _no
    __hash__ = _no

    def __getattr__(self, name: str) -> NoReturn:
        raise UnliftableError(f"it uses .{name} of a value of the row")


def truth(this: Traced) -> Value:
    """The question that ``bool`` of a value asks."""
    if this.kind == "b":
        return this.value
    empty = {"i": 0, "f": 0.0, "s": ""}[this.kind]
    return Value("ne", (this.value, lit(empty, KINDS[this.kind])))


def unary(op: str, this: Traced) -> Traced:
    """``-x`` and ``abs(x)``; of the least int64 neither fits."""
    this = this.number()
    if this.kind == "i":
        this.tracer.check(Value(f"overflow_{op}", (this.value,)))
    return this.made(f"py_{op}", this.value, kind=this.kind)


def arithmetic(op: str, left: Traced, right: Traced) -> Traced:
    """Python's arithmetic: int with int stays int, anything with a float is float."""
    left, right = left.number(), right.number()
    kind = "i" if left.kind == right.kind == "i" else "f"
    left, right = left.cast(kind), right.cast(kind)
    args = (left.value, right.value)
    if kind == "i" or op in ("truediv", "floordiv", "mod"):
        left.tracer.check(Value(f"overflow_{op}", args))
    return left.made(f"py_{op}", *args, kind="f" if op == "truediv" else kind)


def division(_: str, left: Traced, right: Traced) -> tuple[Traced, Traced]:
    """``divmod``."""
    return arithmetic("floordiv", left, right), arithmetic("mod", left, right)


def bits(op: str, left: Traced, right: Traced) -> Traced:
    """``& | ^`` of two booleans or two integers."""
    left, right = left.used(), right.used()
    if not {left.kind, right.kind} <= {"i", "b"}:
        raise UnliftableError(f"it takes {op} of something that is neither int nor bool")
    kind = "b" if left.kind == right.kind == "b" else "i"
    return left.made(op, left.cast(kind).value, right.cast(kind).value, kind=kind)


def equality(op: str, left: Traced, other: object) -> Any:
    """``==`` and ``!=``, also with None; text and numbers are never equal."""
    if other is None:
        null = left.source is not None and left.tracer.ask(Value("is_null", (left.source,)))
        return null is (op == "eq")
    right = left.operand(other)
    if right is None or (left.kind == "s") is not (right.kind == "s"):
        raise UnliftableError("it compares values of different types")
    return comparison(op, left, right)


def comparison(op: str, left: Traced, right: Traced) -> Traced:
    """A comparison; Python compares int with float exactly, so large ints are checked."""
    left, right = left.used(), right.used()
    if left.kind == "s" or right.kind == "s":
        if left.kind != right.kind:
            raise UnliftableError("it compares text with a number")
        return left.made(op, left.value, right.value, kind="b")
    left, right = left.number(), right.number()
    if left.kind != right.kind:
        for side in (left, right):
            if side.kind == "i":
                _exact(side)
        left, right = left.cast("f"), right.cast("f")
    return left.made(op, left.value, right.value, kind="b")


def _exact(side: Traced) -> None:
    """Check that an integer is one that float64 holds."""
    if side.value.op == "lit":
        if abs(side.value.params[0]) > EXACT:
            raise UnliftableError("it compares a float with an integer beyond 2**53")
        return
    above = Value("gt", (side.value, lit(EXACT, KINDS["i"])))
    below = Value("lt", (side.value, lit(-EXACT, KINDS["i"])))
    side.tracer.check(Value("or", (above, below)))


def _operators() -> None:
    """Give ``Traced`` its binary operators, both ways round."""

    def both(op: str, law: Callable[[str, Traced, Traced], Any]) -> Any:
        def forward(self: Traced, other: object) -> Any:
            right = self.operand(other)
            return NotImplemented if right is None else law(op, self, right)

        def backward(self: Traced, other: object) -> Any:
            left = self.operand(other)
            return NotImplemented if left is None else law(op, left, self)

        return forward, backward

    for op in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
        forward, backward = both(op, arithmetic)
        setattr(Traced, f"__{op}__", forward)
        setattr(Traced, f"__r{op}__", backward)
    forward, backward = both("divmod", division)
    for name, law in (("__divmod__", forward), ("__rdivmod__", backward)):
        setattr(Traced, name, law)
    for word, op in (("and", "bit_and"), ("or", "bit_or"), ("xor", "bit_xor")):
        forward, backward = both(op, bits)
        setattr(Traced, f"__{word}__", forward)
        setattr(Traced, f"__r{word}__", backward)
    for op in ("lt", "le", "gt", "ge"):
        setattr(Traced, f"__{op}__", both(op, comparison)[0])


_operators()


def to_int(value: Any = 0, /, *rest: Any) -> Any:
    """``int`` for traced values too."""
    if rest and isinstance(value, Traced):
        raise UnliftableError("it reads an integer in a base of its own")
    return value.whole("trunc") if isinstance(value, Traced) else int(value, *rest)


def to_float(value: Any = 0.0, /) -> Any:
    """``float`` for traced values too."""
    return value.number().cast("f") if isinstance(value, Traced) else float(value)


def square_root(value: Any, /) -> Any:
    """``math.sqrt``, which IEEE 754 defines to the last bit; Python raises below zero."""
    if not isinstance(value, Traced):
        return math.sqrt(value)
    this = value.number().cast("f")
    this.tracer.check(Value("lt", (this.value, lit(0.0, KINDS["f"]))))
    return this.made("sqrt", this.value, kind="f")


def magnitude(value: Any, /) -> Any:
    """``math.fabs``."""
    return unary("abs", value.number().cast("f")) if isinstance(value, Traced) else math.fabs(value)


def _class_test(op: str, exact: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """``math.isnan`` and its kin for traced values too."""

    def test(value: Any, /) -> Any:
        if not isinstance(value, Traced):
            return exact(value)
        this = value.number().cast("f")
        if op == "is_nan":
            return this.made("is_nan", this.value, kind="b")
        size = unary("abs", this)
        return this.made(op, size.value, lit(math.inf, KINDS["f"]), kind="b")

    return test


def _unlifted(name: str) -> Callable[..., Any]:
    """What stands for a function of math that is not lifted, whatever it would be given."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise UnliftableError(f"it calls math.{name}, of the C library, which has no lifted form")

    return refuse


# What is put in the place of functions that insist on plain numbers. Every function of math is in
# it: those that are not named would take traced values apart on their own, or add them up.
REPLACED: dict[Any, Callable[..., Any]] = {
    **{
        function: _unlifted(name)
        for name, function in vars(math).items()
        if callable(function) and not name.startswith("_")
    },
    int: to_int,
    float: to_float,
    math.sqrt: square_root,
    math.fabs: magnitude,
    math.floor: math.floor,  # these three ask the value itself
    math.ceil: math.ceil,
    math.trunc: math.trunc,
    math.isnan: _class_test("is_nan", math.isnan),
    math.isinf: _class_test("eq", math.isinf),
    math.isfinite: _class_test("lt", math.isfinite),
}
