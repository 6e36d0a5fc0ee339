"""The oracle computes tokenizers and n-grams in plain Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.expr.columns.column import Column
from dml.testing.functions.meaning import TEXT, Draw, FunctionMeaning, Gives, Params, fixed


def words(text: str, pattern: str) -> list[str]:
    """Split at matches of the pattern, each searched in the rest of the text; drop empty parts."""
    found = []
    while (place := re.search(pattern, text, re.ASCII)) is not None:
        found.append(text[: place.start()])
        text = text[place.end() :]
    return [part for part in [*found, text] if part]


def grams(text: str, least: int, most: int) -> list[str]:
    """Return all substrings of the widths, the narrow ones first."""
    widths = range(least, most + 1)
    return [text[i : i + n] for n in widths for i in range(len(text) - n + 1)]


def list_grams(values: list[str | None], least: int, most: int, separator: str) -> list[str]:
    """Return all runs of elements of the widths, the narrow ones first."""
    there = [value for value in values if value is not None]
    widths = range(least, most + 1)
    return [separator.join(there[i : i + n]) for n in widths for i in range(len(there) - n + 1)]


def _of_text(
    name: str, gives: Gives, means: Callable[..., Any], drawn: Callable[[Draw, Column], Column]
) -> FunctionMeaning:
    return FunctionMeaning(
        f"str.{name}", lambda kind: kind in TEXT, gives, means, drawn, pa.string()
    )


def _listed(kind: pa.DataType, _params: Params) -> pa.DataType:
    return pa.list_(kind)


def _loose(kind: pa.DataType, _params: Params) -> pa.DataType:
    return pa.list_(kind.value_type) if pa.types.is_fixed_size_list(kind) else kind


def _texts(kind: pa.DataType) -> bool:
    listed = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in listed) and kind.value_type in TEXT


def _worded(draw: Draw, c: Column) -> Column:
    pattern = draw.choice([None, "[^a-z]+", "a", "^t| ", "(h)e?"])
    return c.str.tokenize_words(pattern, lower=draw.random() < 0.3)


def _widths(draw: Draw) -> tuple[int, int | None]:
    return draw.choice([(1, None), (2, None), (1, 2), (2, 4), (9, None)])


MEANINGS = (
    _of_text(
        "tokenize_bytes",
        fixed(pa.list_(pa.uint8())),
        lambda text: list(text.encode()),
        lambda _, c: c.str.tokenize_bytes(),
    ),
    _of_text(
        "tokenize_chars",
        fixed(pa.list_(pa.int32())),
        lambda text: [ord(c) for c in text],
        lambda _, c: c.str.tokenize_chars(),
    ),
    _of_text("tokenize_words", _listed, words, _worded),
    _of_text("ngrams", _listed, grams, lambda d, c: c.str.ngrams(*_widths(d))),
    FunctionMeaning(
        "list.ngrams",
        _texts,
        _loose,
        list_grams,
        lambda d, c: c.list.ngrams(*_widths(d), separator=d.choice([" ", "", "é"])),
    ),
)
