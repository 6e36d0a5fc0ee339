"""Test which functions are proven pure, and the reasons given for all others."""

# ruff: noqa: ARG005, PLW0108 - what a lambda refers to is the point, not what it is given

from __future__ import annotations

import inspect
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from math import prod, sqrt
from typing import Any

import pytest

from dml.udfs.lifting.purity import fresh_dict, lookups, objection, plain_value

K = 3.5
TABLE = {"a": 1}
SEEN: list[int] = []
Row = dict[str, Any]


def doubled(x: Any) -> Any:
    return x * 2


def twice(x: Any) -> Any:
    return doubled(doubled(x))


def remembering(x: Any) -> Any:
    return SEEN[x]


def endless(x: Any) -> Any:
    return endless(x)


def branching(row: Row) -> Row:
    value = row["a"]
    if value < 0:
        value = -value
    elif value > 2 and row["b"] is not None:
        value = 2.0
    value = value * 2
    value += 1
    return {**row, "y": value + row["b"], "z": f"{value}", "w": row["s"].lower().strip()}


def computing(row: Row) -> Row:
    inside = 0 < row["a"] < 1 or row["b"] in (1, 2, 3)
    clipped = min(max(row["a"], 0), 1) if inside else twice(row.get("c", 1))
    return row | {"y": math.sqrt(abs(row["a"])) + sqrt(2) + math.pi, "z": clipped}


def raising(row: Row) -> Row:
    if row["a"] > 5:
        raise ValueError(row["a"])
    (x, y), *rest = (1, 2), 3
    return {"y": (not row["a"] and -row["b"]) or +row["c"], "z": row["s"][1:3], "x": [x, y, *rest]}


def with_default(row: Row, scale: float = 2.0, names: tuple[str, ...] = ("a", "b")) -> Row:
    return {"y": max(*names, row["a"]), "z": divmod(row["b"], 3), "w": scale}


def closing(n: int) -> Callable[[Row], Row]:
    def inner(row: Row) -> Row:
        return {"y": row["a"] + n}

    return inner


NAMES = frozenset({"a", "b"})
NESTED = (1, NAMES)


def summing(row: Row) -> Row:
    total = 0
    text = "<"
    if row["a"] > 1:
        total += row["a"]
    elif row["b"]:
        total -= abs(row["b"]) if row["c"] else 1
    total *= row["c"] or max(row["d"], K)
    text += f"{row['s']:>{3}}".strip()
    return {"y": total, "z": text}


def fresh_in_place(row: Row) -> Row:
    x, y = row["a"] + 1, -row["b"]
    both = [x, y]
    both += row["l"]
    return {"y": both}


PURE = {
    "branching": branching,
    "computing": computing,
    "raising": raising,
    "defaults": with_default,
    "closure": closing(3),
    "lambda": lambda row: row["a"] > K,
    "calls": lambda row: {"y": twice(row["a"])},
    "sets and slices": lambda row: {"y": row["a"] in {1, row["b"]}, "z": row["s"][::2]},
    "outside set": lambda row: row["s"] in NAMES and "a" not in NAMES,
    "summing up": summing,
    "fresh in place": fresh_in_place,
    "key function": lambda row: {"y": min(row["l"], key=abs)},
}


@pytest.mark.parametrize("name", PURE)
def test_functions_of_their_row_alone_are_proven_pure(name: str) -> None:
    assert objection(PURE[name]) == ""


def in_place(row: Row) -> Row:
    row["y"] = 1
    return row


def looping(row: Row) -> Row:
    total = 0
    for i in range(3):
        total += i
    return {"y": total}


def waiting(row: Row) -> Row:
    x = row["a"]
    while x > 1:
        x /= 2
    return {"y": x}


def trying(row: Row) -> Any:
    try:
        return 1 / row["a"]
    except ZeroDivisionError:
        return 0


def writing(row: Row) -> Any:
    global K  # noqa: PLW0603 - what is refused
    K = row["a"]


def importing(row: Row) -> Any:
    import os

    return os.sep


def collecting(row: Row, seen: list[int] = []) -> Any:  # noqa: B006 - what is refused
    seen += [row["a"]]
    return seen


def yielding(row: Row) -> Iterator[Row]:
    yield row


async def awaiting(row: Row) -> Row:
    return row


def deleting(row: Row) -> Any:
    del row["a"]


def setting(row: Any) -> Any:
    row.x = 1


def inside_with(row: Any) -> Any:
    with row:
        return 1


def counting() -> Callable[[Row], int]:
    n = 0

    def count(row: Row) -> int:
        nonlocal n
        n += 1
        return n

    return count


def sharing() -> Callable[[Row], list[int]]:
    held = [1]
    return lambda row: held


def extending(row: Row) -> Row:
    items = row["t"]
    items += [9]
    return {"y": items}


def extending_on_a_path(row: Row) -> Row:
    items = row["t"]
    if row["a"]:
        items = 0
    items += row["b"]
    return {"y": items}


def extending_chosen(row: Row) -> Row:
    items = (row["a"] and 1) or row["t"]
    items *= 2
    return {"y": items}


def extending_unpacked(row: Row) -> Row:
    items, _ = (row["t"], 1)
    items += [9]
    return {"y": items}


def extended(items: list[int]) -> list[int]:
    items += [9]
    return items


def swapped(row: Row) -> Row:
    x, y, z = 1, 2, row["t"]
    x, y, z = z, x, y
    x |= y
    return {"y": x}


def with_set(row: Row, known: frozenset[str] = frozenset({"a", "b"})) -> Row:
    return {"y": str(known)}


IN_PLACE = "changes a value in place (with += or its like) that it did not make"
REFUSED: dict[str, tuple[Any, str]] = {
    "extends": (extending, IN_PLACE),
    "extends on a path": (extending_on_a_path, IN_PLACE),
    "extends what is chosen": (extending_chosen, IN_PLACE),
    "extends what is unpacked": (extending_unpacked, IN_PLACE),
    "extends what is swapped": (swapped, IN_PLACE),
    "extends in a callee": (lambda row: extended(row["t"]), IN_PLACE),
    "shown set": (lambda row: {"k": str({row["a"], row["b"]})}, "a set for more than `in`"),
    "spread set": (lambda row: [*{"a", "b", "c"}], "a set for more than `in`"),
    "shown outside set": (lambda row: str(NAMES), "a set for more than `in`"),
    "set in a tuple": (lambda row: row["a"] in NESTED, "a set for more than `in`"),
    "set as a default": (with_set, "a default argument that is a set"),
    "math of sequences": (lambda row: math.fsum(row["l"]), "math.fsum, which is not known"),
    "prod": (lambda row: prod(row["l"]), "prod, which is not known to be pure"),
    "absent math": (lambda row: math.nosuch(1), "math.nosuch, which is not known"),  # type: ignore[attr-defined]
    "random": (lambda row: random.random(), "uses random.random"),
    "clock": (lambda row: time.time(), "uses time.time"),
    "global list": (lambda row: SEEN[row["a"]], "reads 'SEEN', a list that could change"),
    "global dict": (lambda row: TABLE[row["a"]], "reads 'TABLE', a dict that could change"),
    "in place": (in_place, "changes a container in place"),
    "delete": (deleting, "changes a container in place"),
    "attribute": (setting, "sets an attribute"),
    "for": (looping, "it has a loop"),
    "while": (waiting, "it has a loop"),
    "try": (trying, "it has try or with"),
    "with": (inside_with, "it has try or with"),
    "global": (writing, "changes a global variable"),
    "import": (importing, "imports a module"),
    "mutable default": (collecting, "default argument that is not a plain constant"),
    "generator": (yielding, "it is a generator or a coroutine"),
    "coroutine": (awaiting, "it is a generator or a coroutine"),
    "nonlocal": (counting(), "changes a variable of an enclosing function"),
    "mutable closure": (sharing(), "reads 'held', a list that could change"),
    "isinstance": (lambda row: isinstance(row["a"], int), "isinstance, which is not known"),
    "print": (lambda row: print(row), "print, which is not known"),  # noqa: T201
    "hash": (lambda row: hash(row["a"]), "hash, which is not known"),
    "getattr": (lambda row: getattr(row, "x"), "getattr, which is not known"),  # noqa: B009
    "append": (lambda row: row["l"].append(1), "the attribute .append"),
    "impure callee": (lambda row: remembering(row["a"]), "it calls remembering(), and of that: "),
    "recursion": (lambda row: endless(row["a"]), "it calls itself"),
    "undefined": (lambda row: undefined(row), "'undefined' is not defined yet"),  # type: ignore[name-defined]  # noqa: F821
    "lambda inside": (lambda row: {"f": lambda: row}, "shares a variable with a function inside"),
    "builtin": (print, "only plain functions are examined"),
    "method": ([].append, "only plain functions are examined"),
    "class": (dict, "only plain functions are examined"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused_in_one_sentence(name: str) -> None:
    fn, words = REFUSED[name]
    why = objection(fn)
    assert words in why
    assert "\n" not in why


def test_a_builtin_that_was_replaced_is_not_trusted() -> None:
    space: dict[str, Any] = {"abs": SEEN.append}
    exec("def f(row): return abs(row)", space)
    assert "abs, which is not known to be pure" in objection(space["f"])


def test_an_unknown_function_of_math_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "sqrt", random.random)
    assert "math.sqrt is not what Python ships" in objection(computing)


def test_plain_values_never_change() -> None:
    assert plain_value((1, "a", (2.5, None, frozenset({b"x"}))))
    assert not plain_value((1, []))
    assert not plain_value(type("MyInt", (int,), {})(1))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda row: row["x"] % 3 == 0, {"x"}),
        (lambda row: row["x"] + row["y"], {"x", "y"}),
        (lambda row: OUTSIDE.get(row["x"]), {"x"}),
        (lambda row: row["list"].append(1), {"list"}),  # the dict itself is left alone
        (lambda row: row, None),
        (lambda row: row.get("x"), None),
        (lambda row: len(row), None),
        (lambda row: {**row}, None),
        (lambda row: [row["x"] for _ in row], None),
        (lambda row: sorted(OUTSIDE, key=lambda k: row["x"]), None),
        (lambda row: locals()["row"], None),
        (lambda row: row[row["x"]], None),
        (lambda row: OUTSIDE.update(row["x"], row=row), None),
        (lambda _: 1, set()),
        (lambda row: row[0], {0}),
        (lambda row: sys._getframe().f_locals["row"], None),
        (lambda row: inspect.currentframe(), None),
        (lambda row, rng: row["x"] + rng.random(), {"x"}),
        (lambda: 1, None),
        (len, None),
    ],
)
def test_what_is_looked_up_in_a_row(
    fn: Callable[..., object], expected: set[object] | None
) -> None:
    assert lookups(fn) == expected


def changes(row: dict[str, int]) -> int:
    row["x"] += 1
    return row["x"]


def replaces(row: dict[str, int]) -> int:
    row = {"x": 1}
    return row["x"]


def keeps(row: dict[str, int]) -> int:
    OUTSIDE["row"] = row
    return row["x"]


@pytest.mark.parametrize("fn", [changes, replaces, keeps])
def test_statements_that_touch_the_row(fn: Callable[..., object]) -> None:
    assert lookups(fn) is None


OUTSIDE: dict[object, object] = {}


def branches(row: dict[str, int]) -> dict[str, int]:
    if row["x"]:
        return {"a": 1, "b": row["x"]}
    return {"b": 2, "a": row["x"]}


def uneven(row: dict[str, int]) -> dict[str, int]:
    return {"a": 1} if row["x"] else {"a": 1, "b": 2}


def kept(row: dict[str, int]) -> object:
    OUTSIDE["x"] = {"a": row["x"]}
    return OUTSIDE["x"]


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda row: {"x": row["id"] * 2}, 1),
        (lambda row: {"x": row["id"], "y": 1}, 2),
        (branches, 2),
        (uneven, 0),
        (kept, 0),
        (lambda row: row, 0),
        (lambda row: OUTSIDE["x"], 0),
        (lambda row: {**row}, 0),
        (len, 0),
    ],
)
def test_what_returns_a_dict_of_its_own(fn: Callable[..., object], expected: int) -> None:
    assert fresh_dict(fn) == expected
