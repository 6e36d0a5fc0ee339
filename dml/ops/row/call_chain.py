"""One generated loop calls the function of a ``map`` and that of the ``filter`` above it.

The loop passes the dict of a row from one function to the other and frees it at once: the dicts of
a whole block would not fit into the processor's cache. A value that would be changed by storing it
in a column (a null, an int among floats, a NaN) ends the loop: from that row on, the operators run
one after the other, as on the first block, which settles the types.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from dml.base.interrupts import traceback_of
from dml.data.block import Block, cut, joined
from dml.data.object_values import rows_in_piece
from dml.data.row_slicing import PLAIN_BYTES, ROW_SHARE
from dml.expr.user_call import UnreadableError, caught, raised
from dml.kernels.rows.ids import LateIds
from dml.ops.row.filter_rows import FilterRows
from dml.ops.row.map_rows import MapRows, returned
from dml.udfs.calling.python_rows import (
    GENERATED,
    UnfitError,
    each_row,
    noticed,
    to_list,
    to_values,
)

if TYPE_CHECKING:
    from dml.data.schema import Schema
    from dml.expr.flow import At
    from dml.kernels.rows.ids import RowIds

# Types whose values a column returns unchanged: the test for any other value, and the type.
SAME: dict[pa.DataType, tuple[str, type]] = {
    pa.int64(): ("type({0}) is not int", int),
    pa.float64(): ("type({0}) is not float or {0} != {0}", float),
    pa.bool_(): ("type({0}) is not bool", bool),
    pa.string(): ("type({0}) is not str", str),
    pa.binary(): ("type({0}) is not bytes", bytes),
}
# Tests that a column cannot hold a value of the type, where a filter may drop the row first.
UNFIT: dict[pa.DataType, str] = {
    # most numbers are small, and those are compared in a fraction of the time: one by one, with
    # bounds that are small themselves
    pa.int64(): f"({{0}} > {2**30 - 1} or {{0}} < {1 - 2**30})"
    f" and not {-(2**63)} <= {{0}} < {2**63}",
    pa.string(): "len({0}) > most or not {0}.isascii()"
    " and {0}.encode(errors='ignore').decode() != {0}",
    pa.binary(): "len({0}) > most",
}
# Rows that are Python values at a time: few, so that the processor's cache holds them.
PIECE = 1024
# Bytes of the index of a kept row, a Python integer in a list.
INDEX_BYTES = 40
# The line of a loop on which it calls the first function.
FIRST = 4


def starts(node: object) -> bool:
    """Return True for a ``map`` whose function always returns a new dict of known size."""
    return isinstance(node, MapRows) and _plain(node) and node.fn.fresh > 0


def judges(node: object) -> bool:
    """Return True for a ``filter`` whose function only looks up keys in the dict."""
    return isinstance(node, FilterRows) and _plain(node) and node.fn.lookups is not None


def _plain(node: MapRows | FilterRows) -> bool:
    """Return True if errors are not skipped and calls have no time limit."""
    return not node.skips and node.fn.timeout is None


class ChainStop(NamedTuple):
    """The row at which a loop ended early, the map's result for it, and the error, if any."""

    row: int
    made: dict[str, Any] | None
    error: BaseException | None


class CallChain:
    """A ``map`` that ``starts`` accepts, and the ``filter`` above it if ``judges`` accepts it."""

    def __init__(self, mapped: MapRows, kept: FilterRows | None) -> None:
        self.mapped, self.kept = mapped, kept
        self._judged: tuple[Schema | None, bool] = None, False

    def schema(self, block: Block, at: At) -> Schema | None:
        """Return the schema of the output for ``block``; None if no loop can be generated (yet)."""
        node = self.mapped
        found = node.schema if node.schema.known else at.schemas.get(node.digest.hex())
        if found is None or not 0 < len(block.schema) <= GENERATED:
            return None
        judged = self._judged
        if judged[0] is not found:
            able = len(found) == node.fn.fresh and len(found) <= GENERATED
            judged = self._judged = found, able and all(kind in SAME for kind in found.values())
        return found if judged[1] else None

    def run(self, block: Block, schema: Schema, at: At) -> Iterator[Block]:
        """Yield the output of both operators as one block; raise an error after the rows before it.

        ``block`` has at most ``CALLS`` rows, and the result is not large.
        """
        return joined(self._part(block, schema, at))

    def _part(self, block: Block, schema: Schema, at: At) -> Iterator[Block]:
        filtering = self.kept is not None
        seen = noticed(self.mapped.fn, block)
        seen = seen if seen.schema else block  # the loop goes through the values of columns
        loop = _loop(seen.schema.names, schema.names, tuple(schema.values()), filtering)
        lists: list[list[Any]] = [[] for _ in schema]
        index: list[int] = []
        odd: list[tuple[int, dict[str, Any]]] = []
        functions = self.mapped.fn.call, None if self.kept is None else self.kept.fn.call
        most = _most_text(schema, at.hold_bytes // ROW_SHARE)
        adders = [*(each.append for each in lists), index.append, odd.append]
        error, last, ends, unread = None, -1, list[tuple[int, int]](), None
        piece = min(PIECE, rows_in_piece(seen))
        while last + 1 < block.n and error is None and not odd:
            start, last = last + 1, min(last + piece, block.n - 1)
            try:
                values = [to_list(cut(each, start, last + 1)) for each in seen.columns]
            except UnreadableError:  # some row cannot be called with
                unread = ChainStop(start, None, None)
                break
            error = caught(loop, *functions, most, *values, *adders)
            ends.append((last, len(index)))
        done = len(lists[0])
        ids = block.ids
        if filtering:  # computed on demand: no operator may need the ids
            ids = LateIds(len(index), partial(_arrays, ids, index, ends), INDEX_BYTES)
        stop = unread if error is None else _stop(loop, error, last)
        if odd and stop is None:
            stop = ChainStop(last - odd[0][0], odd[0][1], None)
        judged = filtering and (stop is None or stop.row > 0 or stop.made is not None)
        if judged or done:
            yield from self._block(lists, schema, ids if filtering else ids.slice(0, done), at)
        if stop is not None:
            yield from self._stopped(stop, block, at)

    def _block(
        self, lists: Sequence[list[Any]], schema: Schema, ids: RowIds, at: At
    ) -> Iterator[Block]:
        """Yield ``lists`` as a block; for an invalid value, yield the rows before and raise."""
        pairs = zip(lists, schema.items(), strict=True)
        try:
            self._must_fit(lists, schema, at)
            columns = [to_values(v, k, n, frozenset({SAME[k][1]})) for v, (n, k) in pairs]
        except UnfitError:
            rows = [dict(zip(schema, values, strict=True)) for values in zip(*lists, strict=True)]
            yield from returned(self.mapped, self.mapped.fn, rows, ids, at)
        else:
            yield Block(schema, tuple(columns), ids)

    @staticmethod
    def _must_fit(lists: Sequence[list[Any]], schema: Schema, at: At) -> None:
        """Raise UnfitError if the texts of a column in total exceed the byte limit of a row."""
        for values, kind in zip(lists, schema.values(), strict=True):
            if SAME[kind][1] in (str, bytes) and sum(map(len, values)) > at.hold_bytes // ROW_SHARE:
                raise UnfitError(0, "large rows")

    def _stopped(self, stop: ChainStop, block: Block, at: At) -> Iterator[Block]:
        """Run the operators one by one from row ``stop.row`` on, or raise a function's error."""
        node, rest = self.mapped, block.slice(stop.row, block.n)
        error = stop.error
        if error is None:
            out: list[Any] = [] if stop.made is None else [stop.made]
            tail = rest.slice(len(out), rest.n)
            error = each_row(node.fn, tail, out) if tail.n else None
            for made in returned(node, node.fn, out, rest.ids, at) if out else ():
                yield from (made.bare(),) if self.kept is None else self.kept.run(made, at)
            if error is None:
                return
            raise raised(error, node.fn, rest.ids, len(out)).located(node.label())
        if stop.made is None or self.kept is None:
            raise raised(error, node.fn, rest.ids, 0).located(node.label())
        # a value that fits no column raises first: the filter would not have seen its row
        for _ in returned(node, node.fn, [stop.made], rest.ids, at):
            pass
        raise raised(error, self.kept.fn, rest.ids, 0).located(self.kept.label())


def _most_text(schema: Schema, most_bytes: int) -> int:
    """Return the length of each text up to which a row certainly fits ``most_bytes``."""
    texts = sum(SAME[kind][1] in (str, bytes) for kind in schema.values())
    return (most_bytes - PLAIN_BYTES * len(schema)) // max(1, texts)


def _arrays(
    ids: RowIds, index: Sequence[int], ends: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return arrays of the high and low halves of the kept rows' ids; ``ids`` has all rows."""
    return ids.take(_places(index, ends)).arrays()


def _places(index: Sequence[int], ends: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the indices of the kept rows of a block, ascending.

    The loop runs on pieces of at most 1024 rows. ``index`` has, for each kept row, the number of
    rows that follow it in its piece. ``ends`` has, for each piece, the index of its last row and
    the number of rows that were kept up to there.
    """
    lasts, counts = zip(*ends, strict=True)
    behind = np.fromiter(index, np.intp, count=len(index))
    return np.asarray(np.repeat(lasts, np.diff(counts, prepend=0)) - behind)


def _stop(loop: FunctionType, error: BaseException, last: int) -> ChainStop:
    """Return the row at which ``error`` ended ``loop``; ``last`` is the last row of the piece.

    If a key is missing in the loop itself, the result has no error: the operators, which run next,
    raise it.
    """
    at = traceback_of(error)
    while at is not None and at.tb_frame.f_code is not loop.__code__:
        at = at.tb_next
    place = cast("TracebackType", at)
    seen = place.tb_frame.f_locals
    row = last - seen["left"]()
    if place.tb_lineno == FIRST:
        return ChainStop(row, None, error)
    return ChainStop(row, seen["r"], error if place.tb_lineno > FIRST + 1 else None)


@functools.lru_cache(256)
def _loop(
    names: tuple[str, ...],
    made: tuple[str, ...],
    kinds: tuple[pa.DataType, ...],
    filtering: bool,  # noqa: FBT001 (a key of the cache)
) -> FunctionType:
    """Return a loop that calls the functions on rows of columns ``names`` and fills lists.

    Each of the values ``made`` of a result is appended to a list of its own. With ``filtering``,
    dropped rows are omitted, and the next list gets the number of rows that follow each kept row in
    its piece. A value that a column of its type in ``kinds`` would change ends the loop, and its
    row is appended to the last list.
    """
    taken, given = [f"v{i}" for i in range(len(names))], [f"x{i}" for i in range(len(made))]
    columns, adders = [f"c{i}" for i in range(len(names))], [f"a{i}" for i in range(len(made))]
    head = f"{', '.join(taken)} in " + ("c0" if len(names) == 1 else f"zip({', '.join(columns)})")
    items = ", ".join(f"{name!r}: {value}" for name, value in zip(names, taken, strict=True))
    looked = "; ".join(f"{x} = r[{name!r}]" for x, name in zip(given, made, strict=True))
    tests = [(SAME[kind][0], filtering and UNFIT.get(kind)) for kind in kinds]
    pairs = zip(given, tests, strict=True)
    odd = " or ".join(test.format(x) for x, both in pairs for test in both if test)
    added = "; ".join(f"{add}({x})" for add, x in zip(adders, given, strict=True))
    lines = [
        f"def loop(fn, judge, most, {', '.join([*columns, *adders])}, keep, found):",
        " c0 = iter(c0); left = c0.__length_hint__",
        f" for {head}:",
        f"  r = fn({{{items}}})",
        f"  {looked}",
        f"  if {odd}: return found((left(), r))",
        f"  if judge(r): {added}; keep(left())" if filtering else f"  {added}",
    ]
    space: dict[str, Callable[..., Any]] = {}
    exec("\n".join(lines), space)  # noqa: S102 - names enter as quoted literals only
    return cast("FunctionType", space["loop"])
