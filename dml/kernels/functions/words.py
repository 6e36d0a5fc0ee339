"""This file finds words in texts by their bytes, those of many rows together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dml.kernels.functions.byte_sets import ByteSet, set_of
from dml.kernels.functions.bytewise import Bytes, counted, is_ascii
from dml.kernels.functions.lists import Lists


def words_between(texts: Lists, kind: pa.DataType, pattern: str) -> pa.Array | None:
    """What stands between places of ``pattern`` in texts of ``kind``, given as lists of bytes.

    None where bytes do not say: the pattern is no set of ASCII characters, or one with all others.
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
    width = "i8" if pa.types.is_large_string(kind) else "i4"
    buffers = [None, pa.py_buffer(words.edges.astype(width)), pa.py_buffer(words.data)]
    elements = pa.Array.from_buffers(kind, len(words.edges) - 1, buffers)
    return texts._replace(kind=pa.list_(kind), lengths=np.diff(owners)).with_elements(elements)


def _words_of(rows: Bytes, members: ByteSet) -> tuple[Bytes, np.ndarray] | None:
    """What stands between members, each as a row, and which of them begin and end each row's.

    None where it does not hold: letters beyond ASCII may be members.
    """
    if members.others and not rows.ascii:
        return None
    inside = np.ones(len(rows.data) + 1, bool)
    np.logical_not(members.within(rows.data), out=inside[:-1])
    inside[-1] = False
    begins = np.empty_like(inside)
    begins[0], begins[1:] = inside[0], inside[1:] & ~inside[:-1]
    # a row begins a word of its own, also where the one before ends with one
    begins[rows.edges] = inside[rows.edges]
    owners = counted(begins, rows.edges)
    kept = inside[:-1]
    starts = np.append(np.flatnonzero(begins), len(rows.data))
    return Bytes(rows.data.compress(kept), counted(kept, starts), rows.ascii), owners
