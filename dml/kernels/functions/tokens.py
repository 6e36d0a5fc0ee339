"""This file holds the functions that take text apart: bytes, code points, words, n-grams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from dml.kernels.arrow_ops import compute
from dml.kernels.functions.function import Function, Kinds, Params, always, is_text, of_one
from dml.kernels.functions.lists import TEXTS, Lists, drop_nulls, filtered, lists_of, loose

TEXT = Kinds("text", is_text, pa.string())

# What makes the elements of all runs of a width.
Pieces = Callable[[Lists, int], pa.Array]

# White space of ASCII, as isspace() of C has it.
SPACE = r"[ \t\n\v\f\r]+"


def lists_of_bytes(text: pa.Array) -> Lists:
    """Texts as lists of their bytes in UTF-8."""
    n, (_, ends, data) = len(text), text.buffers()
    width = "i8" if pa.types.is_large_string(text.type) else "i4"
    offsets = np.zeros(1, "i8")
    if n:
        offsets = np.frombuffer(ends, width)[text.offset : text.offset + n + 1].astype("i8")
    absent = text.is_null().to_numpy(zero_copy_only=False) if n else np.zeros(0, bool)
    lengths = np.where(absent, 0, np.diff(offsets))
    values = pa.array(np.frombuffer(data or b"", "u1"))
    return Lists(pa.list_(pa.uint8()), values, offsets[:-1], lengths, absent)


def tokenize_bytes(text: pa.Array) -> pa.Array:
    """The bytes of the text in UTF-8."""
    return lists_of_bytes(text).column()


def tokenize_chars(text: pa.Array) -> pa.Array:
    """The code points of the text."""
    lists = lists_of_bytes(text)
    data = lists.flat()[0].to_numpy().tobytes()
    points = np.frombuffer(data.decode().encode("utf-32-le"), "<i4")
    lengths = compute().utf8_length(text).fill_null(0).to_numpy(zero_copy_only=False).astype("i8")
    lists = lists._replace(kind=pa.list_(pa.int32()), lengths=lengths)
    return lists.with_elements(pa.array(points))


def tokenize_words(text: pa.Array, pattern: str) -> pa.Array:
    """What stands between places of ``pattern``, without empty parts."""
    from dml.kernels.functions.words import words_between  # noqa: PLC0415 most programs have no text

    found = words_between(lists_of_bytes(text), text.type, pattern)
    if found is not None:
        return found
    pc = compute()
    lists = lists_of(pc.split_pattern_regex(text, pattern=pattern))
    elements, _ = lists.flat()
    return filtered(lists, pc.not_equal(elements, pa.scalar("", elements.type)))


def ngrams(text: pa.Array, least: int, most: int) -> pa.Array:
    """Every run of ``least`` characters, then those of one more, and so on to ``most``."""
    given = lists_of_bytes(text)
    data, rows = given.flat()
    raw = data.to_numpy()
    begins = (raw & 0xC0) != 0x80
    # where each character begins, and where the last one ends
    places = np.append(np.flatnonzero(begins), len(raw))
    counts = np.bincount(rows[begins], minlength=len(text)).astype("i8")
    firsts = np.cumsum(counts) - counts
    lists = Lists(pa.list_(text.type), data, firsts, counts, given.absent)

    def pieces(windows: Lists, width: int) -> pa.Array:
        start = windows.places()
        sizes = places[start + width] - places[start]
        return _texts_at(raw, places[start], sizes, text.type)

    return _windows(lists, least, most, pieces)


def _texts_at(
    raw: np.ndarray, starts: np.ndarray, sizes: np.ndarray, kind: pa.DataType
) -> pa.Array:
    """Texts that are pieces of ``raw``, which may overlap."""
    none = np.zeros(len(starts), bool)
    copied = raw[Lists(kind, None, starts, sizes, none).places()]
    width = "i8" if pa.types.is_large_string(kind) else "i4"
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(width)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(copied)]
    return pa.Array.from_buffers(kind, len(starts), buffers)


def list_ngrams(array: pa.Array, least: int, most: int, separator: str) -> pa.Array:
    """Every run of ``least`` elements joined, then those of one more, and so on to ``most``."""
    lists = lists_of(drop_nulls(array))
    between = pa.scalar(separator, lists.kind.value_type)

    def pieces(windows: Lists, width: int) -> pa.Array:
        start = windows.places()
        parts = [lists.values.take(pa.array(start + i)) for i in range(width)]
        return compute().binary_join_element_wise(*parts, between)

    return _windows(lists, least, most, pieces)


def _windows(lists: Lists, least: int, most: int, pieces: Pieces) -> pa.Array:
    """Lists of what ``pieces`` makes of all runs of each width."""
    made, rows = [], []
    for width in range(least, most + 1):
        windows = lists._replace(lengths=np.maximum(lists.lengths - width + 1, 0))
        made.append(pieces(windows, width))
        rows.append(windows.rows())
    owners = np.concatenate(rows)
    elements = pa.concat_arrays(made).take(pa.array(np.argsort(owners, kind="stable")))
    lengths = np.bincount(owners, minlength=len(lists.starts)).astype("i8")
    return lists._replace(lengths=lengths).with_elements(elements)


def _listed(kind: pa.DataType, params: Params) -> pa.DataType:
    del params
    return pa.list_(kind)


FUNCTIONS = (
    Function("str.tokenize_bytes", TEXT, always(pa.list_(pa.uint8())), of_one(tokenize_bytes)),
    Function("str.tokenize_chars", TEXT, always(pa.list_(pa.int32())), of_one(tokenize_chars)),
    Function("str.tokenize_words", TEXT, _listed, of_one(tokenize_words)),
    Function("str.ngrams", TEXT, _listed, of_one(ngrams)),
    Function("list.ngrams", TEXTS, loose, of_one(list_ngrams)),
)
