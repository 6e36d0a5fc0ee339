"""Draw rows for the corpus: plain values mixed with edge cases."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tests.corpus.case import F4, FLOATS, I4, INTS, TEXTS, U1, B, Columns, D, F, I, S, T

WORDS = (
    *(
        "yes",
        "No",
        "red",
        "green",
        "Sat",
        "the cat sat",
        " Padded\t",
        "a.b@c.org",
        "bot 7",
        "a",
        "b",
    ),
    *("photo.final.JPG", "x.jpg", "12", "1,234.5", "$9.99", "3.25", "-7", "sale", "abc", "crawler"),
)
MOMENT = dt.datetime(2024, 2, 28, 23, 59, 59, 999999)
EDGE_FLOATS = (
    *(
        0.0,
        -0.0,
        math.nan,
        math.inf,
        -math.inf,
        1e308,
        -1e308,
        5e-324,
        2.0**53,
        2.0**63,
        -(2.0**63),
    ),
    *(0.5, 1.5, 2.5, 2.675, 1e16, 709.9, -1.0, 1.0, 255.0, 1e-9),
)
EDGE_INTS = (
    *(0, 1, -1, 2, 7, -7, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63)),
    *(3037000500, -3037000500, 255),
)
EDGE_TEXTS = (
    *(
        "",
        " ",
        "\x1c\x85 a\u2003",
        "é",
        "İstanbul",
        "straße",
        "ǅ",
        "\uffff",
        "\U0001f600",
        "٣",
        "²",
    ),
    *("nan", "inf", "-1e400", "1_000", " 7 ", "0x1", "a\x00b", "e\u0301", "Σ", "." * 3, "\r\n"),
)
EDGE_MOMENTS = (
    *(dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 1)),
    *(dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(2000, 2, 29)),
)

Draw = random.Random


def _list(item: Callable[[Draw], Any], edges: tuple[Any, ...]) -> tuple[Any, Any]:
    def plain(draw: Draw) -> list[Any]:
        return [item(draw) for _ in range(draw.randrange(1, 5))]

    def edge(draw: Draw) -> list[Any] | None:
        return draw.choice(
            [[], None, [draw.choice(edges)], [draw.choice((*edges, None)), item(draw)]]
        )

    return plain, edge


def _one(edges: tuple[Any, ...]) -> Callable[[Draw], Any]:
    return lambda draw: None if draw.random() < 0.2 else draw.choice(edges)


def _float(draw: Draw) -> float:
    return draw.uniform(-10, 120)


def _whole(draw: Draw) -> int:
    return draw.randrange(-20, 100)


def _word(draw: Draw) -> str:
    return draw.choice(WORDS)


def _narrow(draw: Draw) -> float:
    return float(np.float32(draw.uniform(-10, 120)))


NARROW_EDGES = tuple(
    float(np.float32(x)) for x in (0.0, -0.0, 3e38, math.inf, math.nan, 0.1, 1e-45)
)
Maker = Callable[[Draw], Any]
DRAWN: dict[pa.DataType, tuple[Maker, Maker]] = {
    F: (_float, _one(EDGE_FLOATS)),
    F4: (_narrow, _one(NARROW_EDGES)),
    I: (_whole, _one(EDGE_INTS)),
    I4: (_whole, _one((0, 1, -1, 2**31 - 1, -(2**31)))),
    U1: (lambda draw: draw.randrange(256), _one((0, 255, 127, 128))),
    B: (lambda draw: draw.random() < 0.5, _one((True, False))),
    S: (_word, _one((*WORDS, *EDGE_TEXTS))),
    T: (
        lambda draw: MOMENT + dt.timedelta(seconds=draw.randrange(10**8)),
        _one(EDGE_MOMENTS),
    ),
    D: (
        lambda draw: MOMENT.date() + dt.timedelta(days=draw.randrange(4000)),
        _one(tuple(each.date() for each in EDGE_MOMENTS)),
    ),
    TEXTS: _list(_word, EDGE_TEXTS),
    INTS: _list(_whole, EDGE_INTS),
    FLOATS: _list(_float, EDGE_FLOATS),
}


def drawn(columns: Columns, rows: int, guards: float, seed: int) -> pa.Table:
    """A table of ``rows`` rows in batches of many sizes; a share ``guards`` of values is odd."""
    draw = random.Random(seed)
    arrays = []
    for kind in columns.values():
        plain, edge = DRAWN[kind]
        values = [edge(draw) if draw.random() < guards else plain(draw) for _ in range(rows)]
        arrays.append(pa.array(values, kind))
    whole = pa.table(arrays, names=list(columns))
    parts, start = [], 0
    while start < rows:
        size = draw.choice((1, 7, 100, 1000, 8192))
        parts.append(whole.slice(start, size))
        start += size
    return pa.concat_tables(parts)
