"""This file finds what a function was given or returned, and has kept nothing of; copies the rest.

Whoever keeps an array, list or dict that he has returned may fill it again for the next row, when
nobody has read what it held for this one.
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

from dml.expr.forking import end_copy
from dml.expr.schema import TYPES

# Values of these types, and of NumPy's scalar ones, cannot be changed.
PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, Decimal}
    | {dt.date, dt.datetime, dt.time, dt.timedelta, np.float32, np.float64, np.int32, np.int64}
)


class Handed:
    """What a function is given, and how often it was referred to before the call.

    An array that comes back needs no copy if it cannot be written to and nobody has kept it, a
    view or a buffer of it, its memory or a dict that holds it: no more refer to these than did
    before, but for what came back. Its memory must be that of an array of NumPy: who keeps a buffer
    of other memory is not counted. Arrow's memory is known by where it begins, since there are new
    objects for it every time it is asked for; it is trusted, as Arrow has nothing that writes.
    """

    def __init__(self, given: dict[str, np.ndarray] | pa.Table) -> None:
        self._given = given if isinstance(given, dict) else {}
        self._arrays = list(self._given.values())
        self._buffers = _buffers(given) if isinstance(given, pa.Table) else []
        self._dict, self._before = 0, list[tuple[int, int]]()

    def begun(self) -> Handed:
        """Count; apart from the making, which refers to the dict itself."""
        self._dict = sys.getrefcount(self._given)
        self._before = self._references()
        return self

    def safe(self, returned: list[Any]) -> set[int]:
        """The ids of arrays, and places of Arrow's memory, in ``returned[0]`` that need no copy.

        Called while nothing but ``returned`` refers to what came back, and the caller to what was
        given.
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
        """Let go of it."""
        self._given, self._arrays, self._buffers, self._before = {}, [], [], []

    def _passed(self, dicts: list[dict[str, Any]]) -> set[int]:
        """The given arrays that nobody has but ``dicts``, the given one among them."""
        held = Counter(id(value) for each in dicts for value in list(each.values()))
        now, found = self._references(), set[int]()
        for place, (mine, below) in enumerate(self._before):
            one = id(self._arrays[place])
            if now[place] == (mine - 1 + held[one], below) and self._covered(place):
                found.add(one)
        return found

    def _references(self) -> list[tuple[int, int]]:
        """Of each array and of what is below it, always counted in the same way."""
        places = range(len(self._arrays))
        return [(sys.getrefcount(self._arrays[n]), self._below(n)) for n in places]

    def _below(self, place: int) -> int:
        return sys.getrefcount(self._arrays[place].base)

    def _covered(self, place: int) -> bool:
        """True for an array over another's memory that nobody may write to, or refers to weakly."""
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
    """True for a dict in ``returned`` that nobody else has.

    False where references are counted in another way, and nothing can be said.
    """
    usual = _counts()
    if usual is None or type(returned[0]) is not dict:
        return False
    return _references(returned, 0) == usual[0]


def _fresh(made: dict[str, Any]) -> set[int]:
    """The ids of those arrays in a dict that nobody keeps which need no copy to be safe.

    Such an array has its own memory, in C order and native bytes, and is referred to by the dict
    alone. Whoever kept the array, a view or a buffer of it would be one more reference; a weak one
    is looked for.
    """
    usual = _counts()
    if usual is None:
        return set()
    names = [name for name in made if _references(made, name) == usual[1]]
    return {id(made[name]) for name in names if _plain(made[name])}


def _references(holder: Any, key: Any) -> int:
    return sys.getrefcount(holder[key])


def _plain(array: Any) -> bool:
    """True for an array of numbers whose memory is all its own."""
    if type(array) is not np.ndarray or array.base is not None:
        return False
    flags, kind = array.flags, array.dtype
    if not (flags.owndata and flags.c_contiguous and flags.writeable and kind.isnative):
        return False
    code = "b1" if kind.kind == "b" else kind.str[1:]
    return code in TYPES and not weakref.getweakrefcount(array)


@functools.cache
def _counts() -> tuple[int, int] | None:
    """What is counted of a dict and of an array that nobody else has; None if others look alike."""
    returned = [{"x": np.empty(0)}]
    found = _references(returned, 0), _references(returned[0], "x")
    kept = returned[0], returned[0]["x"]
    more = _references(returned, 0), _references(returned[0], "x")
    del kept
    return found if more == (found[0] + 1, found[1] + 1) else None


# ------------------------------------------------------------------------------------------- rows


def owned_row(row: Any, *, sole: bool = False) -> Any:
    """The row as nobody else can change it: a dict of its own.

    ``sole`` says that nobody has the dict; values that nothing but that refers to are not copied.
    """
    end_copy()
    if type(row) is not dict and not isinstance(row, Mapping):
        return owned(row)
    try:
        return _owned_items(row, sole=sole)
    except MemoryError:  # what is not copied might be changed later
        raise
    except Exception:  # noqa: BLE001 - an object of the user's: no columns can be made of it either
        return row


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
    """A copy of the value down to what cannot be changed; objects of unknown types stay."""
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
# Subclasses of those, and others that a column may be made of.
ODD = (Mapping, list, tuple, set, deque, array, np.ndarray, np.void, memoryview)


def _left_alone(row: Any, name: Any) -> bool:
    """True if nothing but the row refers to a value in it, nor to what that is made of."""
    usual = _counts()
    if usual is None or sys.getrefcount(row[name]) != usual[1]:
        return False
    value = row[name]
    if type(value) is np.ndarray:
        return _alone(value)
    return type(value) is list and PLAIN.issuperset(map(type, value))


def _alone(value: np.ndarray) -> bool:
    """True for an array over memory that nobody else has, its own or that of one below it."""
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
    """How often an array is referred to that nobody has but a view, counted as in ``_alone``."""
    array = np.empty(2)[:1]
    below = array.base
    return sys.getrefcount(below)
