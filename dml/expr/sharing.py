"""This file finds what a predicate and the columns behind it would both compute, and costs much.

Arithmetic is computed again for the rows that are kept: reading and gathering what was computed
would cost more. Functions of text, lists and the like are worth keeping.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dml.expr.value import Value, col, rebuilt


def shared(predicate: Sequence[Value], columns: Sequence[Value]) -> tuple[Value, ...]:
    """The largest values with costly operations, in both, that cannot fail on any row.

    Of the predicate, those parts count that are tried on all rows: up to the first that may fail.
    """
    sure = 0
    while sure < len(predicate) and predicate[sure].total:
        sure += 1
    tried = {value: None for value in _parts(predicate[:sure]) if _costly(value)}
    if not tried:
        return ()
    found: dict[Value, None] = {}
    stack, seen = list(columns), set[int]()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if _costly(value) and value.total and value in tried:
            found[value] = None
        else:
            stack += value.args
    return tuple(found)


def replaced(values: Iterable[Value], names: dict[Value, str]) -> list[Value]:
    """``values`` with columns of those names in the place of what was computed already."""
    memo: dict[int, Value] = {}

    def better(value: Value) -> Value:
        made = memo.get(id(value))
        if made is None:
            known = names.get(value) if _costly(value) else None
            made = rebuilt(value, better) if known is None else col(known)
            memo[id(value)] = made
        return made

    return [better(value) for value in values]


def _costly(value: Value) -> bool:
    """True for functions of text, lists and moments; taking a struct apart costs nothing."""
    return "." in value.op and not value.op.startswith("struct.")


def _parts(values: Iterable[Value]) -> Iterable[Value]:
    """Every part of ``values``, each object once."""
    seen: dict[int, Value] = {}
    stack = list(values)
    while stack:
        value = stack.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            stack += value.args
    return seen.values()
