"""Traced values overload operators, to build expressions that compute exactly as Python does.

A ``Traced`` is a value of the row, or computed from such values: an expression and the kind of its
Python value. Every operator records a check for each case in which the expression would differ from
Python's result: null operands, integers beyond 64 bits, zero divisors, integers that float64 cannot
hold where Python compares or divides exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa

from dml.expr.columns.value import Value, lit
from dml.udfs.lifting.symbolic_row import Tracer, UnliftableError, checked_constant, refusing

INT64 = range(-(2**63), 2**63)
EXACT = 2**53  # float64 holds every integer up to here
KINDS: dict[str, pa.DataType] = {
    "i": pa.int64(),
    "f": pa.float64(),
    "b": pa.bool_(),
    "s": pa.string(),
}


class Traced:
    """A value of the row or computed from it; ``kind``: "i" int, "f" float, "b" bool, "s" str.

    ``source`` is the column that the value is read from, which may be null; None for computed
    values, whose operands were checked.
    """

    __slots__ = ("kind", "source", "tracer", "value")

    def __init__(
        self, tracer: Tracer, value: Value, kind: str, source: Value | None = None
    ) -> None:
        tracer.count()
        self.tracer, self.value, self.kind, self.source = tracer, value, kind, source

    def used(self) -> Traced:
        """Return this value as an operand, after adding a check for null (Python would raise)."""
        if self.source is not None:
            self.tracer.check(Value("is_null", (self.source,)))
        return self

    def derive(self, op: str, *args: Value, kind: str, params: tuple[Any, ...] = ()) -> Traced:
        """Return the value that operation ``op`` computes from ``args``."""
        return Traced(self.tracer, Value(op, args, params), kind)

    def cast(self, kind: str) -> Traced:
        """Return the number in another kind that can represent every value; null stays null."""
        if kind == self.kind:
            return self
        return self.derive("cast", self.value, kind=kind, params=(KINDS[kind], False))

    def number(self) -> Traced:
        """Return this value as a number, as Python's arithmetic sees it: True is 1."""
        if self.kind == "s":
            raise UnliftableError("it computes with text")
        return self.used().cast("i") if self.kind == "b" else self.used()

    def operand(self, other: object) -> Traced | None:
        """Return ``other`` as a traced value; None if Python does not support its type either."""
        if isinstance(other, Traced):
            return other
        kind = {bool: "b", int: "i", float: "f", str: "s"}.get(type(other), "")
        if kind == "i" and other not in INT64:
            raise UnliftableError("it uses an integer beyond 64 bits")
        return (
            Traced(self.tracer, lit(checked_constant(other), KINDS[kind]), kind) if kind else None
        )

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
        return self.derive("bit_not", self.used().value, kind="i")

    def __pow__(self, exponent: object, modulo: object = None) -> Traced:
        power = self.operand(exponent)
        if modulo is not None or power is None:
            raise UnliftableError("it raises to a power in a way that is not examined")
        if self.kind == "f" or power.kind == "f":
            return self.number().cast("f").called("power", "f", power.number().cast("f"))
        if type(exponent) is not int or not 1 <= exponent <= 16:
            raise UnliftableError("it raises an integer to a power other than 1 to 16")
        base = result = self.number()
        for _ in range(exponent - 1):
            result = arithmetic("mul", result, base)
        return result

    def __rpow__(self, base: object) -> Traced:
        found = self.operand(base)
        if found is None or "f" not in (found.kind, self.kind):
            raise UnliftableError("it raises an integer to a power that depends on the row")
        return found.__pow__(self)

    def __round__(self, digits: object = None) -> Traced:
        if digits is None:
            return self.whole("round", (0,))
        if type(digits) is not int or not -400 < digits < 400:
            raise UnliftableError("it rounds to a number of digits that depends on the row")
        return self.number().called("round", self.number().kind, params=(digits,))

    def called(
        self, name: str, kind: str, *more: Traced, params: tuple[Any, ...] = (), total: bool = False
    ) -> Traced:
        """Return the result of Python's function ``name``, called value by value (``python.call``).

        A check finds the rows in which the function raises, or returns a value that a column cannot
        hold; with ``total``, there are no such rows.
        """
        params = tuple(map(checked_constant, params))
        first, *others = (each.used().value for each in (self, *more))
        if not total and self.kind == "s":  # exceptions cost more than finding this path's rows
            first = self.tracer.here(first, KINDS[self.kind])
        args = (first, *others)
        made = self.derive("python.call", *args, kind=kind, params=(name, kind, *params))
        if not total:
            self.tracer.check(Value("is_null", (made.value,)))
        return made

    def __floor__(self) -> Traced:
        return self.whole("floor")

    def __ceil__(self) -> Traced:
        return self.whole("ceil")

    def __trunc__(self) -> Traced:
        return self.whole("trunc")

    def whole(self, op: str, params: tuple[Any, ...] = ()) -> Traced:
        """Return this number rounded to an int by ``op``, with a check for NaN, inf, overflow."""
        this = self.number()
        if this.kind == "i":
            return this
        rounded = this.derive(op, this.value, kind="f", params=params)
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

    def __getitem__(self, place: Any) -> Traced:
        if self.kind != "s":
            raise UnliftableError("it looks into a value that is neither text nor a list")
        if type(place) is int:
            return self.called("item", "s", params=(place,))
        ends = (place.start, place.stop, place.step) if isinstance(place, slice) else (place,)
        if len(ends) != 3 or not all(end is None or type(end) is int for end in ends):
            raise UnliftableError("it takes a place of text that depends on the row")
        return self.called("slice", "s", params=ends, total=ends[2] != 0)

    def __contains__(self, part: object) -> bool:
        if self.kind != "s":
            raise UnliftableError("it looks into a value that is neither text nor a list")
        if type(part) is str:
            return bool(self.called("within", "b", params=(part,), total=True))
        if isinstance(part, Traced) and part.kind == "s":
            return bool(self.called("contains", "b", part, total=True))
        raise UnliftableError("it looks in text for something that is not text")

    __int__ = __index__ = __len__ = __call__ = __complex__ = refusing(
        "it needs the plain value, as a place, an argument or a function"
    )
    __float__ = refusing("it calls a function of the C library, whose last bits are its own")
    __str__ = __repr__ = __format__ = refusing("it formats a value of the row")
    __hash__ = refusing("it looks up a value of the row in a dict or set, or hashes it")
    __iter__ = refusing("it goes through a value of the row, item by item")

    def __getattr__(self, name: str) -> Any:
        if self.kind == "s" and name in METHODS:
            return Method(self, name)
        raise UnliftableError(f"it uses .{name} of a value of the row")


def truth(this: Traced) -> Value:
    """Return the condition under which ``bool`` of a value is true."""
    if this.kind == "b":
        return this.value
    empty = {"i": 0, "f": 0.0, "s": ""}[this.kind]
    return Value("ne", (this.value, lit(empty, KINDS[this.kind])))


def unary(op: str, this: Traced) -> Traced:
    """Return ``-x`` (``op`` "neg") or ``abs(x)`` ("abs"), with a check for the least int64."""
    this = this.number()
    if this.kind == "i":
        this.tracer.check(Value(f"overflow_{op}", (this.value,)))
    return this.derive(f"py_{op}", this.value, kind=this.kind)


def arithmetic(op: str, left: Traced, right: Traced) -> Traced:
    """Return ``left op right`` as Python computes it: an int of two ints, else a float."""
    if op == "add" and left.kind == right.kind == "s":
        return left.called("add", "s", right, total=True)
    left, right = left.number(), right.number()
    kind = "i" if left.kind == right.kind == "i" else "f"
    left, right = left.cast(kind), right.cast(kind)
    args = (left.value, right.value)
    if op in ("truediv", "floordiv", "mod"):
        zero = Value("eq", (right.value, lit(0 if kind == "i" else 0.0, KINDS[kind])))
        left.tracer.trap(zero, ZeroDivisionError)
    if kind == "i" or op in ("truediv", "floordiv", "mod"):
        left.tracer.check(Value(f"overflow_{op}", args))
    return left.derive(f"py_{op}", *args, kind="f" if op == "truediv" else kind)


def division(_: str, left: Traced, right: Traced) -> tuple[Traced, Traced]:
    """Return ``divmod(left, right)``."""
    return arithmetic("floordiv", left, right), arithmetic("mod", left, right)


def bits(op: str, left: Traced, right: Traced) -> Traced:
    """Return ``left & right``, ``|`` or ``^`` of two booleans or two integers."""
    left, right = left.used(), right.used()
    if not {left.kind, right.kind} <= {"i", "b"}:
        raise UnliftableError(f"it takes {op} of something that is neither int nor bool")
    kind = "b" if left.kind == right.kind == "b" else "i"
    return left.derive(op, left.cast(kind).value, right.cast(kind).value, kind=kind)


def shifted(op: str, left: Traced, right: Traced) -> Traced:
    """Return ``left << right`` or ``>>`` by a constant: multiplied or divided by a power of two."""
    if right.value.op != "lit" or right.kind != "i" or not 0 <= right.value.params[0] < 63:
        raise UnliftableError("it shifts by a number that depends on the row")
    if left.kind not in "ib":
        raise UnliftableError("it shifts something that is not an integer")
    power = Traced(left.tracer, lit(1 << right.value.params[0], KINDS["i"]), "i")
    return arithmetic("mul" if op == "shift_left" else "floordiv", left, power)


def equality(op: str, left: Traced, other: object) -> Any:
    """Return ``left == other`` or ``!=``, also for None; text and numbers are never equal."""
    if other is None:
        null = left.source is not None and left.tracer.ask(Value("is_null", (left.source,)))
        return null is (op == "eq")
    right = left.operand(other)
    if right is None or (left.kind == "s") is not (right.kind == "s"):
        raise UnliftableError("it compares values of different types")
    return comparison(op, left, right)


def comparison(op: str, left: Traced, right: Traced) -> Traced:
    """Return a comparison; for an int and a float, check that the int has an exact double."""
    left, right = left.used(), right.used()
    if left.kind == "s" or right.kind == "s":
        if left.kind != right.kind:
            raise UnliftableError("it compares text with a number")
        return left.derive(op, left.value, right.value, kind="b")
    left, right = left.number(), right.number()
    if left.kind != right.kind:
        for side in (left, right):
            if side.kind == "i":
                _exact(side)
        left, right = left.cast("f"), right.cast("f")
    return left.derive(op, left.value, right.value, kind="b")


def _exact(side: Traced) -> None:
    """Add a check that float64 represents the integer ``side`` exactly; refuse larger literals."""
    if side.value.op == "lit":
        if abs(side.value.params[0]) > EXACT:
            raise UnliftableError("it compares a float with an integer beyond 2**53")
        return
    above = Value("gt", (side.value, lit(EXACT, KINDS["i"])))
    below = Value("lt", (side.value, lit(-EXACT, KINDS["i"])))
    side.tracer.check(Value("or", (above, below)))


# The names of Python's infix operators, those of the operations, and their laws.
INFIX: tuple[tuple[str, str, Callable[[str, Traced, Traced], Any]], ...] = (
    *((op, op, arithmetic) for op in ("add", "sub", "mul", "truediv", "floordiv", "mod")),
    *(("divmod", "divmod", division), ("and", "bit_and", bits), ("or", "bit_or", bits)),
    *(("xor", "bit_xor", bits), ("lshift", "shift_left", shifted)),
    ("rshift", "shift_right", shifted),
)


def _operators() -> None:
    """Define the binary operators of ``Traced``, and their reflected forms."""

    def both(op: str, law: Callable[[str, Traced, Traced], Any]) -> Any:
        def forward(self: Traced, other: object) -> Any:
            right = self.operand(other)
            return NotImplemented if right is None else law(op, self, right)

        def backward(self: Traced, other: object) -> Any:
            left = self.operand(other)
            return NotImplemented if left is None else law(op, left, self)

        return forward, backward

    for word, op, law in INFIX:
        forward, backward = both(op, law)
        setattr(Traced, f"__{word}__", forward)
        setattr(Traced, f"__r{word}__", backward)
    for op in ("lt", "le", "gt", "ge"):
        setattr(Traced, f"__{op}__", both(op, comparison)[0])


_operators()


# Methods of text and the kinds of their results; methods with "!" raise for some texts.
METHODS = {
    **dict.fromkeys(("lower", "upper", "casefold", "capitalize", "title", "swapcase"), "s"),
    **dict.fromkeys(("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace"), "s"),
    **dict.fromkeys(("zfill", "ljust", "rjust", "center"), "s!"),
    **dict.fromkeys(("find", "rfind", "count"), "i"),
    **dict.fromkeys(("index", "rindex"), "i!"),
    **dict.fromkeys(("startswith", "endswith", "isdigit", "isalpha", "isalnum", "isdecimal"), "b"),
    **dict.fromkeys(("isnumeric", "isspace", "islower", "isupper", "istitle", "isascii"), "b"),
    "isidentifier": "b",
    **dict.fromkeys(("split", "rsplit", "partition", "rpartition", "splitlines"), "pieces"),
    "encode": "bytes",
}


class Method:
    """A bound method of a traced text that has not been called yet."""

    def __init__(self, text: Traced, name: str) -> None:
        self.text, self.name = text, name

    def __call__(self, *args: Any, **named: Any) -> Any:
        if named or not all(_constant(arg) for arg in args):
            raise UnliftableError(f"it calls .{self.name} with arguments that are not constants")
        gives = METHODS[self.name]
        if gives == "bytes":
            if args not in ((), ("utf-8",), ("utf8",)):
                raise UnliftableError("it encodes text in another way than UTF-8")
            return Encoded(self.text)
        check_arguments(self.name, args)
        if gives == "pieces":
            return TracedPieces(self.text, self.name, args)
        total = not gives.endswith("!")
        return self.text.called(f"str.{self.name}", gives[0], params=args, total=total)

    def _no(self, *_: object) -> NoReturn:
        raise UnliftableError(f"it uses the method .{self.name} without calling it")

    __eq__ = __ne__ = __bool__ = __str__ = __repr__ = __format__ = __iter__ = _no
    __hash__ = None  # type: ignore[assignment]


def _constant(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(item) is str for item in value)
    return value is None or type(value) in (str, int)


def check_arguments(name: str, args: tuple[Any, ...]) -> None:
    """Raise for arguments that the method never accepts, so that it would raise in every row."""
    try:
        getattr("", name)(*args)
    except ValueError as error:
        if "not found" not in str(error):
            raise


class Encoded:
    """Traced text as UTF-8 bytes, for functions of bytes that can be lifted."""

    def __init__(self, text: Traced) -> None:
        self.text = text

    _no = refusing("it uses text as bytes, which is not examined")
    __getattr__ = __add__ = __radd__ = __getitem__ = __len__ = __iter__ = __contains__ = _no
    __eq__ = __ne__ = __lt__ = __gt__ = __bool__ = __str__ = __repr__ = __format__ = _no
    __hash__ = None  # type: ignore[assignment]


class TracedPieces:
    """The pieces of a split text; their number is unknown, except for ``partition``."""

    def __init__(self, text: Traced, name: str, args: tuple[Any, ...]) -> None:
        self.text, self.name, self.args = text, name, args

    def __getitem__(self, place: Any) -> Traced:
        if type(place) is not int:
            raise UnliftableError("it takes several pieces of a text, or one that the row says")
        total = self.name.endswith("partition") and -3 <= place < 3
        return self.text.called(f"piece.{self.name}", "s", params=(place, *self.args), total=total)

    def __iter__(self) -> Any:
        if not self.name.endswith("partition"):
            raise UnliftableError("it goes through as many pieces of a text as the row has")
        return iter([self[place] for place in range(3)])

    def size(self) -> Traced:
        """Return the number of pieces, as a traced value."""
        return self.text.called(f"pieces.{self.name}", "i", params=self.args, total=True)

    def __bool__(self) -> bool:
        return bool(self.size())

    _no = refusing("it uses the pieces of a text as a list")
    __getattr__ = __add__ = __radd__ = __mul__ = __len__ = __contains__ = _no
    __eq__ = __ne__ = __lt__ = __gt__ = __str__ = __repr__ = __format__ = _no
    __hash__ = None  # type: ignore[assignment]
