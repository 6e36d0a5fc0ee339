"""The operators of columns are also available as methods, with the names that Polars uses.

Each method returns the expression in its docstring, and is printed and fingerprinted as that
expression.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.value import C, Value, lit, value_text

# The comparisons with the lower and the upper bound, by ``closed`` of ``is_between``.
CLOSED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "both": (operator.ge, operator.le),
    "left": (operator.ge, operator.lt),
    "right": (operator.gt, operator.le),
    "none": (operator.gt, operator.lt),
}


@dataclass(frozen=True, eq=False)
class Aliased:
    """An expression with an output name, for verbs that create columns; it has no operators."""

    name: str
    value: Value

    def __repr__(self) -> str:
        return f"{value_text(self.value)}.alias({self.name!r})"


def _infix(name: str, sign: str) -> Callable[[C, Any], C]:
    """Return the method of the operator with this name in ``operator``; ``sign`` is for its doc."""
    form = getattr(operator, name)

    def method(self: C, other: Any) -> C:
        return _of(form, self, other)

    method.__name__, method.__qualname__ = name, f"Column.{name}"
    method.__doc__ = f"Return ``self {sign} other``."
    return method


# Methods of columns that do the same as a function of NumPy of one argument.
ALONE = {
    **{
        name: name
        for name in (
            "ceil", "cos", "exp", "expm1", "floor", "log", "log10", "log1p", "log2", "sign", "sin",
            "sqrt", "tanh", "trunc",
        )
    },
    "absolute": "abs", "invert": "__invert__", "isfinite": "is_finite",
    "isinf": "is_infinite", "isnan": "is_nan", "negative": "neg",
}  # fmt: skip
# Infix operators that do the same as a function of two arguments, for a column on the left and on
# the right.
INFIX = {
    **{
        name: (f"__{op}__", f"__r{op}__")
        for name, op in {
            "add": "add", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
            "divide": "truediv", "divmod": "divmod", "floor_divide": "floordiv",
            "left_shift": "lshift", "multiply": "mul", "power": "pow", "remainder": "mod",
            "right_shift": "rshift", "subtract": "sub",
        }.items()
    },
    "equal": ("__eq__", "__eq__"), "not_equal": ("__ne__", "__ne__"),
    "less": ("__lt__", "__gt__"), "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"), "greater_equal": ("__ge__", "__le__"),
}  # fmt: skip


class Spelled:
    """The base of ``Column`` with methods that do the same as operators and functions of NumPy."""

    __slots__ = ()

    @door
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Return the expression: ``np.log1p(col("x"))`` is ``col("x").log1p()``."""
        name = ufunc.__name__
        if method == "__call__" and not options:
            place = next(n for n, each in enumerate(inputs) if each is self)
            if name in ALONE:
                return getattr(self, ALONE[name])()
            if name in INFIX:
                return getattr(self, INFIX[name][place])(inputs[1 - place])
        raise PlanError(
            f"numpy.{name} has no expression",
            why="a column has no values before a run",
            try_="methods of columns, dml.minimum(...), dml.maximum(...), or map_batches(f)",
        )

    @door
    def alias(self, name: str) -> Aliased:
        """Name the expression: ``select(e.alias("y"))`` is ``select(y=e)``.

        The result is for ``select``, ``with_columns``, ``agg`` and ``group_by``. It has no
        operators, so call ``alias`` last.
        """
        if not isinstance(name, str):
            raise PlanError(
                f"alias needs a name, got {name!r}",
                why=f"it is of type {type(name).__name__}; names are text",
                try_='.alias("y")',
            )
        return Aliased(name, self.value)  # type: ignore[attr-defined]

    add = _infix("add", "+")
    sub = _infix("sub", "-")
    mul = _infix("mul", "*")
    truediv = _infix("truediv", "/")
    floordiv = _infix("floordiv", "//")
    mod = _infix("mod", "%")

    @door
    def pow(self, exponent: int) -> Self:
        """Return ``self ** exponent``, a whole number from 1 to 64."""
        return _of(operator.pow, self, exponent)

    def neg(self) -> Self:
        """Return ``-self``."""
        return _of(operator.neg, self)

    def sign(self) -> Self:
        """Return 1 above zero, -1 below, else the value: 0, -0.0 or NaN. Not for unsigned types."""
        return _of(_sign, self)

    eq = _infix("eq", "==")
    ne = _infix("ne", "!=")
    lt = _infix("lt", "<")
    le = _infix("le", "<=")
    gt = _infix("gt", ">")
    ge = _infix("ge", ">=")

    def and_(self, *others: Any) -> Self:
        """Return ``self & other`` for each of ``others``."""
        return _of(_all_of(operator.and_), self, *others)

    def or_(self, *others: Any) -> Self:
        """Return ``self | other`` for each of ``others``."""
        return _of(_all_of(operator.or_), self, *others)

    xor = _infix("xor", "^")

    def not_(self) -> Self:
        """Return ``~self``."""
        return _of(operator.invert, self)

    @door
    def eq_missing(self, other: Any) -> Self:
        """Return ``self == other``, where null equals only null; the result is never null."""
        return _of(lambda a, b: (a == b).fill_null(_both_null(a, b)), self, other)

    @door
    def ne_missing(self, other: Any) -> Self:
        """Return ``~self.eq_missing(other)``, which is never null."""
        return _of(lambda a, b: ~a.eq_missing(b), self, other)

    @door
    def is_between(self, low: Any, high: Any, closed: str = "both") -> Self:
        """Return ``between(low, high)``; ``closed`` "left", "right" or "none" excludes bounds."""
        if closed not in CLOSED:
            raise PlanError(
                f"is_between has no closed={closed!r}",
                why=f"it is one of {', '.join(CLOSED)}",
                try_='closed="both"',
            )
        least, most = CLOSED[closed]
        return _of(lambda x: least(x, low) & most(x, high), self)

    def is_finite(self) -> Self:
        """Return ``abs(self) < inf``: neither infinite nor NaN; null for null."""
        return _of(lambda x: abs(x) < math.inf, self)

    def is_infinite(self) -> Self:
        """Return ``abs(self) == inf``; null for null."""
        return _of(lambda x: abs(x) == math.inf, self)

    def is_not_nan(self) -> Self:
        """Return ``~self.is_nan()``; null for null."""
        return _of(lambda x: ~x.is_nan(), self)


def _of(form: Callable[..., Any], column: C, *operands: Any) -> C:
    made: C = form(column, *operands)
    return made


def _sign(column: Any) -> Any:
    """Return ``when(x > 0).then(1).when(x < 0).then(-1).otherwise(x)``."""
    below = Value("fill_null", ((column < 0).value, lit(value=False)))
    above = Value("fill_null", ((column > 0).value, lit(value=False)))
    rest = Value("if_else", (below, lit(-1), column.value))
    return type(column)(Value("if_else", (above, lit(1), rest)))


def _all_of(form: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *operands: functools.reduce(form, operands)


def _both_null(column: Any, other: Any) -> Any:
    """Return True where both operands are null; a literal is null if it is None."""
    if isinstance(other, Spelled):
        return column.is_null() & other.is_null()  # type: ignore[attr-defined]
    return column.is_null() if other is None else False
