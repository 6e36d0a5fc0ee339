"""The first results of functions are buffered here until they settle the functions' types.

The rule (docs/semantics.md, "Values"): the types of a function are settled by its results for the
first 64 rows that it receives in the written pipeline, or by the first results of 4 MiB in total.
If there is no result among these, further rows count, up to the first result. Which rows these are
depends on values alone, so the function may be called for them in any process, and in blocks of any
size.

If a function is called early to settle its types, its results are recorded and returned later
instead of calling it again.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from dml.data.batch_trays import CopiedRows
from dml.data.block import Block
from dml.data.row_slicing import (
    PLAIN_BYTES,
    SETTLING_BYTES,
    SETTLING_ROWS,
    CallPace,
    held_bytes,
    weighed,
)
from dml.errors import DmlError
from dml.expr.user_call import Raised, TimedOutError, raised
from dml.kernels.rows.ids import RowIds

if TYPE_CHECKING:
    from dml.expr.flow import At

# Maximum bytes of recorded rows and results: functions are called again for later ones.
MOST_BYTES = 4 * SETTLING_BYTES


class Returned(NamedTuple):
    """Results ``out`` of a function: row ``i`` has those up to ``ends[i]``, after those of row i-1.

    ``ids`` are the ids of the results, ``parents`` the id of each result's input row. ``nbytes`` is
    the size of the results. If the function raised ``error``, ``out`` has the results before it.
    """

    out: list[Any]
    ends: list[int]
    ids: RowIds
    parents: RowIds
    nbytes: int
    error: DmlError | None = None


class Returning(Protocol):
    """An operator whose function may be called before its types are settled."""

    def typed(self, made: Returned, at: At) -> Iterator[Block]:
        """Yield the results ``made`` as typed blocks, then raise ``made.error``, if there is one.

        If the types are not settled yet, these results settle them.
        """


Calls: TypeAlias = Callable[[int, int, list[Any]], tuple[np.ndarray, BaseException | None]]
"""Takes start and stop of rows of a block and a list; calls a function on these rows, and appends
its results to the list. Returns the indices in the block of each result's row, and the error that
the function raised after them, or None."""


def called_apart(node: Any, block: Block, call: Calls) -> Iterator[Returned]:
    """Yield the results of ``call`` for the rows of ``block``, in parts of limited size."""
    pace, start = CallPace(None), 0
    while start < block.n:
        begun, out, places, weight = start, list[Any](), list[np.ndarray](), 0
        found: DmlError | None = None
        while start < block.n and found is None and weight < SETTLING_BYTES:
            stop, new = min(start + pace.step, block.n), CopiedRows()
            kept, error = call(start, stop, new)
            if error is not None:
                stop = start + len(new)
                found = raised(error, node.fn, block.ids, stop).located(node.label())
            new_bytes = weighed(new)
            pace.record(max(1, stop - start), new_bytes)
            weight += new_bytes
            out += new
            places.append(kept)
            start = stop
        at = np.concatenate(places)
        ids, rows = block.ids.take(at), np.arange(begun, start)
        ends = np.searchsorted(at, rows, side="right").tolist()
        yield Returned(out, ends, ids, ids, weight, found)
        if found is not None:
            return


class Firsts:
    """The first results of a function, in order, until they suffice to settle its types."""

    def __init__(self) -> None:
        self.made: list[Returned] = []
        self.rows = self.results = self.nbytes = 0
        self.failed = False

    def add(self, made: Returned) -> None:
        """Add the results ``made`` of the next rows."""
        self.made.append(made)
        self.rows += len(made.ends)
        self.results += len(made.out)
        self.nbytes += made.nbytes
        self.failed |= made.error is not None

    @property
    def enough(self) -> bool:
        """True if the results so far suffice to settle the types, or the function raised."""
        many = self.rows >= SETTLING_ROWS or self.nbytes >= SETTLING_BYTES
        return self.failed or (many and self.results > 0)

    def settle(self, node: Returning, at: At) -> tuple[int, DmlError] | None:
        """Settle the types by the first results; if one does not fit, by those before it.

        In that case, return the number of results before it, and the error; otherwise None.
        """
        out, ids, parents = self.first()
        fitting = 0
        try:
            for block in node.typed(Returned(out, [], ids, parents, 0), at):
                fitting += block.n
        except DmlError as error:
            return fitting, error
        return None

    def first(self) -> tuple[list[Any], RowIds, RowIds]:
        """Return the results that settle types, their ids, and the ids of their input rows."""
        out: list[Any] = []
        ids, parents = list[RowIds](), list[RowIds]()
        rows = weight = 0
        for made in self.made:
            count = _needed(made, SETTLING_ROWS - rows, SETTLING_BYTES - weight, begun=bool(out))
            out += made.out[:count]
            ids.append(made.ids.slice(0, count))
            parents.append(made.parents.slice(0, count))
            rows += len(made.ends)
            weight += made.nbytes
            if out and (rows >= SETTLING_ROWS or weight >= SETTLING_BYTES):
                break
        return out, RowIds.concat(ids) if ids else RowIds.none(), RowIds.concat(parents)


def _needed(made: Returned, rows: int, nbytes: int, *, begun: bool) -> int:
    """Return how many of ``made`` settle types: the results of ``rows`` rows, or ``nbytes``.

    Unless there are results of earlier rows (``begun``), at least one result is needed.
    """
    ends: Sequence[int] = made.ends
    count = len(made.out)
    if len(ends) > rows > 0:
        count = ends[rows - 1]
    if not begun and not count and made.out:  # as many rows as it takes until a result comes out
        count = next(end for end in ends if end)
    if made.nbytes > nbytes:
        count = min(count, heavy(made.out, nbytes))
    return count


def heavy(out: Sequence[Any], nbytes: int) -> int:
    """Return how many results, from the first, have ``nbytes`` bytes in total; at most all."""
    total = 0
    for number, row in enumerate(out, 1):
        total += weighed([row])
        if total >= nbytes:
            return number
    return len(out)


class Recording:
    """Records copies of a function's results, until it raises or the memory quota is used up."""

    def __init__(self, call: Callable[..., Any], room: RecordingQuota) -> None:
        self.call, self.room, self.kept, self.on = call, room, deque[tuple[Any, Any]](), True

    def __call__(self, *args: Any) -> Any:
        given = self._copied(args[0] if args else None)
        try:
            made = self.call(*args)
        except TimedOutError as error:  # it is not waited for a second time
            if self.on:
                self.kept.append((given, Raised(error)))
            raise
        except BaseException:
            self.on = False
            raise
        tape = ReplayTape(made, self._copied) if isinstance(made, Iterator) else None
        result = self._copied(made) if tape is None else tape
        if self.on:
            self.kept.append((given, result))
        return made if tape is None else tape.first()

    def _copied(self, value: Any) -> Any:
        """Return a deep copy of ``value``, which others may modify; None if recording has ended."""
        if not self.on:
            return None
        try:
            made = copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - an object of the user's may raise anything
            self.on = False
            return None
        self.on = self.room.takes(held_bytes(made))
        return made


class RecordingQuota:
    """The memory quota of recorded rows and results, ``MOST_BYTES`` at first."""

    def __init__(self) -> None:
        self.left = MOST_BYTES

    def takes(self, nbytes: int) -> bool:
        """Count ``nbytes`` more; return True if the total is within the quota."""
        self.left -= nbytes + PLAIN_BYTES
        return self.left >= 0


class ReplayTape:
    """The items of an iterator, recorded for the first consumer and replayed for the second."""

    def __init__(self, made: Iterator[Any], copied: Callable[[Any], Any]) -> None:
        self.made, self.copied = made, copied
        self.items, self.error = list[Any](), cast("BaseException | None", None)
        self.whole = True

    def first(self) -> Iterator[Any]:
        """Yield the items and record them; the consumer may stop before the last item."""
        try:
            for item in self.made:
                kept = self.copied(item)
                self.whole &= kept is not None
                self.items.append(kept)
                yield item
        except GeneratorExit:  # the consumer stopped early
            raise
        except BaseException as error:
            self.error = error
            raise

    def again(self) -> Iterator[Any]:
        """Yield the recorded items, then the remaining ones of the iterator."""
        yield from self.items
        self.items.clear()
        if self.error is not None:
            raise self.error
        yield from self.made


class Recalling:
    """A function that returns its recorded results, in order, while the arguments are the same."""

    def __init__(self, call: Callable[..., Any], kept: deque[tuple[Any, Any]]) -> None:
        self.call, self.kept = call, kept

    def __call__(self, *args: Any) -> Any:
        """Return the recorded result for these arguments, else that of a call."""
        given, made = self.kept.popleft() if self.kept else (None, None)
        lost = made is None or (isinstance(made, ReplayTape) and not made.whole)
        if lost or not (args and _same(given, args[0])):
            self.kept.clear()
            return self.call(*args)
        if isinstance(made, Raised):
            raise made.error
        return made.again() if isinstance(made, ReplayTape) else made


def _same(one: Any, other: Any) -> bool:
    """Return True if it is certain that two rows, or two batches, are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        alike = one.dtype == other.dtype and one.shape == other.shape
        if one.dtype.hasobject:  # such as arrays of any length, which NumPy cannot compare
            return alike and all(map(_same, one.flat, other.flat))
        return alike and (one.tobytes() == other.tobytes() or bool(np.array_equal(one, other)))
    try:
        return one is other or bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124 (NaN)
    except Exception:  # noqa: BLE001 - an object of the user's may raise anything
        return False
