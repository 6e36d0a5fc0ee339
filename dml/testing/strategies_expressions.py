"""Random expressions of every operation are drawn here, over columns of known types."""

from __future__ import annotations

import datetime as dt
import operator
import random as randomness
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.data.list_marks import plain
from dml.errors import SchemaError
from dml.expr.columns import column as dml
from dml.expr.columns.column import Column, col, lit
from dml.expr.columns.placeholder_columns import row_id
from dml.testing.functions.table import MEANINGS
from dml.testing.oracle_types import code, shape, typed

Draw = randomness.Random
Kinds = dict[str, pa.DataType]
BIG = (0, 1, -1, 2, 3, 7, 100, 127, -128, 255, 2**31 - 1, -(2**63), 2**63 - 1)
SMALL = (0, 1, -1, 2, 3, 5, 10)
FLOATS = (0.0, -0.0, 0.5, -1.5, 2.0, 1e300, float("inf"), float("nan"), 3.25)
TYPES = ("i1", "i2", "i4", "i8", "u1", "u4", "u8", "f4", "f8", "b1")
UNARY = (
    *("sqrt", "exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tanh", "sigmoid"),
    *("floor", "ceil", "trunc", "abs"),
)


ARITHMETIC: tuple[Callable[[Any, Any, int], Any], ...] = (
    lambda a, b, _: a + b,
    lambda a, b, _: a - b,
    lambda a, b, _: a * b,
    lambda a, b, _: a / b,
    lambda a, b, _: a // b,
    lambda a, b, _: a % b,
    lambda a, _, small: small - a,
    lambda a, _, small: small // a,
    lambda a, _, small: a ** (abs(small) % 5 + 1),
)
COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (
    *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
    lambda a, _: a.between(-2, 4.5),
)


class Expressions:
    """Draws expressions over ``kinds``; an expression without a type is refused when it is used."""

    def __init__(self, draw: Draw, kinds: Kinds) -> None:
        self.draw, self.kinds = draw, kinds

    def names(self, letters: str) -> list[str]:
        """Return the scalar columns whose code begins with one of ``letters``."""
        found = self.kinds.items()
        return [
            n for n, k in found if code(k)[0] in letters and code(k) != "arrow" and not shape(k)
        ]

    def of(self, what: Callable[[pa.DataType], bool]) -> list[str]:
        """Return the columns whose type satisfies ``what``."""
        return [name for name, kind in self.kinds.items() if what(kind)]

    def any(self, depth: int = 3) -> Column:
        """Draw any expression that makes a column."""
        choices = [self.number, self.number, self.number, self.boolean, self.text, self.other]
        return self.draw.choice([*choices, self.any_function])(depth)

    def literal(self) -> Any:
        """Draw a number, often a limit of a type."""
        if self.draw.random() < 0.5:
            return self.draw.choice(SMALL)
        return self.draw.choice([*BIG, *FLOATS])

    def leaf(self) -> Column:
        """Draw a number without operations."""
        names = self.names("iuf")
        roll = self.draw.random()
        if names and roll < 0.8:
            return col(self.draw.choice(names))
        if roll < 0.85:
            return dml.random(stream=self.draw.randint(0, 3), seed=self.draw.choice([None, 5]))
        if roll < 0.87:
            return row_id()
        typed = self.draw.choice([None, None, "f4", "i2", "u1"])
        return lit(self.draw.choice(SMALL[:2]), typed) if typed else lit(self.literal())

    def number(self, depth: int) -> Column:
        """Draw a numeric expression."""
        if depth == 0:
            return self.leaf()
        kinds = [self.binary, self.binary, self.binary, self.unary, self.chosen, self.cast]
        more = [self.nulls, self.bits, self.special, self.extreme, self.counted]
        return self.draw.choice([*kinds, *more])(depth - 1)

    def binary(self, depth: int) -> Column:
        """Draw an arithmetic operation of two numbers."""
        a = self.number(depth)
        b = self.number(depth) if self.draw.random() < 0.5 else self.literal()
        small = self.draw.choice(SMALL)
        made: Column = self.draw.choice(ARITHMETIC)(a, b, small)
        return made

    def unary(self, depth: int) -> Column:
        """Draw a function of one number."""
        a = self.number(depth)
        if self.draw.random() < 0.2:
            return -a
        if self.draw.random() < 0.2:
            return a.round(self.draw.choice([0, 1, 2, -1]))
        made: Column = getattr(a, self.draw.choice(UNARY))()
        return made

    def chosen(self, depth: int) -> Column:
        """Draw a when-then-otherwise expression."""
        other = self.number(depth) if self.draw.random() < 0.7 else None
        made = dml.when(self.boolean(depth)).then(self.number(depth))
        if self.draw.random() < 0.3:
            made = made.when(self.boolean(0)).then(self.literal())
        return made.otherwise(other)

    def cast(self, depth: int) -> Column:
        """Draw a cast; a strict cast only to float64, where few values fail."""
        if self.draw.random() < 0.15:
            return self.boolean(depth).cast("i4")
        if self.draw.random() < 0.2:
            return self.number(depth).cast("f8")
        return self.number(depth).cast(self.draw.choice(TYPES[:-1]), strict=False)

    def nulls(self, depth: int) -> Column:
        """Draw a replacement of nulls or NaN."""
        a = self.number(depth)
        if self.draw.random() < 0.5:
            return a.fill_null(self.draw.choice([0, self.number(0)]))
        return a.cast("f8").fill_nan(self.draw.choice([0.5, None, self.number(0)]))

    def bits(self, depth: int) -> Column:
        """Draw an operation on the bits of integers."""
        names = self.names("iu")
        if not names:
            return self.number(depth)
        a = col(self.draw.choice(names))
        b = self.draw.choice([*SMALL, 70, col(self.draw.choice(names))])
        return self.draw.choice([a & b, a | b, a ^ b, ~a, a << b, a >> b])

    def special(self, depth: int) -> Column:
        """Draw a hash or a bucket number."""
        every = self.of(lambda kind: not shape(kind) and not pa.types.is_nested(plain(kind)))
        named = col(self.draw.choice(every)) if every else self.number(depth)
        roll = self.draw.random()
        if roll < 0.3:
            return named.hash(seed=self.draw.choice([0, 0, 9]))
        if roll < 0.6:
            return named.hash(self.draw.choice([2, 7, 1000]))
        return self.number(depth).bucketize([-1.5, 0, 0.25, 3, 1e9])

    def extreme(self, depth: int) -> Column:
        """Draw a minimum, a maximum or a clip."""
        a, b = self.number(depth), self.draw.choice([self.number(0), self.literal()])
        if self.draw.random() < 0.3:
            return a.clip(self.draw.choice([None, -1, 0.0]), self.draw.choice([None, 2, 9]))
        return self.draw.choice([dml.minimum, dml.maximum])(a, b)

    def boolean(self, depth: int) -> Column:
        """Draw a condition."""
        if depth > 0 and self.draw.random() < 0.4:
            a, b = self.boolean(depth - 1), self.boolean(depth - 1)
            return self.draw.choice([a & b, a | b, a ^ b, ~a])
        choices = [self.compared, self.compared, self.tested, self.member, self.truth]
        return self.draw.choice(choices)(max(0, depth - 1))

    def compared(self, depth: int) -> Column:
        """Draw a comparison of two numbers."""
        a, b = self.number(depth), self.draw.choice([self.literal(), self.number(0)])
        made: Column = self.draw.choice(COMPARISONS)(a, b)
        return made

    def tested(self, depth: int) -> Column:
        """Draw a test for null or NaN, or a boolean column."""
        names = self.names("b")
        if names and self.draw.random() < 0.5:
            return col(self.draw.choice(names))
        roll = self.draw.random()
        if roll < 0.4:
            return col(self.draw.choice(list(self.kinds))).is_null()
        if roll < 0.7:
            return self.number(depth).is_not_null()
        return self.number(depth).cast("f8").is_nan()

    def member(self, depth: int) -> Column:
        """Draw a membership test, or a comparison of text or times."""
        texts = self.of(pa.types.is_string)
        if texts and self.draw.random() < 0.6:
            text = col(self.draw.choice(texts))
            words = ["a", "", "the cat", "naïve café"]
            compared = [text == "a", text != "b", text < "m", text.is_in(words)]
            return self.draw.choice(compared)
        times = self.of(pa.types.is_timestamp)
        if times and self.draw.random() < 0.6:
            return col(self.draw.choice(times)) >= dt.datetime(2024, 3, 1)
        return self.number(depth).is_in([0, 1, self.draw.choice([7, 2.5, -1])])

    def text(self, depth: int) -> Column:
        """Draw text that is chosen, filled, or made by a function."""
        names, binary = self.of(pa.types.is_string), self.of(pa.types.is_binary)
        if binary and self.draw.random() < 0.2:
            return col(self.draw.choice(binary)).str.decode(strict=False)
        if not names:
            return self.other(depth)
        a = col(self.draw.choice(names))
        chosen = dml.when(self.boolean(depth - 1)).then(a).otherwise("other")
        made = self.function(pa.types.is_string, depth)
        made = a.str.encode() if made is None else made
        return self.draw.choice([a.fill_null("none"), chosen, made, a])

    def function(self, wanted: Callable[[pa.DataType], bool], depth: int) -> Column | None:
        """Draw a function of the table with a ``wanted`` result type; None if no column fits."""
        named = [(col(name), kind) for name, kind in self.kinds.items()]
        found: list[Column] = []
        for meaning in MEANINGS.values():
            taken = [column for column, kind in named if meaning.takes(plain(kind))]
            if taken:
                made = meaning.drawn(self.draw, self.draw.choice(taken))
                kind = self.kind_of(made)
                found += [made] * (kind is not None and wanted(kind))
                # its result may be the input of a further function
                often = kind is not None and (pa.types.is_nested(kind) or depth > 1)
                named += [(made, kind)] * (often and self.draw.random() < 0.3)
        return self.draw.choice(found) if found else None

    def kind_of(self, column: Column) -> pa.DataType | None:
        """Return the type of ``column``, None where it has none."""
        try:
            return typed(column.value, self.kinds).kind
        except SchemaError:
            return None

    def any_function(self, depth: int) -> Column:
        """Draw a function of the table with any result type."""
        made = self.function(lambda _: True, depth)
        return self.number(depth) if made is None else made

    def counted(self, depth: int) -> Column:
        """Draw a function with a numeric result."""
        made = self.function(lambda kind: code(kind)[0] in "iuf", depth)
        return self.number(depth) if made is None else made

    def truth(self, depth: int) -> Column:
        """Draw a function with a boolean result."""
        made = self.function(lambda kind: kind == pa.bool_(), depth)
        return self.tested(depth) if made is None else made

    def other(self, depth: int) -> Column:
        """Draw a stack, an operation on tensors, a literal or a random number."""
        tensors = self.of(lambda kind: bool(shape(kind)))
        if tensors and self.draw.random() < 0.6:
            t = col(self.draw.choice(tensors))
            made = [t * 2, t + t, -t, t.abs(), t / 3, dml.minimum(t, 1), t.cast("f8"), t]
            return self.draw.choice(
                [*made, t.sqrt(), t // 2, dml.when(self.boolean(0)).then(t).otherwise(t + 1)]
            )
        names = self.names("iuf")
        if names and self.draw.random() < 0.5:
            return dml.stack(*[self.draw.choice(names) for _ in "ab"])
        drawn = [dml.random(), row_id(), row_id(exact=True)]
        return self.draw.choice([lit("word"), lit(1), lit(None, "f8"), lit(b"x"), *drawn])
