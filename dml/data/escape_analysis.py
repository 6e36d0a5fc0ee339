"""Values that a user's function may still reference after a call are found here, and copied.

A function that keeps a reference to an array, list or dict that it returned may overwrite it for
the next row, before the values of this row have been read.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import sys
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.fork_guard import end_copy
from dml.data.schema import TYPES

# Immutable types; NumPy's other scalar types are immutable, too.
PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, Decimal}
    | {dt.date, dt.datetime, dt.time, dt.timedelta, np.float32, np.float64, np.int32, np.int64}
)


class ReferenceCounts:
    """The arguments of a function, with their reference counts before the call.

    An argument array that is returned needs no copy if it is read-only and the function kept no
    reference to it, a view or a buffer of it, its memory or a dict that contains it: the reference
    counts are as before, except for the returned references. Its memory must belong to a NumPy
    array: references to other buffers are not counted. Arrow's memory is identified by its address,
    since each access creates new objects for it; it is trusted, since Arrow has no functions that
    write.
    """

    def __init__(self, given: dict[str, np.ndarray] | pa.Table) -> None:
        self._given = given if isinstance(given, dict) else {}
        self._arrays = list(self._given.values())
        self._buffers = _buffers(given) if isinstance(given, pa.Table) else []
        self._dict, self._before = 0, list[tuple[int, int]]()

    def begun(self) -> ReferenceCounts:
        """Count references, and return this object.

        The constructor does not count, since the references of its own arguments would be included.
        """
        self._dict = sys.getrefcount(self._given)
        self._before = self._references()
        return self

    def safe(self, returned: list[Any]) -> set[int]:
        """Return ids of arrays, and addresses of Arrow buffers, that need no copy.

        ``returned[0]`` is the function's result. Call this while only ``returned`` refers to the
        result, and only the caller to the arguments.
        """
        found = {each.address for each in self._buffers}
        kept = sys.getrefcount(self._given) - self._dict
        if returned[0] is self._given:
            return found | self._passed([self._given]) | _fresh(self._given) if kept == 1 else found
        if not _sole(returned):
            return found
        passed = set() if kept else self._passed([self._given, returned[0]])
        return found | passed | _fresh(returned[0])

    def clear(self) -> None:
        """Drop all references to the arguments."""
        self._given, self._arrays, self._buffers, self._before = {}, [], [], []

    def _passed(self, dicts: list[dict[str, Any]]) -> set[int]:
        """Return ids of argument arrays to which the function added no references but ``dicts``."""
        held = Counter(id(value) for each in dicts for value in list(each.values()))
        now, found = self._references(), set[int]()
        for place, (mine, below) in enumerate(self._before):
            one = id(self._arrays[place])
            if now[place] == (mine - 1 + held[one], below) and self._covered(place):
                found.add(one)
        return found

    def _references(self) -> list[tuple[int, int]]:
        """Return reference counts of each array and of its base, always taken in the same way."""
        places = range(len(self._arrays))
        return [(sys.getrefcount(self._arrays[n]), self._below(n)) for n in places]

    def _below(self, place: int) -> int:
        return sys.getrefcount(self._arrays[place].base)

    def _covered(self, place: int) -> bool:
        """Return True if argument ``place`` is a read-only view of a NumPy array's own memory.

        Neither the view nor the array may have weak references.
        """
        array = self._arrays[place]
        below = array.base
        if _counts() is None or type(array) is not np.ndarray or type(below) is not np.ndarray:
            return False
        read = array.flags.c_contiguous and not array.flags.writeable and array.dtype.isnative
        weak = weakref.getweakrefcount(array) + weakref.getweakrefcount(below)
        return bool(read and below.flags.owndata and not weak)


def _buffers(table: pa.Table) -> list[pa.Buffer]:
    chunks = (chunk for column in table.columns for chunk in column.chunks)
    return [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None]


def _sole(returned: list[Any]) -> bool:
    """Return True if ``returned[0]`` is provably a dict to which only ``returned`` refers."""
    usual = _counts()
    if usual is None or type(returned[0]) is not dict:
        return False
    return _references(returned, 0) == usual[0]


def _fresh(made: dict[str, Any]) -> set[int]:
    """Return the ids of the arrays in ``made`` that need no copy; nothing else refers to ``made``.

    Such an array owns its memory, is in C order and native byte order, and only the dict refers to
    it. Any other reference, view or buffer raises the count; weak references are checked, too.
    """
    usual = _counts()
    if usual is None:
        return set()
    names = [name for name in made if _references(made, name) == usual[1]]
    return {id(made[name]) for name in names if _plain(made[name])}


def _references(holder: Any, key: Any) -> int:
    return sys.getrefcount(holder[key])


def _plain(array: Any) -> bool:
    """Return True for a writable array of numbers that owns its memory."""
    if type(array) is not np.ndarray or array.base is not None:
        return False
    flags, kind = array.flags, array.dtype
    if not (flags.owndata and flags.c_contiguous and flags.writeable and kind.isnative):
        return False
    code = "b1" if kind.kind == "b" else kind.str[1:]
    return code in TYPES and not weakref.getweakrefcount(array)


@functools.cache
def _counts() -> tuple[int, int] | None:
    """Return the reference counts of an unshared dict and array; None if counts are unreliable."""
    returned = [{"x": np.empty(0)}]
    found = _references(returned, 0), _references(returned[0], "x")
    kept = returned[0], returned[0]["x"]
    more = _references(returned, 0), _references(returned[0], "x")
    del kept
    return found if more == (found[0] + 1, found[1] + 1) else None


# ------------------------------------------------------------------------------------------- rows


def owned_row(row: Any, *, sole: bool = False) -> Any:
    """Return a row as a dict that the function that returned the row cannot change.

    ``sole`` means that only the caller has the dict; values that only the dict has are not copied.
    """
    end_copy()
    if type(row) is not dict and not isinstance(row, Mapping):
        return owned(row)
    try:
        return _owned_items(row, sole=sole)
    except MemoryError:  # an uncopied value might be changed later
        raise
    except Exception:  # noqa: BLE001 - an object of the user's: no columns can be made of it either
        return row


def lists_owned(row: dict[str, Any]) -> bool:
    """Replace lists of plain values in ``row`` by copies; return False if other values must be too.

    Only the caller has ``row``. Copying a list of tokens takes less time than finding out whether
    something else refers to it.
    """
    for name, value in row.items():
        if type(value) in PLAIN:
            continue
        if type(value) is not list or not PLAIN.issuperset(map(type, value)):
            return False
        row[name] = value.copy()
    return True


def _owned_items(row: Any, *, sole: bool) -> Any:
    if PLAIN.issuperset(map(type, row.values())):
        return row if sole and type(row) is dict else dict(row)
    names = [name for name in row if type(row[name]) not in PLAIN]
    if sole:
        names = [name for name in names if not _left_alone(row, name)]
    made = row if sole and type(row) is dict else dict(row)
    for name in names:
        made[name] = owned(made[name])
    return made


def owned(value: Any) -> Any:
    """Copy ``value`` down to its immutable parts; objects of unknown types are not copied."""
    copied = COPIED.get(type(value))
    if copied is not None:
        return copied(value)
    return _owned_odd(value) if isinstance(value, ODD) else value


def _owned_odd(value: Any) -> Any:
    if type(value) is memoryview:
        return bytes(value)
    try:
        return copy.deepcopy(value)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - an object of the user's may raise anything
        return value


def _owned_list(value: list[Any]) -> list[Any]:
    return value.copy() if PLAIN.issuperset(map(type, value)) else list(map(owned, value))


def _owned_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    return value if PLAIN.issuperset(map(type, value)) else tuple(map(owned, value))


def _owned_array(value: np.ndarray) -> np.ndarray:
    return _owned_odd(value) if value.dtype.hasobject else value.copy()


COPIED: dict[type, Callable[[Any], Any]] = {
    list: _owned_list,
    tuple: _owned_tuple,
    dict: owned_row,
    np.ndarray: _owned_array,
    bytearray: bytearray,
}
# Subclasses of those types, and further types that a column may be made of.
ODD = (Mapping, list, tuple, set, deque, array, np.ndarray, np.void, memoryview)


def _left_alone(row: Any, name: Any) -> bool:
    """Return True if ``row[name]`` is an array or a list of plain values without other references.

    Other references to an array's memory count as well.
    """
    usual = _counts()
    if usual is None or sys.getrefcount(row[name]) != usual[1]:
        return False
    value = row[name]
    if type(value) is np.ndarray:
        return _alone(value)
    return type(value) is list and PLAIN.issuperset(map(type, value))


def _alone(value: np.ndarray) -> bool:
    """Return True if only ``value`` refers to its memory, whether its own or that of its base."""
    below, flags = value.base, value.flags
    if weakref.getweakrefcount(value) or value.dtype.hasobject:
        return False
    if below is None:
        return flags.owndata
    if type(below) is not np.ndarray or not below.flags.owndata:
        return False
    return not weakref.getweakrefcount(below) and sys.getrefcount(below) == _below()


@functools.cache
def _below() -> int:
    """Return the count that ``_alone`` measures for a base to which only one view refers."""
    array = np.empty(2)[:1]
    below = array.base
    return sys.getrefcount(below)
