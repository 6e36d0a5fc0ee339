"""This file holds what the oracle's operators ask about a pipeline, and how it calls functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dml.errors import UDFError
from dml.expr.value import Value
from dml.testing import scalar_ids
from dml.testing.oracle_rows import Kinds


def has_random(value: Value) -> bool:
    """True if a random number is drawn anywhere in the expression."""
    return value.op == "random" or any(has_random(arg) for arg in value.args)


def permutation(n: int, key: int) -> list[int]:
    """Which of n elements stands at each place of a full shuffle."""
    if n <= 4096:
        return scalar_ids.window_permutation(key, n)
    return [scalar_ids.index_permutation(n, key, place) for place in range(n)]


def seen(one: Any) -> dict[str, Any]:
    """The row as a function sees it: a dict of its own, arrays that cannot be written."""
    out = dict(one.row.values)
    for name, value in out.items():
        if isinstance(value, np.ndarray):
            out[name] = value.view()
            out[name].flags.writeable = False
    return out


def called(fn: Callable[..., Any], *arguments: Any) -> Any:
    """What a user's function returns; UDFError if it raises."""
    try:
        return fn(*arguments)
    except Exception as error:
        raise UDFError(f"{type(error).__name__}: {error}") from error


def spared(node: Any, fn: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a user's function returns, alone in a list; nothing where it raises and may cost it."""
    try:
        return [called(fn, *arguments)]
    except UDFError:
        if node.on_error == "skip":
            return []
        raise


def called_many(fn: Callable[[Any], Any], row: dict[str, Any]) -> Iterator[Any]:
    """What a user's function yields; UDFError where it raises."""
    try:
        yield from fn(row)
    except Exception as error:
        raise UDFError(f"{type(error).__name__}: {error}") from error


def declared(node: Any) -> Kinds | None:
    """The types that a user declared for what a function returns, if any."""
    return None if node.declared is None else dict(node.declared)
