"""``Column`` is the expression class that users work with; ``col``, ``lit`` and ``when`` create it.

A ``Column`` overloads operators and wraps a ``Value``, which does not; arithmetic follows NumPy,
comparison and logic are three-valued (docs/semantics.md, "Values").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from dml.base.user_line import Answering, door, doors
from dml.data.schema import data_type
from dml.errors import PlanError, SchemaError
from dml.expr.columns.literal import edges, members, plain, whole
from dml.expr.columns.namespaces import Aggregated, Namespaced
from dml.expr.columns.operators import Spelled
from dml.expr.columns.value import Value, joined
from dml.expr.columns.value import col as ref
from dml.expr.columns.value import lit as constant

# Random stream numbers of one output column start at its index times this number.
STREAMS = 1 << 20


def _alone(op: str, doc: str | None = None) -> Callable[[Column], Column]:
    """Return the method of an operation on the column alone; ``doc`` is its docstring."""

    def method(self: Column) -> Column:
        return apply(op, self)

    method.__name__, method.__qualname__, method.__doc__ = op, f"Column.{op}", doc
    return method


def _left(op: str) -> Callable[[Column, Any], Column]:
    """Return the method of an infix operator whose left operand is the column."""

    def infix(self: Column, other: Any) -> Column:
        return apply(op, self, other)

    infix.__name__, infix.__qualname__ = op, f"Column.{op}"
    return infix


def _right(op: str) -> Callable[[Column, Any], Column]:
    """Return the method of an infix operator whose right operand is the column."""

    def reflected(self: Column, other: Any) -> Column:
        return apply(op, other, self)

    reflected.__name__, reflected.__qualname__ = op, f"Column.{op}"
    return reflected


@doors
class Column(Spelled, Namespaced, Aggregated, Answering):
    """A symbolic column; operators return new columns, and nothing is computed."""

    __slots__ = ("value",)
    _title, _place = "a column", "col"

    def __init__(self, value: Value) -> None:
        self.value = value

    __add__, __radd__ = _left("add"), _right("add")
    __sub__, __rsub__ = _left("sub"), _right("sub")
    __mul__, __rmul__ = _left("mul"), _right("mul")
    __truediv__, __rtruediv__ = _left("truediv"), _right("truediv")
    __floordiv__, __rfloordiv__ = _left("floordiv"), _right("floordiv")
    __mod__, __rmod__ = _left("mod"), _right("mod")
    __and__, __rand__ = _left("bit_and"), _right("bit_and")
    __or__, __ror__ = _left("bit_or"), _right("bit_or")
    __xor__, __rxor__ = _left("bit_xor"), _right("bit_xor")
    __lshift__, __rlshift__ = _left("shift_left"), _right("shift_left")
    __rshift__, __rrshift__ = _left("shift_right"), _right("shift_right")
    __eq__ = _left("eq")  # type: ignore[assignment]
    __ne__ = _left("ne")  # type: ignore[assignment]
    __lt__ = _left("lt")
    __le__ = _left("le")
    __gt__ = _left("gt")
    __ge__ = _left("ge")
    __hash__ = None  # type: ignore[assignment]
    __neg__, __abs__, __invert__ = _alone("neg"), _alone("abs"), _alone("bit_not")

    @door
    def __pow__(self, exponent: object) -> Column:
        if isinstance(exponent, bool) or not isinstance(exponent, int) or not 1 <= exponent <= 64:
            raise SchemaError(
                f"** needs a whole exponent from 1 to 64, got {exponent!r}",
                why="powers are products of the column with itself",
                try_=".sqrt() or (x.log() * y).exp()",
            )
        return Column(_power(self.value, exponent))

    @door
    def __rpow__(self, base: object) -> NoReturn:
        raise SchemaError(
            f"** needs a whole exponent from 1 to 64, got {self!r}",
            why=f"powers are products of the base with itself, and here it is {base!r}",
            try_="(x * math.log(base)).exp(), or 1 << x for powers of two",
        )

    def __pos__(self) -> Column:
        return self

    def __round__(self, digits: int | None = None) -> Column:
        return self.round(0 if digits is None else digits)

    def __divmod__(self, other: Any) -> tuple[Column, Column]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Column, Column]:
        return other // self, other % self

    @door
    def __bool__(self) -> NoReturn:
        raise PlanError(
            f"{self!r} is a column, not a truth value",
            why="'and', 'or', 'not', 'if' and chained comparisons ask for one",
            try_="& | ~ with parentheses, .between(a, b), dml.when(...)",
        )

    def _hint(self, name: str) -> str:
        rooms = ("str", "list", "dt", "struct", "tensor")
        found = [room for room in rooms if name in dir(type(getattr(self, room)))]
        return " or ".join(f".{room}.{name}" for room in found)

    @door
    def __float__(self) -> NoReturn:
        raise PlanError(
            f"{self!r} is a column, not a number",
            why="float(), int() and functions of the math module ask for one",
            try_="its methods, such as .log() and .floor(), and .cast(...)",
        )

    __int__ = __float__

    def __repr__(self) -> str:
        return repr(self.value)

    is_null = _alone("is_null", "Return True where the value is null, else False. NaN is not null.")

    def is_not_null(self) -> Column:
        """Return False where the value is null, else True."""
        return apply("not", apply("is_null", self))

    is_nan = _alone("is_nan", "Return True where a float is NaN; null where it is null.")

    def fill_null(self, value: Any) -> Column:
        """Replace nulls by ``value`` (a literal or column); NaN stays."""
        return apply("fill_null", self, value)

    def fill_nan(self, value: Any) -> Column:
        """Replace NaN by ``value`` (a literal or column); nulls stay."""
        return apply("fill_nan", self, value)

    def cast(self, kind: Any, *, strict: bool = True) -> Column:
        """Convert to ``kind``; unsuitable values raise CastError, or become null if not ``strict``.

        Floats are truncated to integers; integers are rounded to the nearest float.
        """
        return Column(Value("cast", (self.value,), (data_type(kind), bool(strict))))

    @door
    def is_in(self, values: Any) -> Column:
        """Return True where the value equals one of the literals ``values``; null stays null."""
        return Column(Value("is_in", (self.value,), members(values)))

    def between(self, low: Any, high: Any) -> Column:
        """Return ``(self >= low) & (self <= high)``."""
        return apply("bit_and", self >= low, self <= high)

    @door
    def clip(self, low: Any = None, high: Any = None) -> Column:
        """Limit values to [low, high]; None is no limit. Null and NaN are unchanged."""
        out = self
        if low is not None:
            out = apply("maximum", out, low)
        return out if high is None else apply("minimum", out, high)

    @door
    def hash(self, buckets: object = None, *, seed: int = 0) -> Column:
        """Return a keyed 64-bit hash (uint64), or its remainder by ``buckets`` (int64); null stays.

        Integers, booleans and floats are hashed by value (0.0 equals -0.0, all NaNs are equal),
        text and bytes by xxh64.
        """
        bits = Column(Value("hash", (self.value,), (whole("hash seed", seed),)))
        if buckets is None:
            return bits
        # every remainder fits int64, so this cast cannot fail and need not be checked
        n = whole("hash: a positive number of buckets", buckets, 1, 1 << 63)
        return (bits % n).cast("int64", strict=False)

    @door
    def bucketize(self, boundaries: Any) -> Column:
        """Return the number of ascending ``boundaries`` <= the value (int64); NaN is above all."""
        return Column(Value("bucketize", (self.value,), (edges(boundaries),)))

    abs = _alone(
        "abs", "Return the absolute value; for the least integer of its type, that integer (wraps)."
    )
    sqrt = _alone("sqrt", "Square root, exact to the last bit; NaN below zero.")
    exp = _alone("exp", "Return the exponential function, e to the power of the value.")
    expm1 = _alone("expm1", "Return ``exp(x) - 1``, accurate near zero.")
    log = _alone("log", "Natural logarithm; -inf at zero, NaN below zero.")
    log1p = _alone("log1p", "Return ``log(1 + x)``, accurate near zero.")
    log2 = _alone("log2", "Logarithm to base 2.")
    log10 = _alone("log10", "Logarithm to base 10.")
    sin = _alone("sin", "Sine of radians.")
    cos = _alone("cos", "Cosine of radians.")
    tanh = _alone("tanh", "Hyperbolic tangent.")
    sigmoid = _alone("sigmoid", "Return ``1 / (1 + exp(-x))``.")
    floor = _alone(
        "floor", "Return the greatest integer that is not above the value, in the same type."
    )
    ceil = _alone("ceil", "Return the least integer that is not below the value, in the same type.")
    trunc = _alone("trunc", "Return the integer part, in the same type.")

    @door
    def round(self, digits: int = 0) -> Column:
        """Round half to even at ``digits`` decimals, as NumPy does."""
        return Column(Value("round", (self.value,), (whole("round digits", digits),)))


class When:
    """A condition of :func:`when` that has no value yet."""

    __slots__ = ("branches", "condition")

    def __init__(self, branches: tuple[tuple[Value, Value], ...], condition: Value) -> None:
        self.branches, self.condition = branches, condition

    def then(self, value: Any) -> Then:
        """Set the value of the rows for which the condition is true."""
        return Then((*self.branches, (self.condition, wrap(value))))


class Then:
    """The branches of :func:`when` so far; ``when`` adds one, ``otherwise`` ends the expression."""

    __slots__ = ("branches",)

    def __init__(self, branches: tuple[tuple[Value, Value], ...]) -> None:
        self.branches = branches

    def when(self, condition: Any) -> When:
        """Add a branch for rows on which ``condition`` is true and no earlier condition was."""
        return When(self.branches, wrap(condition))

    def otherwise(self, value: Any) -> Column:
        """Return the expression, with ``value`` for all other rows, including null conditions."""
        out = wrap(value)
        for condition, then in reversed(self.branches):
            sure = Value("fill_null", (condition, constant(value=False)))
            out = Value("if_else", (sure, then, out))
        return Column(out)


@door
def col(name: str) -> Column:
    """Return the column ``name``."""
    if not isinstance(name, str):
        raise SchemaError(
            f"col needs a column name, got {name!r}",
            why=f"it is of type {type(name).__name__}; names are text",
            try_='col("x")',
        )
    return Column(ref(name))


def lit(value: Any, dtype: Any = None) -> Column:
    """Return a constant; without ``dtype`` it adapts to the other operand, as bare literals do."""
    if isinstance(value, Column):
        return value
    return Column(constant(plain(value), None if dtype is None else data_type(dtype)))


def when(condition: Any) -> When:
    """Begin ``when(c).then(a).otherwise(b)``: a where c is true, b where c is false or null."""
    return When((), wrap(condition))


@door
def stack(*columns: Any) -> Column:
    """Combine k scalar columns into one fixed-shape tensor ``(k,)`` per row, in their common type.

    A row with a null in any column is null. Accepts names, columns, or one list of them.
    """
    given = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
    parts = tuple(ref(c) if isinstance(c, str) else wrap(c) for c in given)
    if not parts:
        raise PlanError("stack needs at least one column")
    return Column(Value("stack", parts))


@door
def random(*, seed: int | None = None, stream: int = 0) -> Column:
    """Draw uniform float64 in [0, 1), keyed by (seed, operator, epoch, row id) alone.

    Draws in different output columns differ; two draws inside one expression need two ``stream``s.
    """
    seed = None if seed is None else whole("random seed", seed)
    return Column(Value("random", (), (seed, whole("random stream", stream, 0, STREAMS - 1), None)))


def rows() -> Column:
    """Count the rows, for ``agg`` and ``group_by``: ``agg(n=dml.len())`` (int64)."""
    return Column(Value("len_of"))


def minimum(first: Any, *rest: Any) -> Column:
    """Return the least of several columns or literals per row; null or NaN if one of them is."""
    return Column(joined("minimum", map(wrap, (first, *rest))))


def maximum(first: Any, *rest: Any) -> Column:
    """Return the greatest of several columns or literals per row; null or NaN if one of them is."""
    return Column(joined("maximum", map(wrap, (first, *rest))))


def wrap(value: Any) -> Value:
    """Return the ``Value`` of a column, or of a literal that is used like a column."""
    return value.value if isinstance(value, Column) else constant(plain(value))


def apply(op: str, *args: Any) -> Column:
    """Return the column of operation ``op`` on ``args``, columns or literals."""
    return Column(Value(op, tuple(wrap(arg) for arg in args)))


def _power(value: Value, exponent: int) -> Value:
    """Return ``value ** exponent`` by repeated squaring; the order of products is documented."""
    if exponent == 1:
        return value
    half = _power(value, exponent // 2)
    square = Value("mul", (half, half))
    return Value("mul", (square, value)) if exponent % 2 else square
