"""This file draws expressions that read the same in dml and in Polars, and makes them in both.

An expression is a function of the library: ``build(dml)`` and ``build(polars)``. Drawn is what both
define alike; where they differ on purpose is told beside the choice that avoids it.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

Build = Callable[[Any], Any]
ROWS = 40
WORDS = ("", "a", "Ab", "bcd", "  pad ", "x-y-z", "12", "naïve", "Ünder")


def table(rng: random.Random) -> pa.Table:
    """Columns of every kind with nulls; floats are finite, since Polars has NaN equal itself."""

    def column(draw: Callable[[], Any], kind: Any) -> pa.Array:
        return pa.array([None if rng.random() < 0.15 else draw() for _ in range(ROWS)], kind)

    start = dt.datetime(1969, 1, 1)
    return pa.table(
        {
            "key": column(lambda: rng.randrange(4), pa.int64()),
            "a": column(lambda: rng.choice((0, 1, -7, 2**62, rng.randrange(-99, 99))), pa.int64()),
            "b": column(lambda: rng.randrange(-9, 10), pa.int32()),
            "f": column(lambda: rng.choice((0.0, -0.0, 1.5, rng.uniform(-9, 9))), pa.float64()),
            "g": column(lambda: rng.uniform(0.1, 9), pa.float64()),
            "p": column(lambda: rng.random() < 0.5, pa.bool_()),
            "s": column(lambda: rng.choice(WORDS), pa.string()),
            "t": column(lambda: rng.choice(WORDS), pa.string()),
            "l": column(
                lambda: [rng.randrange(9) for _ in range(rng.randrange(4))], pa.list_(pa.int64())
            ),
            "d": column(
                lambda: start + dt.timedelta(seconds=rng.randrange(10**10)),
                pa.timestamp("us"),
            ),
        }
    )


def one_of(rng: random.Random, *choices: Callable[[], Build]) -> Build:
    return rng.choice(choices)()


def named(rng: random.Random, *names: str) -> Build:
    name = rng.choice(names)
    return lambda m: m.col(name)


def integer(rng: random.Random, depth: int) -> Build:
    if depth <= 0:
        return named(rng, "a", "b")
    x, y = integer(rng, depth - 1), integer(rng, depth - 1)
    n = rng.choice((-3, 2, 5))
    whole = rng.randrange(-9, 9)
    return one_of(
        rng,
        lambda: lambda m: x(m) + y(m),
        lambda: lambda m: x(m) - y(m),
        lambda: lambda m: x(m) * n,
        lambda: lambda m: -x(m),
        lambda: lambda m: x(m) // n,  # by zero: both give null, but for literals Polars differs
        lambda: lambda m: x(m) % n,
        lambda: lambda m: x(m).fill_null(whole),
        lambda: lambda m: x(m).clip(-5, 20),
        lambda: chosen(rng, depth, x, y),
        lambda: lambda m: m.col("s").str.len_bytes().cast(_long(m)),
        lambda: lambda m: m.col("l").list.len().cast(_long(m)),
        lambda: lambda m: m.col("l").list.sum(),
        lambda: lambda m: m.col("l").list.max(),
        lambda: lambda m: m.col("d").dt.year().cast(_long(m)),
        lambda: lambda m: m.col("d").dt.weekday().cast(_long(m)),
        lambda: lambda m: m.col("d").dt.ordinal_day().cast(_long(m)),
        lambda: lambda m: m.col("d").dt.second().cast(_long(m)),
        lambda: lambda m: m.col("d").dt.week().cast(_long(m)),
    )


def _long(m: Any) -> Any:
    return getattr(m, "Int64", "i8")


def floating(rng: random.Random, depth: int) -> Build:
    if depth <= 0:
        return named(rng, "f", "g")
    x, y = floating(rng, depth - 1), floating(rng, depth - 1)
    i = integer(rng, depth - 1)
    return one_of(
        rng,
        lambda: lambda m: x(m) + y(m),
        lambda: lambda m: x(m) - y(m),
        lambda: lambda m: x(m) * 0.37,
        lambda: lambda m: x(m) / m.col("g"),
        lambda: lambda m: i(m) / 8,  # Polars multiplies by the inverse of a literal
        lambda: lambda m: i(m) + x(m),
        lambda: lambda m: x(m).abs(),
        lambda: lambda m: x(m).floor(),
        lambda: lambda m: x(m).ceil(),
        lambda: lambda m: x(m).fill_null(0.5),
        lambda: lambda m: m.col("g").sqrt(),
        lambda: lambda m: m.col("l").list.mean(),
        lambda: chosen(rng, depth, x, y),
    )


def truth(rng: random.Random, depth: int) -> Build:
    if depth <= 0:
        return named(rng, "p")
    x, y = truth(rng, depth - 1), truth(rng, depth - 1)
    i, j, f, s = (make(rng, depth - 1) for make in (integer, integer, floating, text))
    n = rng.randrange(-5, 20)
    return one_of(
        rng,
        lambda: lambda m: x(m) & y(m),
        lambda: lambda m: x(m) | y(m),
        lambda: lambda m: ~x(m),
        lambda: lambda m: i(m) < j(m),
        lambda: lambda m: i(m) == n,
        lambda: lambda m: f(m) >= 0.5,
        lambda: lambda m: i(m).is_null(),
        lambda: lambda m: i(m).is_in([1, 2, n]),
        lambda: lambda m: i(m).is_between(-5, 9) if hasattr(m, "Int64") else i(m).between(-5, 9),
        lambda: lambda m: s(m) == m.col("t"),
        lambda: lambda m: s(m).str.starts_with("a"),
        lambda: lambda m: s(m).str.contains("[a-c]x?"),
        lambda: lambda m: m.col("l").list.contains(3),
    )


def text(rng: random.Random, depth: int) -> Build:
    if depth <= 0:
        return named(rng, "s", "t")
    x = text(rng, depth - 1)
    n, k = rng.randrange(-3, 4), rng.randrange(4)
    return one_of(
        rng,
        lambda: lambda m: x(m).str.to_lowercase(),
        lambda: lambda m: x(m).str.to_uppercase(),
        lambda: lambda m: x(m).str.strip_chars(),
        lambda: lambda m: x(m).str.replace_all("a", "é", literal=True),
        lambda: lambda m: x(m).str.replace("[b-d]+", "_"),
        lambda: lambda m: x(m).str.slice(n, k),
        lambda: lambda m: x(m).str.pad_start(5, "*"),
        lambda: lambda m: x(m).fill_null("none"),
        lambda: lambda m: x(m).str.split("-").list.first(),
        lambda: chosen(rng, depth, x, text(rng, 0)),
    )


def chosen(rng: random.Random, depth: int, x: Build, y: Build) -> Build:
    """A null condition is null in dml, and false in Polars: none is null."""
    test = truth(rng, depth - 1)
    return lambda m: m.when(test(m).fill_null(False)).then(x(m)).otherwise(y(m))


KINDS: tuple[Callable[[random.Random, int], Build], ...] = (integer, floating, truth, text)


def drawn(rng: random.Random) -> Build:
    """An expression of some kind and depth."""
    return rng.choice(KINDS)(rng, rng.randrange(1, 4))
