"""Values of options are validated here; PlanError states which values are allowed."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np

from dml.errors import PlanError

AUTO = "auto"


def whole(value: Any) -> Any:
    """Return a NumPy integer as an equal Python int, and any other value unchanged."""
    return int(value) if isinstance(value, np.integer) else value


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a suggestion for an unknown name: the closest of the ``known`` names."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "one of those"


def one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Check that ``value`` is one of the words ``known``."""
    if not isinstance(value, str) or value not in known:
        text = value.lower() if isinstance(value, str) else ""
        near = difflib.get_close_matches(text, known, n=1, cutoff=0.5)
        wanted = near[0] if near else known[0]
        raise unfit(name, value, f"one of {', '.join(known)}", f"{name}={wanted!r}")


def count(name: str, value: object, least: int) -> None:
    """Check that ``value`` is an integer of at least ``least``, or "auto"."""
    if value == AUTO:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise unfit(name, value, f"an integer of at least {least} or 'auto'", f"{name}='auto'")


def element_count(name: str, n: object, least: int = 0, others: str = "") -> None:
    """Raise PlanError unless ``n`` is an integer >= ``least``; its advice ends with ``others``."""
    if isinstance(n, bool) or not isinstance(n, int) or n < least:
        raise PlanError(
            f"{name} needs an integer of at least {least}, got {n!r}",
            why="it counts elements: rows, or batches after .batch()",
            try_=f"{name.split(maxsplit=1)[0]} with {max(least, 1)} or more{others}",
        )


def shard(num_shards: int, index: int) -> None:
    """Raise PlanError unless ``num_shards`` is at least 1, and ``index`` in 0 .. num_shards - 1."""
    element_count("shard num_shards", num_shards, least=1)
    element_count("shard index", index)
    if index >= num_shards:
        raise PlanError(
            f"there is no shard {index} of {num_shards}",
            why=f"shards are counted from 0 to {num_shards - 1}",
            try_=f"shard({num_shards}, {num_shards - 1}) for the last one",
        )


def offered(name: str, value: Any) -> tuple[tuple[str, float], ...]:
    """Return resources, given as a dict or pairs, as sorted (name, amount) pairs.

    "GPU" becomes "gpu". Raise PlanError for invalid names or amounts.
    """
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if value is None:
        return ()
    if not isinstance(pairs, tuple) or not all(map(_amount, pairs)):
        wanted = "a dict from names to positive numbers, processors left out"
        raise unfit(name, value, wanted, f'{name}={{"GPU": 1}}')
    found = {"gpu" if key.upper() == "GPU" else key: float(n) for key, n in pairs}
    if len(found) < len(pairs):
        raise unfit(name, value, "a dict that has each resource once", f'{name}={{"GPU": 1}}')
    return tuple(sorted(found.items()))


def flag(name: str, value: object) -> None:
    """Check that ``value`` is True, False or "auto"."""
    if value != AUTO:
        of_kind(name, value, (bool,), "True, False or 'auto'")


def _amount(pair: Any) -> bool:
    """Return True for a pair of a resource name, other than "CPU", and a positive number."""
    if not isinstance(pair, tuple) or len(pair) != 2 or isinstance(pair[1], bool):
        return False
    named = isinstance(pair[0], str) and pair[0] and pair[0].upper() != "CPU"
    return bool(named) and isinstance(pair[1], int | float) and 0 < pair[1] < math.inf


def most(name: str, value: object) -> None:
    """Check that ``value``, an upper limit, is an integer of at least 0, or None."""
    known = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if value is not None and not known:
        raise unfit(name, value, "an integer of at least 0, or None", f"{name}=None")


def some(name: str, value: Any, try_: str = "") -> None:
    """Check that ``value`` is an integer of at least 1."""
    wanted = "an integer of at least 1"
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise unfit(name, value, wanted, try_)


def port(name: str, value: object) -> None:
    """Check that ``value`` is the number of a port that can be opened."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 16:
        raise unfit(name, value, "a port, from 1 to 65535", f"{name}=9464")


def seconds(name: str, value: Any) -> None:
    """Check that ``value`` is a number of seconds above 0."""
    of_kind(name, value, (int, float), "positive seconds")
    if not value > 0:
        raise unfit(name, value, "positive seconds")


def names(name: str, value: Any) -> tuple[str, ...]:
    """Return ``value`` as a sorted tuple of names without duplicates, or raise PlanError."""
    listed = isinstance(value, list | tuple | set | frozenset)
    if not listed or not all(isinstance(each, str) for each in value):
        one = value if isinstance(value, str) and value else "filter_before_sort"
        raise unfit(name, value, "a list or tuple of names", f"{name}=({one!r},)")
    return tuple(sorted(set(value)))


def folder(name: str, value: object) -> str | None:
    """Return the path of a folder as text, or None; raise PlanError for other values."""
    wanted = "the name of a folder, or None"
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str | NoneType):
        raise unfit(name, value, wanted)
    if found is not None and "\0" in found:
        raise unfit(name, value, wanted, f"{name} without a null character")
    return found


def namespace(value: object) -> None:
    """Check that ``value`` can name a namespace of the cache store, which is a folder name."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value):
        raise PlanError(
            f"{value!r} is not the name of a namespace",
            why="it is the name of a folder: letters, digits, '-' and '_', at most 64",
            try_="the name of a team or a project",
        )


def place(name: str, value: object) -> str:
    """Return the path of a folder, or a URL, as text; raise PlanError for other values."""
    found = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(found, str) or not found or "\0" in found:
        raise PlanError(
            f"{name}={value!r} is not the name of a place",
            why="it is a folder, or a URL",
            try_=f"{name}='/nvme/kept', or {name}='s3://bucket/kept'",
        )
    return found


def of_kind(name: str, value: object, kinds: tuple[type, ...], wanted: str) -> None:
    """Check that ``value`` is of one of ``kinds``; a bool counts as bool only, not as int."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise unfit(name, value, wanted)


def unfit(name: str, value: object, wanted: str, try_: str = "") -> PlanError:
    """Build the PlanError for an option value that is not allowed."""
    return PlanError(
        f"{name} must be {wanted}, got {value!r}",
        why=f"it is of type {type(value).__name__}" if not try_ else "no other value has a meaning",
        try_=try_ or f"leave {name} out to get what is usual",
    )
