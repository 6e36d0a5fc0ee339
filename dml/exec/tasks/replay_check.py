"""Detect partitions that differ when they are computed again, by counts and a digest of values.

Output of a function that is not proven pure gets a digest. It is compared when the function must be
called again, because a worker was lost or a generator dropped. The digest covers at most a few
thousand values of each column; random numbers or a clock in the function change them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from dml.data.block import Block
from dml.errors import NonDeterminismError, ReplayError, WorkerLostError
from dml.expr.node import Node
from dml.kernels.vec import Vec
from dml.udfs.calling.type_inference import Returned

if TYPE_CHECKING:
    from dml.exec.tasks.partition import Piece

EDGE, MIDDLE = 512, 1024  # sampled values of each column: at either end, and between
OBJECTS, LETTERS = 16, 256  # rows of a column of texts, lists ..., and letters of each


def after(seen: bytes, pieces: Sequence[Piece]) -> bytes:
    """Return the digest of a task's partitions including ``pieces``; ``seen`` is the one before."""
    found = blake2b(seen, digest_size=8)
    for piece in pieces:
        found.update(repr((piece.place, piece.atom, piece.ends, piece.error is None)).encode())
        if piece.block is not None:
            found.update(b"".join(_looked_at(piece.block)))
        if piece.returned is not None:
            found.update(_of_results(piece.returned))
    return found.digest()


def _looked_at(block: Block) -> Iterable[bytes]:
    yield repr((block.n, list(block.schema.items()))).encode()
    for values in block.columns:
        yield _of_numbers(values) if isinstance(values, Vec) else _of_objects(values)


def _of_numbers(column: Vec) -> bytes:
    """Return the bytes of sampled numbers; values under null are zeroed, and all NaNs are equal."""
    flat = column.values.reshape(-1)
    at = _places(len(flat), EDGE, MIDDLE)
    some = flat[at]
    if some.dtype.kind == "f":
        some = np.where(np.isnan(some), np.array(np.nan, some.dtype), some)
    if column.valid is None:
        return bytes(some.tobytes())
    valid = column.valid[at // max(1, len(flat) // len(column.valid))] if len(at) else column.valid
    return bytes(np.where(valid, some, np.zeros_like(some)).tobytes() + valid.tobytes())


def _of_objects(column: Any) -> bytes:
    rows = [column[int(i)].as_py() for i in _places(len(column), OBJECTS // 4, OBJECTS // 2)]
    return repr([_short(row) for row in rows]).encode()


def _of_results(made: Returned) -> bytes:
    """Return the bytes of sampled results of a function whose types are not settled."""
    if made.out and isinstance(made.out[0], Block):  # of a function of batches
        return b"".join(part for block in made.out for part in _looked_at(block))
    some = (made.out[int(i)] for i in _places(len(made.out), OBJECTS // 4, OBJECTS // 2))
    return repr((len(made.out), made.ends, made.error is None, *map(_item, some))).encode()


def _item(row: Any) -> Any:
    """Return a row with each value shortened; a prefix of the whole row could lack later values."""
    return (
        [(name, _short(each)) for name, each in row.items()] if type(row) is dict else _short(row)
    )


def _short(value: Any) -> Any:
    if isinstance(value, str | bytes):
        return len(value), value[:LETTERS], value[-LETTERS:]
    return repr(value)[:LETTERS]


def _places(count: int, edge: int, middle: int) -> np.ndarray:
    """Return the first and last ``edge`` indexes below ``count``, and ``middle`` in between, int64.

    If ``count`` is not larger than their number, return all indexes. The result ascends.
    """
    if count <= 2 * edge + middle:
        return np.arange(count)
    between = np.linspace(edge, count - edge, middle, endpoint=False).astype(np.int64)
    return np.concatenate([np.arange(edge), between, np.arange(count - edge, count)])


def unproven(nodes: Iterable[Node]) -> list[str]:
    """Return the names of the functions that are not proven pure, so results may change."""
    called = (node.calls for node in nodes)
    return [fn.name for fn in called if fn is not None and fn.purity]


def impure(nodes: Iterable[Node]) -> str:
    """Return the label of the first node with a function declared impure, or ""."""
    for node in nodes:
        if node.calls is not None and node.calls.declared is False:
            return node.label()
    return ""


def not_again(once: str, lost: WorkerLostError) -> ReplayError:
    """Return the error for ``lost`` work of an operator labelled ``once`` (see ``impure``)."""
    error = ReplayError(
        "work of a function declared pure=False was lost, and no call of it is repeated",
        at=f"{once}; {lost.at}" if lost.at else once,
        why=f"{lost.what}: {lost.why}; the function may have been called there already",
        try_="state_dict() and resume, where rows that were not delivered are made again; or leave"
        " pure=False out",
    )
    error.__cause__ = lost
    return error


def differing(what: str, functions: Sequence[str], where: str) -> NonDeterminismError:
    """Return the error for ``functions`` whose output was different when it was made again."""
    names = ", ".join(functions) or "the pipeline"
    return NonDeterminismError(
        f"{names} gave something else when called again",
        at=where,
        why=f"{what}; work is done again where a worker is lost, and must give the same",
        try_="a function of its row alone, without clocks, counters or random numbers of its own"
        " (random_map has some that stay)",
    )
