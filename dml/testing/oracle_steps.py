"""The oracle's operators share these helpers: permutations, and calls of users' functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dml.errors import UDFError
from dml.expr.columns.value import Value
from dml.testing.oracle_rows import Kinds
from dml.testing.scalars import ids


def has_random(value: Value) -> bool:
    """True if a random number is drawn anywhere in the expression."""
    return value.op == "random" or any(has_random(arg) for arg in value.args)


def permutation(n: int, key: int) -> list[int]:
    """Return the index of the element at each place of a full shuffle of n elements."""
    if n <= 4096:
        return ids.window_permutation(key, n)
    return [ids.index_permutation(n, key, place) for place in range(n)]


def seen(one: Any, fn: Any = None) -> dict[str, Any]:
    """Return the row as a function sees it: a new dict with read-only arrays.

    If ``fn`` only looks up columns, it is given no others.
    """
    out = dict(one.row.values)
    names = out.keys() if fn is None or fn.lookups is None else fn.lookups
    if names <= out.keys():
        out = {name: value for name, value in out.items() if name in names}
    for name, value in out.items():
        if isinstance(value, np.ndarray):
            out[name] = value.view()
            out[name].flags.writeable = False
    return out


def called(fn: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function; UDFError if it raises."""
    try:
        return fn(*arguments)
    except Exception as error:
        raise UDFError(f"{type(error).__name__}: {error}") from error


def spared(node: Any, fn: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a user's function: [result], or [] if it raises and ``on_error`` is "skip"."""
    try:
        return [called(fn, *arguments)]
    except UDFError:
        if node.on_error == "skip":
            return []
        raise


def called_many(fn: Callable[[Any], Any], row: dict[str, Any]) -> Iterator[Any]:
    """Yield the rows of a user's function; UDFError where it raises."""
    try:
        yield from fn(row)
    except Exception as error:
        raise UDFError(f"{type(error).__name__}: {error}") from error


def declared(node: Any) -> Kinds | None:
    """Return the result types that the user declared for a function, if any."""
    return None if node.declared is None else dict(node.declared)
