"""Draw expressions that dml and Polars can both compute, and build them in both.

An expression is a function of the library: ``build(dml)`` and ``build(polars)``. Only expressions
that both define alike are drawn; comments state where the two differ on purpose.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa

Build = Callable[[Any], Any]
ROWS = 40
WORDS = ("", "a", "Ab", "bcd", "  pad ", "x-y-z", "12", "naïve", "Ünder", "-7", "+3", "1.5", "c-d")
MOMENTS = ("1969-12-31 23:59:59", "2024-02-29 12:30:00", "2023-02-29 00:00:00", "12:30", "")
SPANS = ("15m", "1h", "5h", "1d", "7d", "1w", "1mo", "1q", "1y", "5s", "250ms")


def table(rng: random.Random) -> pa.Table:
    """Columns of every kind with nulls; floats are finite, since Polars has NaN equal itself."""

    def column(draw: Callable[[], Any], kind: Any) -> pa.Array:
        return pa.array([None if rng.random() < 0.15 else draw() for _ in range(ROWS)], kind)

    def whole() -> int | None:
        return None if rng.random() < 0.1 else rng.randrange(9)

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
            "l": column(lambda: [whole() for _ in range(rng.randrange(5))], pa.list_(pa.int64())),
            "d": column(
                lambda: start + dt.timedelta(seconds=rng.randrange(10**10)),
                pa.timestamp("us"),
            ),
            "w": column(lambda: rng.choice(MOMENTS), pa.string()),
            "r": column(
                lambda: {"u": whole(), "v": rng.choice(WORDS)},
                pa.struct([("u", pa.int64()), ("v", pa.string())]),
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
        lambda: _of_list(rng, depth),
        lambda: _of_text(rng, depth),
        lambda: lambda m: x(m).fill_null(0).replace({0: 3, n: whole}),  # of null: only Polars
        lambda: (
            lambda m: x(m).fill_null(0).replace_strict({0: 5, n: 2}, default=whole).cast(_long(m))
        ),
        lambda: _of_struct(rng, "u"),
        lambda: _of_moment(rng, depth),
        lambda: _of_moment(rng, depth),
    )


PARTS = (
    *("year", "iso_year", "quarter", "month", "week", "day", "weekday", "ordinal_day"),
    *("hour", "minute", "second", "millisecond", "microsecond"),
)


def _of_moment(rng: random.Random, depth: int) -> Build:
    x, part = moment(rng, depth - 1), rng.choice(PARTS)
    unit = rng.choice(("d", "s", "ms", "us"))
    return one_of(
        rng,
        lambda: lambda m: getattr(x(m).dt, part)().cast(_long(m)),
        lambda: lambda m: x(m).dt.epoch(unit).cast(_long(m)),
    )


def _of_list(rng: random.Random, depth: int) -> Build:
    x, n = listed(rng, depth - 1), rng.randrange(-3, 3)
    figure = rng.choice(("sum", "min", "max", "first", "last"))
    return one_of(
        rng,
        lambda: lambda m: getattr(x(m).list, figure)(),
        lambda: lambda m: x(m).list.get(n, null_on_oob=True),
        lambda: lambda m: x(m).list.len().cast(_long(m)),
    )


def _of_text(rng: random.Random, depth: int) -> Build:
    x = text(rng, depth - 1)
    return one_of(
        rng,
        lambda: lambda m: x(m).str.len_chars().cast(_long(m)),
        lambda: lambda m: x(m).str.to_integer(strict=False),
        lambda: lambda m: x(m).str.count_matches("[a-d]+|[-]").cast(_long(m)),
        lambda: lambda m: x(m).str.count_matches("-", literal=True).cast(_long(m)),
    )


def _of_struct(rng: random.Random, name: str) -> Build:
    other = {"u": "one", "v": "two"}[name]
    return one_of(
        rng,
        lambda: lambda m: m.col("r").struct.field(name),
        lambda: lambda m: m.col("r").struct.rename_fields(["one", "two"]).struct.field(other),
    )


def moment(rng: random.Random, depth: int) -> Build:
    if depth <= 0:
        return named(rng, "d")
    x, span = moment(rng, depth - 1), rng.choice(SPANS)
    return one_of(
        rng,
        lambda: lambda m: x(m).dt.truncate(span),
        lambda: _read,
        lambda: lambda m: m.when(m.col("p").fill_null(False)).then(x(m)).otherwise(m.col("d")),
    )


def _read(m: Any) -> Any:
    """Polars reads numbers of fewer digits too, which are not drawn."""
    return m.col("w").str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)


def listed(rng: random.Random, depth: int) -> Build:
    if depth <= 0:
        return named(rng, "l")
    x = listed(rng, depth - 1)
    n, k = rng.randrange(-3, 4), rng.randrange(4)
    most = k if n >= 0 else None  # from before the first one on, Polars counts those that are not
    down = rng.random() < 0.5
    return one_of(
        rng,
        lambda: lambda m: x(m).list.sort(descending=down, **_polars(m, nulls_last=True)),
        lambda: lambda m: _distinct(m, x(m)),
        lambda: lambda m: x(m).list.reverse(),
        lambda: lambda m: x(m).list.drop_nulls(),
        lambda: lambda m: x(m).list.slice(n, most),
        lambda: lambda m: x(m).list.head(k),
        lambda: lambda m: x(m).list.eval(m.element() * n + k),
        lambda: lambda m: x(m).list.eval(m.element().fill_null(k) % 3),
    )


def _distinct(m: Any, x: Any) -> Any:
    return x.list.unique(**_polars(m, maintain_order=True))


def _polars(m: Any, **options: Any) -> dict[str, Any]:
    """What dml always does, and Polars where it is asked to."""
    return options if hasattr(m, "Int64") else {}


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
        lambda: lambda m: s(m).str.ends_with("d"),
        lambda: lambda m: s(m).str.contains("-", literal=True),
        lambda: lambda m: s(m).is_in(["a", "12", "none"]),
        lambda: lambda m: m.col("l").list.contains(3),
        lambda: lambda m: x(m).fill_null(value=True),
    )


def text(rng: random.Random, depth: int) -> Build:
    if depth <= 0:
        return named(rng, "s", "t")
    x = text(rng, depth - 1)
    n, k = rng.randrange(-3, 4), rng.randrange(4)
    most = k if n >= 0 else None  # from before the first one on, Polars counts those that are not
    return one_of(
        rng,
        lambda: lambda m: x(m).str.to_lowercase(),
        lambda: lambda m: x(m).str.to_uppercase(),
        lambda: lambda m: x(m).str.reverse(),
        lambda: lambda m: x(m).str.strip_chars(),
        lambda: lambda m: x(m).str.replace_all("a", "é", literal=True),
        lambda: lambda m: x(m).str.replace("[b-d]+", "_"),
        lambda: lambda m: x(m).str.slice(n, most),
        lambda: lambda m: x(m).str.pad_start(5, "*"),
        lambda: lambda m: x(m).str.pad_end(5, "é"),
        lambda: lambda m: x(m).str.zfill(4),
        lambda: lambda m: x(m).str.tail(k),
        lambda: lambda m: x(m).str.strip_chars_start("xb "),
        lambda: lambda m: x(m).str.strip_chars_end("cz-"),
        lambda: lambda m: x(m).fill_null("none"),
        lambda: lambda m: x(m).str.split("-").list.first(),
        lambda: lambda m: x(m).str.split("-").list.reverse().list.join("+"),
        lambda: lambda m: _distinct(m, x(m).str.split("a")).list.join("."),
        lambda: lambda m: x(m).str.extract("([a-d]+)-?(.)", 1 + k % 2),
        lambda: lambda m: x(m).fill_null("").replace({"": "empty", "a": "A"}),
        lambda: lambda m: x(m).fill_null("").replace_strict({"a": "A", "12": ""}, default="?"),
        lambda: _joined(rng, x, text(rng, 0)),
        lambda: _of_struct(rng, "v"),
        lambda: _written(rng, depth),
        lambda: chosen(rng, depth, x, text(rng, 0)),
    )


def _joined(rng: random.Random, x: Build, y: Build) -> Build:
    separator = rng.choice(("", "~"))
    return lambda m: (
        m.concat_str([x(m), y(m)], separator=separator)
        if hasattr(m, "Int64")
        else x(m).str.concat(y(m), separator=separator)
    )


def _written(rng: random.Random, depth: int) -> Build:
    x, form = moment(rng, depth - 1), rng.choice(("%Y-%m-%d", "%d.%m.%Y %H:%M", "%S%%"))
    return lambda m: x(m).dt.strftime(form)


def chosen(rng: random.Random, depth: int, x: Build, y: Build) -> Build:
    """A null condition is null in dml, and false in Polars: none is null."""
    test = truth(rng, depth - 1)
    return lambda m: m.when(test(m).fill_null(False)).then(x(m)).otherwise(y(m))


KINDS: tuple[Callable[[random.Random, int], Build], ...] = (
    *(integer, floating, truth, text),
    *(moment, listed),
)


def drawn(rng: random.Random) -> Build:
    """An expression of some kind and depth."""
    return rng.choice(KINDS)(rng, rng.randrange(1, 4))
