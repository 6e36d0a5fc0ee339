"""Rows of two blocks with equal keys are matched, and the join's result rows are built."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dml.data.block import Block, Values, concat, empty, from_arrow, mask, take, to_arrow
from dml.data.schema import code_of, shape_of
from dml.errors import MatchError
from dml.kernels.rows.ids import Key, RowIds
from dml.kernels.rows.key_matching import KeyIndex, Keys, keys_of
from dml.kernels.vec import Vec, taken
from dml.ops.join.join_node import JoinNode

JOIN = int.from_bytes(b"join", "big")
# The sides that a row is made of: both, the left one, the right one.
BOTH, LEFT, RIGHT = 0, 1, 2


def keys_in(node: JoinNode, block: Block, names: tuple[str, ...]) -> Keys:
    """Return the keys of ``block``, its columns ``names``, in the types that are compared."""
    pairs = zip(names, node.key_kinds, strict=True)
    columns = [cast(block[name], block.schema[name], kind) for name, kind in pairs]
    return keys_of(columns, block.n, nulls_equal=node.nulls_equal)


def cast(values: Values, given: pa.DataType, kind: pa.DataType) -> Values:
    """Return a column of type ``given`` as type ``kind``, which can represent all its values."""
    if given == kind:
        return values
    if isinstance(values, Vec):
        return Vec(values.values.astype(code_of(kind)), values.valid)
    return from_arrow(to_arrow(values, given).cast(kind))


class JoinSide:
    """The right side's rows in memory, and which of their keys have matched so far."""

    def __init__(self, node: JoinNode, blocks: list[Block]) -> None:
        whole = concat(blocks) if blocks else empty(node.other.schema)
        self.index = KeyIndex(keys_in(node, whole, node.right_on))
        self.met = np.zeros(len(self.index.counts), bool)
        names = [name for name, _ in node.added] if node.paired else []
        self.payload = whole.select([*names, *(node.right_on if node.coalesced else ())])
        self.row_bytes = self.payload.nbytes // max(1, whole.n)

    @property
    def unmet(self) -> np.ndarray:
        """Return the ascending indices of the rows that no left row has matched."""
        index = self.index
        met = np.zeros(self.payload.n, bool)
        met[index.order] = np.repeat(self.met, index.counts)
        return np.flatnonzero(~met)


class Matches:
    """The ``n`` result rows of one block of left rows; any range of them can be built.

    ``error``, which is raised after these rows, is set if a row has more matches than ``validate``
    allows. ``how`` is the node's join type; if the right side is joined in several pieces, only the
    last piece uses it.
    """

    def __init__(self, node: JoinNode, left: Block, side: JoinSide, how: str) -> None:
        self.node, self.left, self.side = node, left, side
        self.groups = side.index.find(keys_in(node, left, node.left_on))
        self.error = self._judged()
        matched = self.groups >= 0
        self.complete = bool(matched.all())
        self.counts = self._counts(matched, how)
        if node.whole:
            side.met[self.groups[matched]] = True
        self.ends = np.cumsum(self.counts)
        self.n = int(self.ends[-1]) if len(self.ends) else 0
        # True if each left row has exactly one result row
        self.each = self.n == self.left.n and bool((self.counts == 1).all())

    def _counts(self, matched: np.ndarray, how: str) -> np.ndarray:
        """Return the number of result rows for each row of the left side."""
        if how == "semi":
            return matched.astype(np.intp)
        if how == "anti":
            return (~matched).astype(np.intp)
        index = self.side.index
        found = matched.astype(np.intp)
        if not index.single:
            found[matched] = index.counts[self.groups[matched]]
        return np.maximum(found, 1) if how in ("left", "outer") else found

    def _judged(self) -> MatchError | None:
        """Truncate before the first row that ``validate`` forbids; return its error or None."""
        node, bad = self.node, np.zeros(self.left.n, bool)
        if node.validate == "m:m":
            return None
        matched = np.flatnonzero(self.groups >= 0)
        if node.validate in ("1:1", "m:1") and not self.side.index.single:
            bad[matched] = self.side.index.counts[self.groups[matched]] > 1
        if node.validate in ("1:1", "1:m"):
            found = self.groups[matched]
            twice = np.ones(len(found), bool)
            twice[np.unique(found, return_index=True)[1]] = False
            bad[matched] |= twice | self.side.met[found]
        if not bad.any():
            return None
        row = int(np.argmax(bad))
        error = not_allowed(node, self.left, row)
        self.left, self.groups = self.left.slice(0, row), self.groups[:row]
        return error

    def rows(self, start: int, stop: int) -> Block:
        """Return the rows ``start`` to ``stop`` of the result."""
        if not self.each:
            return self.take_pairs(*self.pairs(start, stop))
        left = self.left.slice(start, stop)
        if not self.node.paired:
            return left
        partners = self._partners(self.groups[start:stop], 0)
        return paired(self.node, left, self.side.payload, partners)

    def pairs(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return left and right row indices of results ``start`` to ``stop``; -1: no right row."""
        if start >= stop:
            return np.zeros(0, np.intp), np.zeros(0, np.intp)
        first, last = np.searchsorted(self.ends, (start, stop - 1), "right").tolist()
        counts = self.counts[first : last + 1].copy()
        counts[-1] -= self.ends[last] - stop
        counts[0] -= start - (self.ends[first] - self.counts[first])
        picked = np.repeat(np.arange(first, last + 1), counts)
        nth = np.arange(start, stop) - (self.ends[picked] - self.counts[picked])
        return picked, self._partners(self.groups[picked], nth)

    def take_pairs(self, picked: np.ndarray, partners: np.ndarray) -> Block:
        """Return the left rows ``picked``, each with the right row ``partners`` (-1: nulls)."""
        left = self.left.take(picked)
        return paired(self.node, left, self.side.payload, partners) if self.node.paired else left

    def _partners(self, groups: np.ndarray, nth: np.ndarray | int) -> np.ndarray:
        """Return the index of the ``nth`` right row of each of ``groups``; -1 without a match."""
        index = self.side.index
        if not len(index.counts):
            return np.full(len(groups), -1)
        found = index.first[groups] if index.single else index.order[index.starts[groups] + nth]
        return found if self.complete else np.where(groups >= 0, found, -1)


def paired(node: JoinNode, left: Block, right: Block, partners: np.ndarray) -> Block:
    """Return the rows of ``left``, each with ``right``'s row at ``partners``; -1: with nulls."""
    missing = partners < 0
    some = bool(missing.any())
    columns: list[Values] = []
    for name, values in zip(left.schema, left.columns, strict=True):
        columns.append(cast(values, left.schema[name], node.schema[name]))
    for name, _ in node.added:
        kind = right.schema[name]
        columns.append(_beside(right[name], kind, partners, missing if some else None))
    theirs = right.ids.take(np.maximum(partners, 0)) if right.n else RowIds(left.n, 0, 0)
    # a number that all rows share is mixed once
    high: Key = theirs.hi
    low: Key = theirs.low()
    what: Key = BOTH
    if some:
        high, low = (np.where(missing, np.uint64(0), half) for half in theirs.arrays())
        what = missing.astype("u8") * np.uint64(LEFT)
    ids = left.ids.derive(high, low).derive(JOIN + node.level, what)
    return Block(node.schema, tuple(columns), ids)


def _beside(
    values: Values, kind: pa.DataType, rows: np.ndarray, missing: np.ndarray | None
) -> Values:
    if missing is None:
        return take(values, rows)
    if missing.all():
        return absent(kind, len(rows))
    if not isinstance(values, Vec):
        return taken(values, rows, missing)
    found = take(values, np.maximum(rows, 0))
    return Vec(found.values, mask(found) & ~missing)


def absent(kind: pa.DataType, n: int) -> Values:
    """Return a column of ``n`` nulls of type ``kind``."""
    code = code_of(kind)
    if code == "arrow":
        return pa.nulls(n, kind)
    return Vec(np.zeros((n, *shape_of(kind)), code), np.zeros(n, bool))


def alone(node: JoinNode, right: Block) -> Block:
    """Return rows of the right side with their keys, and nulls in the other left columns."""
    columns: list[Values] = []
    keys = dict(zip(node.left_on, node.right_on, strict=True))
    for name in node.input.schema:
        kind = node.schema[name]
        if name in keys:
            columns.append(cast(right[keys[name]], right.schema[keys[name]], kind))
        else:
            columns.append(absent(kind, right.n))
    columns += [right[name] for name, _ in node.added]
    none = np.zeros(right.n, "u8")
    ids = RowIds.of_arrays(none, none).derive(*right.ids.arrays())
    return Block(node.schema, tuple(columns), ids.derive(JOIN + node.level, RIGHT))


def not_allowed(node: JoinNode, left: Block, row: int) -> MatchError:
    """Return the error for a left row that has more matches than ``validate`` allows."""
    values = [to_arrow(left[n], left.schema[n])[row].as_py() for n in node.left_on]
    shown = ", ".join(f"{n}={v!r}" for n, v in zip(node.left_on, values, strict=True))
    return MatchError(
        f"join with validate={node.validate!r} meets a key twice: {shown}",
        at=node.label(),
        why="a row of one side has more than one match in the other",
        try_='.drop_duplicates(...) of that side before, or validate="m:m"',
    )


class Unmet:
    """The result rows for rows of the right side that no row of the left side matched."""

    def __init__(self, node: JoinNode, side: JoinSide) -> None:
        self.node, self.side = node, side
        self.places = side.unmet
        self.n = len(self.places)

    def rows(self, start: int, stop: int) -> Block:
        """Return the result rows ``start`` to ``stop``."""
        return alone(self.node, self.side.payload.take(self.places[start:stop]))
