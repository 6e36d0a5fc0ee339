"""Row functions that a careless lift would silently get wrong."""

from __future__ import annotations

import itertools
import os
import random
import time
from typing import Any

from tests.corpus.case import B, Case, F, I, Row, S

SEEN: list[Any] = []
LIMITS = {"low": 0.0}
COUNTER = itertools.count()


def is_none(row: Row) -> Row:
    return {"missing": row["x"] is None, "x": 0.0 if row["x"] is None else row["x"]}


def equals_none(row: Row) -> Row:
    return {"missing": row["x"] == None}  # noqa: E711


def by_class(row: Row) -> Row:
    return {"x": row["x"] * 2.0 if isinstance(row["x"], float) else 0.0}


def by_type(row: Row) -> Row:
    return {"float": type(row["x"]) is float}


def noisy(row: Row) -> Row:
    return {"x": row["x"] + random.random()}


def stamped(row: Row) -> Row:
    return {"x": row["x"], "at": time.time()}


def remembering(row: Row) -> Row:
    SEEN.append(1)
    return {"x": row["x"]}


def counting(row: Row) -> Row:
    return {"x": row["x"], "n": next(COUNTER) * 0}


def limited(row: Row) -> Row:
    return {"x": max(row["x"], LIMITS["low"])}


def closing() -> Any:
    state = {"last": 0.0}

    def difference(row: Row) -> Row:
        last, state["last"] = state["last"], row["x"]
        return {"d": row["x"] - last}

    return difference


def caught_division(row: Row) -> Row:
    try:
        return {"q": row["a"] // row["b"], "r": row["a"] % row["b"]}
    except ZeroDivisionError:
        return {"q": -1, "r": 0}


def caught_anything(row: Row) -> Row:
    try:
        return {"y": row["a"] / row["b"]}
    except Exception:  # noqa: BLE001
        return {"y": -1.0}


def message(row: Row) -> Row:
    try:
        return {"y": str(row["a"] // row["b"])}
    except ZeroDivisionError as error:
        return {"y": f"{error}"}


def finally_changed(row: Row) -> Row:
    result = {"y": row["x"]}
    try:
        if row["x"] < 0:
            return {"y": -row["x"]}
    finally:
        result["y"] = 0.0
    return result


def squared(row: Row) -> Row:
    return {"y": row["n"] * row["n"]}


def mixed_up(row: Row) -> Row:
    return {"y": row["n"] * 3 - row["n"], "z": row["n"] == row["n"] + 0.0}


def negated(row: Row) -> Row:
    return {"y": -row["n"], "z": abs(row["n"])}


def shown(row: Row) -> Row:
    return {"text": f"n={row['n']} x={row['x']}"}


def shown_float(row: Row) -> Row:
    return {"text": str(row["x"]), "short": f"{row['x']:.3g}"}


def until_one(row: Row) -> Row:
    n, steps = abs(row["n"]) % 1000 + 1, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return {"steps": steps}


def as_often(row: Row) -> Row:
    total = 0
    for _ in range(row["n"] % 50):
        total += row["n"] % 7
    return {"total": total}


def aliased(row: Row) -> Row:
    other = row
    other["x"] = row["x"] + 1.0
    return {"a": row["x"], "b": other["x"]}


def edited_filter(row: Row) -> bool:
    row["x"] = row["x"] * 2.0
    return bool(row["x"] > 1.0)


def unstable_columns(row: Row) -> Row:
    return {"x": row["x"], "y": 0.0} if row["x"] > 0 else {"y": row["x"], "x": 0.0}


def sometimes_int(row: Row) -> Row:
    return {"x": row["x"] if row["x"] > 0 else 0}  # noqa: FURB136


def zero_signs(row: Row) -> Row:
    return {"a": max(row["x"], 0.0), "b": max(0.0, row["x"]), "c": min(-0.0, row["x"])}


def nan_order(row: Row) -> Row:
    return {
        "a": max(row["x"], row["y"]),
        "b": min(row["x"], row["y"], 1.0),
        "c": row["x"] != row["x"],
    }


def chained(row: Row) -> Row:
    return {"y": row["a"] < row["b"] < row["c"] != row["a"]}


def either(row: Row) -> Row:
    return {"y": row["a"] or row["b"] or 1.0, "z": row["a"] and row["b"]}


def by_environment(row: Row) -> Row:
    return {"x": row["x"] * float(os.environ.get("DML_CORPUS_SCALE", "1"))}


def salted(row: Row) -> Row:
    return {"bucket": hash(row["s"]) % 8}


def truthy(row: Row) -> Row:
    return {"a": bool(row["s"]), "b": bool(row["x"]), "c": not row["n"], "d": row["ok"] + 1}


def recursive(row: Row) -> Row:
    def fact(n: int) -> int:
        return 1 if n <= 1 else n * fact(n - 1)

    return {"y": fact(row["n"] % 5)}


def membership(row: Row) -> Row:
    return {
        "a": row["x"] in (1, 2.0, True),
        "b": row["x"] in (row["x"],),  # noqa: FURB171
        "c": row["n"] not in (0, 1),
    }


def shortest(row: Row) -> Row:
    return {"s": min(row["s"], "b"), "order": row["s"] < "a\uffff"}


CASES = [
    Case(is_none, {"x": F}),
    Case(equals_none, {"x": F}),
    Case(by_class, {"x": F}, numeric=True),
    Case(by_type, {"x": F}, why="type"),
    Case(noisy, {"x": F}, why="random", draws=True),
    Case(stamped, {"x": F}, why="time", draws=True),
    Case(remembering, {"x": F}, why="SEEN"),
    Case(counting, {"x": F}, why="next"),
    Case(limited, {"x": F}, why="LIMITS"),
    Case(closing(), {"x": F}, why="state", draws=True),
    Case(caught_division, {"a": I, "b": I}, numeric=True),
    Case(caught_anything, {"a": F, "b": F}, numeric=True),
    Case(message, {"a": I, "b": I}, why="what an exception says"),
    Case(finally_changed, {"x": F}, why="finally"),
    Case(squared, {"n": I}, numeric=True),
    Case(mixed_up, {"n": I}, numeric=True),
    Case(negated, {"n": I}, numeric=True),
    Case(shown, {"n": I, "x": F}, why="formats"),
    Case(shown_float, {"x": F}, why="formats"),
    Case(until_one, {"n": I}, why="more than 40 times"),
    Case(as_often, {"n": I}, why="loop"),
    Case(aliased, {"x": F}, numeric=True),
    Case(edited_filter, {"x": F}, keeps=True, numeric=True),
    Case(unstable_columns, {"x": F}, why="columns", settles={"x": F, "y": F}),
    Case(sometimes_int, {"x": F}, why="an int", settles={"x": F}),
    Case(zero_signs, {"x": F}, numeric=True),
    Case(nan_order, {"x": F, "y": F}, numeric=True),
    Case(chained, {"a": F, "b": F, "c": F}, numeric=True),
    Case(either, {"a": F, "b": F}, numeric=True),
    Case(by_environment, {"x": F}, why="os"),
    Case(salted, {"s": S}, why="hash"),
    Case(truthy, {"s": S, "x": F, "n": I, "ok": B}),
    Case(recursive, {"n": I}, why="function inside"),
    Case(membership, {"x": F, "n": I}, numeric=True),
    Case(shortest, {"s": S}),
]
