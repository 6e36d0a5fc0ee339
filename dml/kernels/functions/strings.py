"""Functions of text count a character as one Unicode code point.

Patterns have the syntax and meaning of RE2. Case is mapped one code point to one, by the Unicode
version of pyarrow: "ß" becomes "ẞ", never "SS".
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from dml.kernels.arrow_ops import compute
from dml.kernels.functions.function import (
    TEXT,
    Arrays,
    Function,
    Kinds,
    Params,
    always,
    is_bytes,
    is_text,
    listed,
    of_one,
    same,
)

TEXT_OR_BYTES = Kinds("text or bytes", lambda kind: is_text(kind) or is_bytes(kind), pa.string())


def _of_arrow(function: str, *options: str) -> Callable[[Arrays, Params], pa.Array]:
    """Make ``Function.run`` of a pyarrow.compute function; parameters become its ``options``."""

    def run(arrays: Arrays, params: Params) -> pa.Array:
        return getattr(compute(), function)(arrays[0], **dict(zip(options, params, strict=True)))

    return run


def _stripping(function: str) -> Callable[[Arrays, Params], pa.Array]:
    """Make ``Function.run`` that strips the parameter's characters (None: white space)."""

    def run(text: pa.Array, characters: str | None) -> pa.Array:
        if characters is None:
            return getattr(compute(), f"{function}_whitespace")(text)
        return getattr(compute(), function)(text, characters=characters) if characters else text

    return of_one(run)


def contains(text: pa.Array, pattern: str, literal: bool) -> pa.Array:  # noqa: FBT001 - a parameter
    """Return true where the text contains a match of ``pattern``."""
    pc = compute()
    found = pc.match_substring if literal else pc.match_substring_regex
    return found(text, pattern=pattern)


def replace(text: pa.Array, pattern: str, value: str, literal: bool, n: int | None) -> pa.Array:  # noqa: FBT001
    """Replace the first ``n`` (None: all) matches of ``pattern``, left to right, by ``value``."""
    if n == 0:
        return text
    pc = compute()
    replaced = pc.replace_substring if literal else pc.replace_substring_regex
    return replaced(text, pattern=pattern, replacement=value, max_replacements=n)


def extract(text: pa.Array, pattern: str, group: int) -> pa.Array:
    """Return the text of a group in the first match of the pattern; null without a match."""
    pc = compute()
    whole = rf"(?s:\A.*?)({pattern})(?s:.*\z)"
    found = pc.replace_substring_regex(text, pattern=whole, replacement=rf"\{group + 1}")
    matched = pc.match_substring_regex(text, pattern=pattern)
    return pc.if_else(matched, found, pa.scalar(None, text.type))


def count_matches(text: pa.Array, pattern: str, literal: bool) -> pa.Array:  # noqa: FBT001
    """Count the matches of ``pattern``, each searched from the end of the match before."""
    pc = compute()
    count = pc.count_substring if literal else pc.count_substring_regex
    return count(text, pattern=pattern)


def slice_text(text: pa.Array, offset: int, length: int | None) -> pa.Array:
    """Return ``text[offset:][:length]`` of each text."""
    pc = compute()
    if offset >= 0:
        stop = None if length is None else offset + length
        return pc.utf8_slice_codeunits(text, start=offset, stop=stop)
    tail = pc.utf8_slice_codeunits(text, start=offset)
    return tail if length is None else pc.utf8_slice_codeunits(tail, start=0, stop=length)


def concat(texts: Arrays, params: Params) -> pa.Array:
    """Join the texts of each row with the separator ``params[0]``; null if any text is null."""
    separator = pa.scalar(params[0], texts[0].type)
    return compute().binary_join_element_wise(*texts, separator, null_handling="emit_null")


COUNT, FLAG = always(pa.int64()), always(pa.bool_())

FUNCTIONS = (
    Function("str.len_chars", TEXT, COUNT, _of_arrow("utf8_length")),
    Function("str.len_bytes", TEXT_OR_BYTES, COUNT, _of_arrow("binary_length")),
    Function("str.to_lowercase", TEXT, same, _of_arrow("utf8_lower")),
    Function("str.to_uppercase", TEXT, same, _of_arrow("utf8_upper")),
    Function("str.reverse", TEXT, same, _of_arrow("utf8_reverse")),
    Function("str.strip_chars", TEXT, same, _stripping("utf8_trim")),
    Function("str.strip_chars_start", TEXT, same, _stripping("utf8_ltrim")),
    Function("str.strip_chars_end", TEXT, same, _stripping("utf8_rtrim")),
    Function("str.starts_with", TEXT, FLAG, _of_arrow("starts_with", "pattern")),
    Function("str.ends_with", TEXT, FLAG, _of_arrow("ends_with", "pattern")),
    Function("str.contains", TEXT, FLAG, of_one(contains)),
    Function("str.replace", TEXT, same, of_one(replace)),
    Function("str.extract", TEXT, same, of_one(extract)),
    Function("str.count_matches", TEXT, COUNT, of_one(count_matches)),
    Function("str.slice", TEXT, same, of_one(slice_text)),
    Function("str.split", TEXT, listed, _of_arrow("split_pattern", "pattern")),
    Function("str.zfill", TEXT, same, _of_arrow("utf8_zero_fill", "width")),
    Function("str.pad_start", TEXT, same, _of_arrow("utf8_lpad", "width", "padding")),
    Function("str.pad_end", TEXT, same, _of_arrow("utf8_rpad", "width", "padding")),
    Function("str.concat", TEXT, same, concat, rest=lambda kind: kind),
)
