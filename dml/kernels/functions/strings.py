"""Functions of text count a character as one Unicode code point.

Patterns have the syntax and meaning of RE2. Case is mapped one code point to one, by the Unicode
version of pyarrow: "ß" becomes "ẞ", never "SS".
"""

from __future__ import annotations

import pyarrow as pa

from dml.kernels.arrow_ops import compute
from dml.kernels.functions.function import (
    Arrays,
    Function,
    Kinds,
    Params,
    always,
    is_bytes,
    is_text,
    of_one,
    same,
)

TEXT = Kinds("text", is_text, pa.string())
TEXT_OR_BYTES = Kinds("text or bytes", lambda kind: is_text(kind) or is_bytes(kind), pa.string())


def len_chars(text: pa.Array) -> pa.Array:
    """Return the number of code points."""
    return compute().utf8_length(text)


def len_bytes(text: pa.Array) -> pa.Array:
    """Return the number of bytes; of text, in UTF-8."""
    return compute().binary_length(text)


def to_lowercase(text: pa.Array) -> pa.Array:
    """Replace every code point by its simple lower case."""
    return compute().utf8_lower(text)


def to_uppercase(text: pa.Array) -> pa.Array:
    """Replace every code point by its simple upper case."""
    return compute().utf8_upper(text)


def reverse(text: pa.Array) -> pa.Array:
    """Return the code points from the last to the first."""
    return compute().utf8_reverse(text)


def strip_chars(text: pa.Array, characters: str | None) -> pa.Array:
    """Strip ``characters`` (None: white space) at both ends."""
    if characters is None:
        return compute().utf8_trim_whitespace(text)
    return compute().utf8_trim(text, characters=characters) if characters else text


def strip_chars_start(text: pa.Array, characters: str | None) -> pa.Array:
    """Strip ``characters`` (None: white space) at the start."""
    if characters is None:
        return compute().utf8_ltrim_whitespace(text)
    return compute().utf8_ltrim(text, characters=characters) if characters else text


def strip_chars_end(text: pa.Array, characters: str | None) -> pa.Array:
    """Strip ``characters`` (None: white space) at the end."""
    if characters is None:
        return compute().utf8_rtrim_whitespace(text)
    return compute().utf8_rtrim(text, characters=characters) if characters else text


def starts_with(text: pa.Array, prefix: str) -> pa.Array:
    """Return true where the text begins with ``prefix``."""
    return compute().starts_with(text, pattern=prefix)


def ends_with(text: pa.Array, suffix: str) -> pa.Array:
    """Return true where the text ends with ``suffix``."""
    return compute().ends_with(text, pattern=suffix)


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
    """Count the matches of the pattern, each searched for in the rest of the text."""
    pc = compute()
    count = pc.count_substring if literal else pc.count_substring_regex
    return count(text, pattern=pattern)


def slice_text(text: pa.Array, offset: int, length: int | None) -> pa.Array:
    """Return ``text[offset:][:length]``."""
    pc = compute()
    if offset >= 0:
        stop = None if length is None else offset + length
        return pc.utf8_slice_codeunits(text, start=offset, stop=stop)
    tail = pc.utf8_slice_codeunits(text, start=offset)
    return tail if length is None else pc.utf8_slice_codeunits(tail, start=0, stop=length)


def split(text: pa.Array, by: str) -> pa.Array:
    """Split the text at each occurrence of ``by``: one part more than occurrences."""
    return compute().split_pattern(text, pattern=by)


def zfill(text: pa.Array, length: int) -> pa.Array:
    """Pad with zeros, after a leading sign, to ``length`` characters."""
    return compute().utf8_zero_fill(text, width=length)


def pad_start(text: pa.Array, length: int, fill_char: str) -> pa.Array:
    """Pad with ``fill_char`` at the start, to ``length`` characters."""
    return compute().utf8_lpad(text, width=length, padding=fill_char)


def pad_end(text: pa.Array, length: int, fill_char: str) -> pa.Array:
    """Pad with ``fill_char`` at the end, to ``length`` characters."""
    return compute().utf8_rpad(text, width=length, padding=fill_char)


def concat(texts: Arrays, params: Params) -> pa.Array:
    """Join the texts with a separator; null if any text is null."""
    separator = pa.scalar(params[0], texts[0].type)
    return compute().binary_join_element_wise(*texts, separator, null_handling="emit_null")


def _listed(kind: pa.DataType, _params: Params) -> pa.DataType:
    return pa.list_(kind)


COUNT, FLAG = always(pa.int64()), always(pa.bool_())

FUNCTIONS = (
    Function("str.len_chars", TEXT, COUNT, of_one(len_chars)),
    Function("str.len_bytes", TEXT_OR_BYTES, COUNT, of_one(len_bytes)),
    Function("str.to_lowercase", TEXT, same, of_one(to_lowercase)),
    Function("str.to_uppercase", TEXT, same, of_one(to_uppercase)),
    Function("str.reverse", TEXT, same, of_one(reverse)),
    Function("str.strip_chars", TEXT, same, of_one(strip_chars)),
    Function("str.strip_chars_start", TEXT, same, of_one(strip_chars_start)),
    Function("str.strip_chars_end", TEXT, same, of_one(strip_chars_end)),
    Function("str.starts_with", TEXT, FLAG, of_one(starts_with)),
    Function("str.ends_with", TEXT, FLAG, of_one(ends_with)),
    Function("str.contains", TEXT, FLAG, of_one(contains)),
    Function("str.replace", TEXT, same, of_one(replace)),
    Function("str.extract", TEXT, same, of_one(extract)),
    Function("str.count_matches", TEXT, COUNT, of_one(count_matches)),
    Function("str.slice", TEXT, same, of_one(slice_text)),
    Function("str.split", TEXT, _listed, of_one(split)),
    Function("str.zfill", TEXT, same, of_one(zfill)),
    Function("str.pad_start", TEXT, same, of_one(pad_start)),
    Function("str.pad_end", TEXT, same, of_one(pad_end)),
    Function("str.concat", TEXT, same, concat, rest=lambda kind: kind),
)
