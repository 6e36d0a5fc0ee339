"""This file finds arrays that a function returned and that nobody else can reach any more."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import numpy as np

from dml.expr.schema import TYPES


def unshared(returned: list[Any]) -> set[int]:
    """The ids of those arrays in the dict ``returned[0]`` that need no copy to be safe.

    Such an array has its own memory, in C order and native bytes, and is referred to by the dict
    alone, as the dict is by ``returned`` alone. Whoever kept the array, the dict, a view or a
    buffer of it would be one more reference; a weak one is looked for. Where references are counted
    in another way, none is found.
    """
    alone = _alone()
    if type(returned[0]) is not dict or alone is None or _references(returned, 0) != alone[0]:
        return set()
    made = returned[0]
    lone = (name for name in made if _references(made, name) == alone[1])
    return {id(made[name]) for name in lone if _plain(made[name])}


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
def _alone() -> tuple[int, int] | None:
    """What is counted of a dict and of an array that nobody else has; None if others look alike."""
    returned = [{"x": np.empty(0)}]
    found = _references(returned, 0), _references(returned[0], "x")
    kept = returned[0], returned[0]["x"]
    more = _references(returned, 0), _references(returned[0], "x")
    del kept
    return found if more == (found[0] + 1, found[1] + 1) else None
