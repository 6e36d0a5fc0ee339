"""This file takes the lists of rows apart into tokens, and says which rows cannot be packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dml.errors import CastError, DmlError, NullValueError
from dml.expr.bins import Chunk, spans
from dml.expr.block import Block, Values, mask, take
from dml.expr.calls import blamed
from dml.expr.ops.bucket_by_length import absent
from dml.expr.ops.explode import Lists, lists_of
from dml.kernels.vec import Vec

if TYPE_CHECKING:
    from dml.expr.ops.pack import Pack

# Rows (n,) that cannot be packed for one reason, and the error for one of them.
Wrong = tuple[np.ndarray, Callable[[int], DmlError]]


def chunk_of(node: Pack, block: Block) -> tuple[Chunk, np.ndarray, DmlError | None]:
    """The tokens of a block and how many each row has, up to a row that is wrong; and why."""
    lists = {name: lists_of(block[name]) for name in block.schema}
    sizes = lists[node.column].sizes
    wrong = [found for found in _wrong(node, block, lists) if len(found[0])]
    error, stop = None, len(sizes)
    if wrong:
        rows, make = min(wrong, key=_row)
        stop = int(rows[0])
        error = blamed(make(stop), block.ids, stop)
    sizes = sizes[:stop].copy()
    columns = {name: _flat(node, each, stop) for name, each in lists.items()}
    return Chunk(columns, block.ids, int(sizes.sum())), sizes, error


def _row(wrong: Wrong) -> int:
    return int(wrong[0][0])


def _wrong(node: Pack, block: Block, lists: dict[str, Lists]) -> Iterator[Wrong]:
    """The rows (n,) that cannot be packed, for each reason."""
    sizes = lists[node.column].sizes
    yield absent(block[node.column]), partial(_hole, node, node.column)
    if node.strategy != "concat_split" and node.long == "error":
        yield np.flatnonzero(sizes > node.size), partial(_too_long, node, sizes)
    for name, each in lists.items():
        differing = np.flatnonzero(each.sizes != sizes)
        yield differing, partial(_uneven, node, name, each.sizes, sizes)
        if node.fill is not None and isinstance(each.values, Vec) and each.values.code[0] != "f":
            holes = np.flatnonzero(~mask(each.values))
            rows = np.searchsorted(each.starts + each.sizes, holes, side="right")
            yield rows, partial(_hole, node, name)


def _flat(node: Pack, lists: Lists, stop: int) -> Values:
    """The tokens of the first ``stop`` rows, end to end."""
    starts, sizes = lists.starts[:stop], lists.sizes[:stop]
    values = take(lists.values, spans(starts, sizes))
    if node.fill is None or not isinstance(values, Vec) or values.valid is None:
        return values
    return Vec(np.where(values.valid, values.values, np.nan).astype(values.values.dtype), None)


def _hole(node: Pack, name: str, _row: int) -> DmlError:
    return NullValueError(
        f"pack meets a null in {name!r}",
        at=node.label(),
        why="a null has no tokens, and none can stand in an array of whole numbers",
        try_=f".filter(~col({name!r}).is_null()) before it, or no pad_value",
    )


def _uneven(node: Pack, name: str, sizes: np.ndarray, wanted: np.ndarray, row: int) -> DmlError:
    return CastError(
        f"pack meets {sizes[row]} values in {name!r} beside {wanted[row]} in {node.column!r}",
        at=node.label(),
        why="lists of a row stand side by side: a value for each token",
        try_=f".drop({name!r}), or lists of one length",
    )


def _too_long(node: Pack, sizes: np.ndarray, row: int) -> DmlError:
    return CastError(
        f"a list of {sizes[row]} in {node.column!r} does not fit into max_tokens={node.size}",
        at=node.label(),
        why="a row stays whole, unless it is said what becomes of one that is too long",
        try_='long="truncate", long="drop", or strategy="concat_split"',
    )
