"""These functions replace Python's builtins and ``math`` while a row function is traced.

Each accepts traced values as well as plain ones. Every function of ``math`` that a purity proof
allows is replaced; those without a lifted form refuse each call.
"""

from __future__ import annotations

import math
import re
import sys
import types
import zlib
from collections.abc import Callable
from typing import Any

from dml.expr.columns.value import Value, lit
from dml.kernels.functions.python import CALLS
from dml.udfs.lifting.symbolic_row import (
    RUNNING,
    TRAPS,
    SymbolicRow,
    Trap,
    UnliftableError,
    refusing,
)
from dml.udfs.lifting.traced_value import KINDS, Encoded, Traced, TracedPieces, unary


def to_int(value: Any = 0, /, *rest: Any) -> Any:
    """Return ``int(value)``, for traced values too."""
    if not isinstance(value, Traced):
        return int(value, *rest)
    if rest:
        raise UnliftableError("it reads an integer in a base of its own")
    if value.kind != "s":
        return value.whole("trunc")
    return _read(value, "int", "i")


def to_float(value: Any = 0.0, /) -> Any:
    """Return ``float(value)``, for traced values too."""
    if not isinstance(value, Traced):
        return float(value)
    if value.kind != "s":
        return value.number().cast("f")
    return _read(value, "float", "f")


def _read(text: Traced, name: str, kind: str) -> Traced:
    """Return the number that ``text`` represents; other texts trap ValueError, as in Python."""
    tracer = text.tracer
    wanted = tracer.here(text.used().value, KINDS["s"])
    made = text.derive("python.call", wanted, kind=kind, params=(name, kind))
    null = Value("is_null", (made.value,))
    if kind == "i":  # the text may also be an integer beyond 64 bits, if it has as many digits
        length = text.called("len", "i", total=True)
        long = Value("ge", (length.value, lit(DIGITS, KINDS["i"])))
        tracer.check(Value("and", (null, long)))
    tracer.trap(null, ValueError)
    tracer.check(null)
    return made


def to_text(value: Any = "", /, *rest: Any) -> Any:
    """Return ``str(value)``, for traced values too."""
    if isinstance(value, Traced) and not rest:
        return value.used() if value.kind == "s" else value.called("str", "s", total=True)
    return str(value, *rest)


def size(values: Any, /) -> Any:
    """Return ``len(values)``, also for traced text and the pieces of a split text."""
    if isinstance(values, TracedPieces):
        return values.size()
    if isinstance(values, Traced) and values.kind in "sl":
        return values.called("len", "i", total=True)
    return len(values)


def total(values: Any, /, start: Any = 0) -> Any:
    """Return ``sum(values)`` by addition; refuse floats on Python 3.12+, whose sums differ."""
    items = list(values)
    if isinstance(start, str | bytes) or not any(isinstance(each, Traced) for each in items):
        return sum(items, start)
    if isinstance(start, Traced) and start.kind == "s":
        raise UnliftableError("it sums from a text on")
    if SUMS_CLOSER and any(map(_is_float, (start, *items))):
        raise UnliftableError("it sums floats, of which Python keeps what rounding loses")
    result = start
    for value in items:
        result = result + value
    return result


def _is_float(value: Any) -> bool:
    return value.kind == "f" if isinstance(value, Traced) else type(value) is float


def is_instance(value: Any, classes: Any, /) -> bool:
    """Return ``isinstance(value, classes)``; a traced value's class is known, except for None."""
    wanted = classes if isinstance(classes, tuple) else (classes,)
    wanted = tuple(each if is_trap(each) else ORIGINAL.get(each, each) for each in wanted)
    if not isinstance(value, Traced):
        if type(value) not in ITSELF and not isinstance(value, Trap):
            raise UnliftableError("it asks for the class of something that is not examined")
        return isinstance(value, wanted)
    kind = {"i": int, "f": float, "b": bool, "s": str}.get(value.kind)
    if kind is None or not all(isinstance(each, type) for each in wanted):
        raise UnliftableError("it asks for the class of something that is not examined")
    if value.source is not None and value.tracer.ask(Value("is_null", (value.source,))):
        return isinstance(None, wanted)
    value.tracer.leaves |= value.source is None  # a power may be a complex number
    return issubclass(kind, wanted)


def is_trap(known: Any) -> bool:
    """Return True for a class that replaces an exception class while tracing."""
    return isinstance(known, type) and issubclass(known, Trap)


def steps(*ends: Any) -> Any:
    """Return ``range(*ends)`` of constant arguments, and of a limited length."""
    if any(isinstance(end, Traced) for end in ends):
        raise UnliftableError("it has a loop as long as the row says")
    made = range(*ends)
    if len(made) > LOOPS:
        raise UnliftableError(f"it has a loop of more than {LOOPS} rounds")
    return made


def as_dict(given: Any = (), /, **named: Any) -> Any:
    """Return ``dict(given, **named)``; for a traced row, an updated copy of the row."""
    if not isinstance(given, SymbolicRow):
        return dict(given, **named)
    made = given.copy()
    made.update(**named)
    return made


def square_root(value: Any, /) -> Any:
    """Return ``math.sqrt(value)``, exact to the last bit; a check finds values below zero."""
    if not isinstance(value, Traced):
        return math.sqrt(value)
    this = value.number().cast("f")
    this.tracer.check(Value("lt", (this.value, lit(0.0, KINDS["f"]))))
    return this.derive("sqrt", this.value, kind="f")


def magnitude(value: Any, /) -> Any:
    """Return ``math.fabs(value)``."""
    return unary("abs", value.number().cast("f")) if isinstance(value, Traced) else math.fabs(value)


def _class_test(op: str, exact: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Return ``math.isnan``, ``isinf`` or ``isfinite`` for plain and traced values."""

    def test(value: Any, /) -> Any:
        if not isinstance(value, Traced):
            return exact(value)
        this = value.number().cast("f")
        if op == "is_nan":
            return this.derive("is_nan", this.value, kind="b")
        size = unary("abs", this)
        return this.derive(op, size.value, lit(math.inf, KINDS["f"]), kind="b")

    return test


def _by_value(name: str) -> Callable[..., Any]:
    """Return a replacement of ``math.name`` whose expression calls it for one value at a time."""

    def call(*args: Any) -> Any:
        tracer = RUNNING.get()
        given = [Traced(tracer, YES, "b").operand(arg) for arg in args]
        if not given or any(each is None for each in given):
            raise UnliftableError(f"it calls math.{name}, which has no lifted form of those")
        first, *more = [each.number().cast("f") for each in given if each is not None]
        return first.called(f"math.{name}", "f", *more)

    return call


def _scaled(function: Callable[[float], float], factor: float) -> Callable[[Any], Any]:
    """Return ``math.radians`` or ``math.degrees``, which multiply by ``factor``."""

    def scaled(value: Any, /) -> Any:
        traced = isinstance(value, Traced)
        return value.number().cast("f") * factor if traced else function(value)

    return scaled


def _checksum(name: str, function: Callable[..., int]) -> Callable[..., Any]:
    """Return a replacement of a checksum, which also accepts traced text encoded as bytes."""

    def call(data: Any, *rest: Any) -> Any:
        if not isinstance(data, Encoded):
            return function(data, *rest)
        if rest:
            raise UnliftableError(f"it calls zlib.{name} with a start of its own")
        return data.text.called(name, "i")

    return call


class Pattern:
    """A compiled pattern whose methods accept traced text as well as plain text."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern = pattern

    def _constants(self) -> tuple[str, int]:
        return self.pattern.pattern, self.pattern.flags

    def sub(self, repl: Any, text: Any, *rest: Any) -> Any:
        """Replace matches by the constant ``repl``."""
        if not isinstance(text, Traced):
            return self.pattern.sub(repl, text, *rest)
        if rest or type(repl) is not str or text.kind != "s":
            raise UnliftableError("it replaces a pattern by something that is not a constant text")
        return text.called("sub", "s", params=(*self._constants(), repl))

    def match(self, text: Any, *rest: Any) -> Any:
        """Return a ``Match`` if the pattern matches at the start, else None."""
        return self._try_match("match", "matches", text, rest)

    def search(self, text: Any, *rest: Any) -> Any:
        """Return a ``Match`` if the pattern matches anywhere, else None."""
        return self._try_match("search", "finds", text, rest)

    def fullmatch(self, text: Any, *rest: Any) -> Any:
        """Return a ``Match`` if the pattern matches the whole text, else None."""
        return self._try_match("fullmatch", "fullmatches", text, rest)

    def _try_match(self, method: str, name: str, text: Any, rest: tuple[Any, ...]) -> Any:
        if not isinstance(text, Traced):
            return getattr(self.pattern, method)(text, *rest)
        if rest or text.kind != "s":
            raise UnliftableError("it looks for a pattern in a way that is not examined")
        return Match() if text.called(name, "b", params=self._constants()) else None


class Match:
    """A match whose content is unknown: only its existence may be tested."""

    _no = refusing("it uses what a pattern matched")
    __getattr__ = __getitem__ = __str__ = __repr__ = __format__ = __iter__ = __eq__ = __ne__ = _no
    __hash__ = None  # type: ignore[assignment]


YES = lit(value=True, kind=KINDS["b"])
# Classes of values that tracing does not replace.
ITSELF = {int, float, bool, str, bytes, complex, type(None), list, tuple, dict, range, SymbolicRow}
DIGITS = 19  # minimum digits of an integer beyond 64 bits
LOOPS = 1024  # maximum iterations of one range
SUMS_CLOSER = sys.version_info >= (3, 12)
# Replacements of functions that require plain numbers. Every function of math is included, since
# an original one would convert traced values itself, or add them up.
REPLACED: dict[Any, Any] = {
    **{
        function: _by_value(name)
        if f"math.{name}" in CALLS
        else refusing(f"it calls math.{name}, which has no lifted form")
        for name, function in vars(math).items()
        if callable(function) and not name.startswith("_")
    },
    int: to_int,
    float: to_float,
    str: to_text,
    len: size,
    sum: total,
    isinstance: is_instance,
    range: steps,
    dict: as_dict,
    math.sqrt: square_root,
    math.radians: _scaled(math.radians, math.pi / 180),
    math.degrees: _scaled(math.degrees, 180 / math.pi),
    math.fabs: magnitude,
    math.floor: math.floor,  # these three call methods of the value
    math.ceil: math.ceil,
    math.trunc: math.trunc,
    math.isnan: _class_test("is_nan", math.isnan),
    math.isinf: _class_test("eq", math.isinf),
    math.isfinite: _class_test("lt", math.isfinite),
    zlib.crc32: _checksum("crc32", zlib.crc32),
    zlib.adler32: _checksum("adler32", zlib.adler32),
    **TRAPS,
}
ORIGINAL = {made: known for known, made in REPLACED.items() if isinstance(known, type)}


def replacement(value: Any) -> Any:
    """Return the replacement of an outside value while tracing; the value if none is needed."""
    if isinstance(value, re.Pattern):
        return Pattern(value)
    if isinstance(value, types.ModuleType):
        names = {name: replacement(item) for name, item in vars(value).items()}
        return types.SimpleNamespace(**names)
    if type(value) is frozenset:
        return tuple(sorted(value, key=repr))  # used only with ``in``
    return REPLACED.get(value, value) if callable(value) else value
