"""Large arrays that row functions return are copied straight into the memory of their batch.

A decoded image is copied once, when its function returns it: to its place in a tray, an array as
long as the delivered batch. If all rows of a batch are in their places, joining them copies
nothing, and the tray is delivered. The position of rows in their epoch is passed with each slice.
If that position is unknown, or the place is already used (because the row is computed a second
time), rows get separate memory, and are copied once more when the batch is gathered. The memory of
a batch that nobody has any more is used for a later batch, because new pages cost as much time as
copying to them.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

import numpy as np

from dml.base.fork_guard import COPY, end_copy
from dml.data import buffer_ownership
from dml.data.block import Block
from dml.data.escape_analysis import PLAIN, lists_owned, owned, owned_row
from dml.data.schema import Schema
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec

# Least bytes of an array that gets a place: copying a smaller one costs less than a place.
WIDE_BYTES = 32 << 10
# Least bytes of a column of a batch with a tray.
TRAY_BYTES = buffer_ownership.LEAST
# Most bytes of such a column: larger batches often exceed the whole data.
MOST_BYTES = 256 << 20
# Most arrays of delivered batches whose memory is kept for later ones: two columns, or two batches.
SPARES = 2

Form: TypeAlias = tuple[str, tuple[int, ...]]
"""Type code and shape of the elements of a column."""

Found: TypeAlias = "np.ndarray | None"


class Expected(NamedTuple):
    """Rows of the operator with ``digest`` are delivered once each, in batches of ``rows`` rows.

    Up to ``spare_bytes`` of memory are kept for later batches.
    """

    digest: bytes
    rows: int
    spare_bytes: int = 0


class TrayMemory(np.ndarray):
    """The bytes of a tray.

    NumPy names the first array over memory of another class as the ``base`` of all views. So the
    tray lives as long as any view of it does, and its memory can be used again afterwards.
    """


class Trays:
    """Creates and finds the trays of one run; unpickled in another process, it has none."""

    def __init__(self) -> None:
        self.expected: Expected | None = None
        self._made: dict[tuple[int, str, int], _Tray] = {}
        # Threads, and collections of garbage, add and take in single steps of the interpreter.
        self._spare = deque[TrayMemory](maxlen=SPARES)

    def __reduce__(self) -> tuple[Any, ...]:
        return Trays, ()

    def desk(self, digest: bytes, schema: Schema, ids: RowIds, epoch: int) -> TrayDesk:
        """Return an allocator without trays, for rows whose positions in their epoch are unknown.

        The operator with ``digest`` computes the rows, of ``schema``, one for each of ``ids``.
        """
        return TrayDesk(_wide(schema))

    def fits(self, digest: bytes, schema: Schema) -> bool:
        """Return True if rows of ``schema`` from the operator with ``digest`` have trays."""
        expected = self.expected
        if expected is None or expected.digest != digest:
            return False
        sizes = [expected.rows * _bytes(form) for form in _wide(schema).values()]
        return bool(sizes) and min(sizes) >= TRAY_BYTES and max(sizes) <= MOST_BYTES

    def part(self, epoch: int, length: int, column: tuple[str, Form], rows: range) -> Found:
        """Return a view of the places of ``rows`` in a column's tray; None if any was used before.

        ``rows`` are numbered from the start of the epoch, and lie in one tray of ``length`` rows.
        """
        name, form = column
        batch, row = divmod(rows.start, length)
        key, places = (epoch, name, batch), range(row, row + len(rows))
        tray = self._made.get(key)
        array = None if tray is None else tray.array()
        if tray is None or array is None:
            memory = self._memory(length * _bytes(form))
            array = np.ndarray((length, *form[1]), form[0], memory)
            tray = self._made[key] = _Tray(array, partial(self._gone, key, memory))
        return array[places.start : places.stop] if tray.take(places) else None

    def close(self) -> None:
        """Give spare memory back to the system, and keep none from now on."""
        self.expected = None
        self._spare.clear()

    def _memory(self, nbytes: int) -> TrayMemory:
        try:
            memory = self._spare.popleft()
        except IndexError:
            return TrayMemory(nbytes, np.uint8)
        return memory if memory.nbytes == nbytes else TrayMemory(nbytes, np.uint8)

    def _gone(self, key: tuple[int, str, int], memory: TrayMemory, tray: _Tray) -> None:
        if self._made.get(key) is tray:
            self._made.pop(key, None)
        expected = self.expected
        if expected is not None and SPARES * memory.nbytes <= expected.spare_bytes:
            self._spare.append(memory)


class Numbered(Trays):
    """The ``trays`` of a run, for rows with known positions: ``ids`` begin at row ``first``.

    ``first`` counts from the start of the epoch. An id that occurs twice has its first position.
    """

    def __init__(self, trays: Trays, ids: RowIds, first: int) -> None:
        super().__init__()
        self.trays, self.first = trays, first
        self._high, self._low = ids.arrays()

    def desk(self, digest: bytes, schema: Schema, ids: RowIds, epoch: int) -> TrayDesk:
        """Return an allocator for rows with ``ids``, with trays if the operator's rows have any."""
        expected = self.trays.expected
        if expected is None or not len(ids) or not self.trays.fits(digest, schema):
            return super().desk(digest, schema, ids, epoch)
        high, low = ids.slice(0, 1).arrays()
        found = np.flatnonzero((self._low == low) & (self._high == high))
        if not len(found) or self.first + int(found[0]) < 0:
            return super().desk(digest, schema, ids, epoch)
        part = partial(self.trays.part, epoch, expected.rows)
        return TrayDesk(_wide(schema), part, self.first + int(found[0]), expected.rows)


class _Tray:
    """A weakly referenced array of one batch column, and the ranges of its rows in use."""

    def __init__(self, array: np.ndarray, gone: Callable[[_Tray], None]) -> None:
        start = array.ctypes.data
        buffer_ownership.alone(start, array)

        def forget(_: object) -> None:  # called before the memory can be reused
            buffer_ownership.gone(start)
            gone(self)

        self.array = ref(array, forget)
        self._taken: list[range] = []

    def take(self, rows: range) -> bool:
        """Mark ``rows`` as used; return False if an earlier call of any thread used any of them."""
        self._taken.append(rows)
        earlier = itertools.takewhile(lambda each: each is not rows, self._taken)
        return not any(rows.start < each.stop and each.start < rows.stop for each in earlier)


class TrayDesk:
    """Allocates memory for the rows of a block; ``wide`` has types and shapes of large columns.

    ``part`` returns the places of rows in a tray of ``length`` rows; without it, there are no
    trays. The block begins at row ``first`` of the epoch.
    """

    def __init__(
        self,
        wide: Mapping[str, Form],
        part: Callable[[tuple[str, Form], range], Found] | None = None,
        first: int = 0,
        length: int = 1,
    ) -> None:
        self.wide, self._part, self._first, self._length = wide, part, first, length

    @property
    def edge(self) -> Callable[[int], int] | None:
        """A function that returns at which row of the block the tray with a row ends, or None."""
        return None if self._part is None else self._edge

    def _edge(self, start: int) -> int:
        return start + self._length - (self._first + start) % self._length

    def rows(self, start: int, stop: int, *, proven: bool = False) -> list[Any]:
        """Return an empty list, to which the results for rows ``start`` to ``stop`` are appended.

        Its ``append`` copies results, unless no column is large and the function is ``proven``
        pure, so that the function does not reuse its arrays.
        """
        if not self.wide:
            return [] if proven else CopiedRows()
        return Placed({name: self._room(name, start, stop) for name in self.wide})

    def places(self, start: int, stop: int, names: Iterable[str]) -> list[np.ndarray]:
        """Return memory for rows ``start`` to ``stop`` of large columns ``names``; [] if none."""
        wide = () if self._part is None else (name for name in names if name in self.wide)
        return [self._room(name, start, stop) for name in wide]

    def moved(self, block: Block, start: int) -> Block:
        """Return ``block``, whose first row is ``start``, with its large arrays copied to trays."""
        columns = list(block.columns)
        for at, (name, values) in enumerate(zip(block.schema, columns, strict=True)):
            if self._part is not None and name in self.wide and isinstance(values, Vec):
                room = self._room(name, start, start + block.n)
                room[:] = values.values
                columns[at] = Vec(room, values.valid)
        return Block(block.schema, tuple(columns), block.ids, block.rows)

    def _room(self, name: str, start: int, stop: int) -> np.ndarray:
        code, shape = form = self.wide[name]
        found: Found = None
        if self._part is not None and stop <= self._edge(start):
            found = self._part((name, form), range(self._first + start, self._first + stop))
        return np.empty((stop - start, *shape), code) if found is None else found


class _Counting(list[int]):
    """Measures the reference count that ``append`` sees for a row without other references."""

    def append(self, row: Any) -> None:
        super().append(sys.getrefcount(row))


_COUNTED = _Counting()
_COUNTED.append({"x": 0})
_APPEND = list.append


class CopiedRows(list[Any]):
    """The rows that a function returned; values that the function could still change are copied."""

    def append(self, row: Any) -> None:
        """Append ``row``, with copies of the values that the function may still change."""
        if COPY[0]:
            end_copy()
        sole = sys.getrefcount(row) <= _COUNTED[0]
        own = sole and type(row) is dict  # the usual case, in a few hundred nanoseconds
        if own and (PLAIN.issuperset(map(type, row.values())) or lists_owned(row)):
            return _APPEND(self, row)
        return _APPEND(self, owned_row(row, sole=sole))


class Placed(CopiedRows):
    """Copied rows, with large arrays copied into ``places``, one array per large column.

    Once a value of a column does not fit, the column has no entry in ``places`` any more. Floats
    are searched for NaN here, while the processor's cache holds them.
    """

    def __init__(self, places: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.places, self._count = places, 0
        self._plain = {name for name, array in places.items() if array.dtype.kind == "f"}

    def append(self, row: Any) -> None:
        """Append ``row``, with its arrays copied to their places."""
        _APPEND(self, self._copied(row))

    def whole(self, name: str) -> np.ndarray | None:
        """Return column ``name`` (n, ...); None if some of its values are not in ``places``."""
        found = self.places.get(name)
        if found is None or self._count != len(self):
            return None
        found = found[: len(self)]
        if name in self._plain:
            self._plain.discard(name)  # or its bytes would count twice
            buffer_ownership.finish(found, found.nbytes)
        return found

    def _copied(self, row: Any) -> Any:
        end_copy()
        at, made = len(self), dict[str, Any](row) if isinstance(row, Mapping) else None
        self._count += 1
        for name, array in list(self.places.items()):
            value: Any = None if made is None else made.get(name)
            if made is not None and _fits(value, array) and at < len(array):
                array[at] = value
                made[name] = array[at]
                if name in self._plain and np.isnan(value).any():
                    self._plain.discard(name)
            else:
                del self.places[name]
        if made is None:
            return owned(row)
        for name, value in made.items():
            if name not in self.places and type(value) not in PLAIN:
                made[name] = owned(value)
        return made


def placed(rows: list[Any], name: str) -> Vec | None:
    """Return column ``name`` of ``rows``; None if some of its values are not in a tray's places."""
    found = rows.whole(name) if isinstance(rows, Placed) else None
    return None if found is None else Vec(found)


def _fits(value: Any, array: np.ndarray) -> bool:
    same = type(value) is np.ndarray and value.dtype == array.dtype
    return bool(same and value.shape == array.shape[1:])


def _wide(schema: Schema) -> dict[str, Form]:
    """Return type and shape of the columns whose values have at least ``WIDE_BYTES`` each."""
    forms = zip(schema, schema.forms, strict=True) if schema.known else ()
    return {name: form for name, form in forms if _bytes(form) >= WIDE_BYTES}


def _bytes(form: Form) -> int:
    code, shape = form
    return int(code[1]) * math.prod(shape) if code != "arrow" else 0
