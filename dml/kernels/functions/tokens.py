"""Text is split into tokens: bytes, code points, words, n-grams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from dml.kernels.arrow_ops import compute
from dml.kernels.functions.byte_sets import ByteSet, set_of
from dml.kernels.functions.bytewise import Bytes, bytes_of, counted, is_ascii, text_of
from dml.kernels.functions.function import TEXT, Function, always, listed, of_one
from dml.kernels.functions.lists import TEXTS, ListColumn, drop_nulls, filtered, lists_of, loose


def words_between(texts: ListColumn, kind: pa.DataType, pattern: str) -> pa.Array | None:
    """Split texts of type ``kind``, given as lists of bytes, at matches of ``pattern``.

    Return None if bytes do not suffice: the pattern is no set of ASCII characters, or it also
    matches non-ASCII characters, and the texts contain some.
    """
    members = set_of(pattern, literal=False)
    if members is None:
        return None
    data = texts.elements().to_numpy()
    edges = np.concatenate(([0], np.cumsum(texts.lengths)))
    found = _words_of(Bytes(data, edges, is_ascii(data)), members)
    if found is None:
        return None
    words, owners = found
    made = texts._replace(kind=pa.list_(kind), lengths=np.diff(owners))
    return made.with_elements(text_of(words, kind))


def _words_of(rows: Bytes, members: ByteSet) -> tuple[Bytes, np.ndarray] | None:
    """Return the words between members, one per row, and the offsets of each text's words.

    Return None if ``members`` include non-ASCII characters, and ``rows`` contain some.
    """
    if members.others and not rows.ascii:
        return None
    inside = np.ones(len(rows.data) + 1, bool)
    np.logical_not(members.within(rows.data), out=inside[:-1])
    inside[-1] = False
    begins = np.empty_like(inside)
    begins[0], begins[1:] = inside[0], inside[1:] & ~inside[:-1]
    # a row always begins a new word, even if the previous row ends with a word
    begins[rows.edges] = inside[rows.edges]
    owners = counted(begins, rows.edges)
    kept = inside[:-1]
    starts = np.append(np.flatnonzero(begins), len(rows.data))
    return Bytes(rows.data.compress(kept), counted(kept, starts), rows.ascii), owners


# A function that makes the elements of all windows of a width.
Pieces = Callable[[ListColumn, int], pa.Array]

# White space of ASCII, as in C's isspace().
SPACE = r"[ \t\n\v\f\r]+"


def lists_of_bytes(text: pa.Array) -> ListColumn:
    """Return texts as lists of their UTF-8 bytes."""
    rows = bytes_of(text)
    absent = text.is_null().to_numpy(zero_copy_only=False)
    lengths = np.where(absent, 0, np.diff(rows.edges))
    kind, values = pa.list_(pa.uint8()), pa.array(rows.data)
    return ListColumn(kind, values, rows.edges[:-1], lengths, absent)


def tokenize_bytes(text: pa.Array) -> pa.Array:
    """Return the UTF-8 bytes of each text."""
    return lists_of_bytes(text).column()


def tokenize_chars(text: pa.Array) -> pa.Array:
    """Return the code points of each text."""
    lists = lists_of_bytes(text)
    data = lists.flat()[0].to_numpy().tobytes()
    points = np.frombuffer(data.decode().encode("utf-32-le"), "<i4")
    lengths = compute().utf8_length(text).fill_null(0).to_numpy(zero_copy_only=False).astype("i8")
    lists = lists._replace(kind=pa.list_(pa.int32()), lengths=lengths)
    return lists.with_elements(pa.array(points))


def tokenize_words(text: pa.Array, pattern: str) -> pa.Array:
    """Split each text at matches of ``pattern``, and leave out empty parts."""
    found = words_between(lists_of_bytes(text), text.type, pattern)
    if found is not None:
        return found
    pc = compute()
    lists = lists_of(pc.split_pattern_regex(text, pattern=pattern))
    elements, _ = lists.flat()
    return filtered(lists, pc.not_equal(elements, pa.scalar("", elements.type)))


def ngrams(text: pa.Array, least: int, most: int) -> pa.Array:
    """Return all windows of ``least`` characters, then of one more, and so on to ``most``."""
    given = lists_of_bytes(text)
    data, rows = given.flat()
    raw = data.to_numpy()
    begins = (raw & 0xC0) != 0x80
    # where each character begins, and where the last one ends
    places = np.append(np.flatnonzero(begins), len(raw))
    counts = np.bincount(rows[begins], minlength=len(text)).astype("i8")
    firsts = np.cumsum(counts) - counts
    lists = ListColumn(pa.list_(text.type), data, firsts, counts, given.absent)

    def pieces(windows: ListColumn, width: int) -> pa.Array:
        start = windows.places()
        sizes = places[start + width] - places[start]
        return _texts_at(raw, places[start], sizes, text.type)

    return _windows(lists, least, most, pieces)


def _texts_at(
    raw: np.ndarray, starts: np.ndarray, sizes: np.ndarray, kind: pa.DataType
) -> pa.Array:
    """Return texts of ``sizes`` bytes from ``starts`` on in ``raw``; they may overlap."""
    none = np.zeros(len(starts), bool)
    copied = raw[ListColumn(kind, None, starts, sizes, none).places()]
    edges = np.concatenate(([0], np.cumsum(sizes)))
    return text_of(Bytes(copied, edges, ascii=False), kind)


def list_ngrams(array: pa.Array, least: int, most: int, separator: str) -> pa.Array:
    """Join all windows of ``least`` elements, then of one more, and so on to ``most``."""
    lists = lists_of(drop_nulls(array))
    between = pa.scalar(separator, lists.kind.value_type)

    def pieces(windows: ListColumn, width: int) -> pa.Array:
        start = windows.places()
        parts = [lists.values.take(pa.array(start + i)) for i in range(width)]
        return compute().binary_join_element_wise(*parts, between)

    return _windows(lists, least, most, pieces)


def _windows(lists: ListColumn, least: int, most: int, pieces: Pieces) -> pa.Array:
    """Return for each list its windows of ``least`` elements, then of one more, up to ``most``.

    ``pieces(windows, width)`` returns the new elements for windows that begin at given elements.
    """
    made, rows = [], []
    for width in range(least, most + 1):
        windows = lists._replace(lengths=np.maximum(lists.lengths - width + 1, 0))
        made.append(pieces(windows, width))
        rows.append(windows.rows())
    owners = np.concatenate(rows)
    elements = pa.concat_arrays(made).take(pa.array(np.argsort(owners, kind="stable")))
    lengths = np.bincount(owners, minlength=len(lists.starts)).astype("i8")
    return lists._replace(lengths=lengths).with_elements(elements)


FUNCTIONS = (
    Function("str.tokenize_bytes", TEXT, always(pa.list_(pa.uint8())), of_one(tokenize_bytes)),
    Function("str.tokenize_chars", TEXT, always(pa.list_(pa.int32())), of_one(tokenize_chars)),
    Function("str.tokenize_words", TEXT, listed, of_one(tokenize_words)),
    Function("str.ngrams", TEXT, listed, of_one(ngrams)),
    Function("list.ngrams", TEXTS, loose, of_one(list_ngrams)),
)
