"""The oracle computes functions of text in plain Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dml.expr.columns.column import Column
from dml.testing.functions.meaning import BYTES, TEXT, Draw, FunctionMeaning, Gives, fixed, kept

# RE2 and Python agree on these patterns, and none of them matches the empty text.
PATTERNS = ("a", "[a-c]", "(t|d)o?", "^.", "e+", r"\d", "c.t|z", "(a)(.)", r"\w\s", "é")
WORDS = ("", "a", "the", " ", "Z", "é", "x y")
# Mappings to one character, where Python maps to two.
LOWER, UPPER = {"İ": "i"}, {"ß": "ẞ"}


def lowered(text: str) -> str:
    """Map each character to one lower-case character, also where the full mapping has two."""
    return "".join(LOWER.get(c, c.lower()) for c in text)


def uppered(text: str) -> str:
    """Map each character to one upper-case character, or one in title case if that is longer."""
    return "".join(_upper(c) for c in text)


def _upper(c: str) -> str:
    cases = (c.upper(), UPPER.get(c, ""), c.title(), c)
    return next(case for case in cases if len(case) == 1)


def found(text: str, pattern: str, literal: bool) -> bool:  # noqa: FBT001 - a parameter
    """True if a pattern matches anywhere in a text."""
    return pattern in text if literal else re.search(pattern, text, re.ASCII) is not None


def replaced(text: str, pattern: str, value: str, literal: bool, n: int | None) -> str:  # noqa: FBT001
    """Replace the first ``n`` matches, or all."""
    if n == 0:
        return text
    if literal:
        return text.replace(pattern, value, -1 if n is None else n)
    return re.sub(pattern, value, text, count=n or 0, flags=re.ASCII)


def extracted(text: str, pattern: str, group: int) -> str | None:
    """Return the text that a group matched; empty if it took no part, None without a match."""
    place = re.search(pattern, text, re.ASCII)
    return None if place is None else place[group] or ""


def counted(text: str, pattern: str, literal: bool) -> int:  # noqa: FBT001 - a parameter
    """Count matches, each searched in the text after the previous match."""
    if literal:
        return text.count(pattern)
    found = 0
    while (place := re.search(pattern, text, re.ASCII)) is not None:
        text, found = text[place.end() :], found + 1
    return found


def cut(text: Any, offset: int, length: int | None) -> Any:
    """Slice a text or a list by offset and length."""
    return text[offset:] if length is None else text[offset:][:length]


def joined(*texts: str) -> str:
    """Join texts with the last of them as the separator."""
    return texts[-1].join(texts[:-1])


def _size(value: str | bytes) -> int:
    return len(value.encode()) if isinstance(value, str) else len(value)


def _is_text(kind: pa.DataType) -> bool:
    return kind in TEXT


def _of_text(
    name: str,
    gives: Gives,
    means: Callable[..., Any],
    drawn: Callable[[Draw, Column], Column],
    rest: Callable[[pa.DataType], pa.DataType] | None = None,
) -> FunctionMeaning:
    return FunctionMeaning(f"str.{name}", _is_text, gives, means, drawn, pa.string(), rest)


def _replaced(draw: Draw, c: Column) -> Column:
    if draw.random() < 0.5:
        n = draw.choice([0, 1, 2])
        return c.str.replace(draw.choice(WORDS[1:]), draw.choice(WORDS), literal=True, n=n)
    pattern, value = draw.choice([*((p, "-") for p in PATTERNS), ("(a)(.)", r"\2\1")])
    if draw.random() < 0.5:
        return c.str.replace(pattern, value)
    return c.str.replace_all(pattern, value)


def _found(draw: Draw, c: Column) -> Column:
    if draw.random() < 0.5:
        return c.str.contains(draw.choice(WORDS), literal=True)
    return c.str.contains(draw.choice(PATTERNS))


def _concatenated(draw: Draw, c: Column) -> Column:
    return c.str.concat(draw.choice([c, "é", None, ""]), "z", separator=draw.choice(["", "-"]))


def _counted(draw: Draw, c: Column) -> Column:
    if draw.random() < 0.5:
        return c.str.count_matches(draw.choice(WORDS[1:]), literal=True)
    return c.str.count_matches(draw.choice(PATTERNS))


def _stripped(draw: Draw) -> str | None:
    return draw.choice([None, "", "a ", "yt"])


COUNT, FLAG = fixed(pa.int64()), fixed(pa.bool_())

MEANINGS = (
    _of_text("len_chars", COUNT, len, lambda _, c: c.str.len_chars()),
    FunctionMeaning(
        "str.len_bytes",
        lambda kind: kind in TEXT or kind in BYTES,
        COUNT,
        _size,
        lambda _, c: c.str.len_bytes(),
        pa.string(),
    ),
    _of_text("to_lowercase", kept, lowered, lambda _, c: c.str.to_lowercase()),
    _of_text("to_uppercase", kept, uppered, lambda _, c: c.str.to_uppercase()),
    _of_text("reverse", kept, lambda text: text[::-1], lambda _, c: c.str.reverse()),
    _of_text("strip_chars", kept, str.strip, lambda d, c: c.str.strip_chars(_stripped(d))),
    _of_text(
        "strip_chars_start", kept, str.lstrip, lambda d, c: c.str.strip_chars_start(_stripped(d))
    ),
    _of_text("strip_chars_end", kept, str.rstrip, lambda d, c: c.str.strip_chars_end(_stripped(d))),
    _of_text("starts_with", FLAG, str.startswith, lambda d, c: c.str.starts_with(d.choice(WORDS))),
    _of_text("ends_with", FLAG, str.endswith, lambda d, c: c.str.ends_with(d.choice(WORDS))),
    _of_text("contains", FLAG, found, _found),
    _of_text(
        "extract",
        kept,
        extracted,
        lambda d, c: c.str.extract(*d.choice([("(a)|(.)", 2), (r"(\w+)\s(\w)", 2), ("a.", 0)])),
    ),
    _of_text("count_matches", COUNT, counted, _counted),
    _of_text("replace", kept, replaced, _replaced),
    _of_text(
        "slice",
        kept,
        cut,
        lambda d, c: c.str.slice(d.choice([0, 1, 3, -1, -2, -99]), d.choice([None, 0, 1, 4])),
    ),
    _of_text(
        "split",
        lambda kind, _: pa.list_(kind),
        str.split,
        lambda d, c: c.str.split(d.choice([" ", "a", "é", "th"])),
    ),
    _of_text("zfill", kept, str.zfill, lambda d, c: c.str.zfill(d.choice([0, 2, 6]))),
    _of_text("pad_start", kept, str.rjust, lambda d, c: c.str.pad_start(d.choice([0, 2, 6]), "é")),
    _of_text("pad_end", kept, str.ljust, lambda d, c: c.str.pad_end(d.choice([0, 2, 6]))),
    _of_text("concat", kept, joined, _concatenated, rest=lambda kind: kind),
)
