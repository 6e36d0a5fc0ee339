"""Row functions that edit rows, read lists, and call other functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tests.corpus.case import FLOATS, INTS, TEXTS, B, Case, F, I, Row, S


def clamp(value: float, low: float, high: float) -> float:
    return max(low, min(value, high))


def with_default(value: Any, default: Any) -> Any:
    return default if value is None else value


def edited(row: Row) -> Row:
    row["total"] = row["price"] * row["count"]
    return row


def edited_twice(row: Row) -> Row:
    row["x"] = with_default(row["x"], 0.0)
    row["x"] = row["x"] * 2.0
    row["big"] = row["x"] > 10.0
    return row


def dropped(row: Row) -> Row:
    del row["secret"]
    return row


def popped(row: Row) -> Row:
    row["y"] = row.pop("x") + 1.0
    return row


def renamed(row: Row) -> Row:
    return {"label": row["y"], "feature": row["x"]}


def added(row: Row) -> Row:
    return {**row, "ratio": clamp(row["a"] - row["b"], -1.0, 1.0)}


def updated(row: Row) -> Row:
    row.update(y=row["x"] * 2, z=0)
    return row


def copied(row: Row) -> Row:
    out = dict(row)
    out["x"] = out["x"] + 1
    return out


def doubled_all(row: Row) -> Row:
    return {key: value * 2 for key, value in row.items()}


def zeroed(row: Row) -> Row:
    for name in ("a", "b", "c"):
        if row[name] is None:
            row[name] = 0.0
    return row


def total(row: Row) -> Row:
    return {"total": sum(row[name] for name in ("a", "b", "c"))}


def kept(row: Row) -> Row:
    return {name: row[name] for name in ("id", "label")}


def nested_default(row: Row) -> Row:
    return {"x": with_default(row["a"], with_default(row["b"], -1.0))}


def helped(row: Row) -> Row:
    return {"x": clamp(row["x"], 0.0, 255.0) / 255.0}


def counted(row: Row) -> Row:
    return {"n": len(row["tags"]), "any": bool(row["tags"])}


def summed(row: Row) -> Row:
    values = row["values"]
    return {"sum": sum(values), "mean": sum(values) / len(values) if values else 0.0}


def largest(row: Row) -> Row:
    return {"top": max(row["values"], default=0), "first": row["values"][0] if row["values"] else 0}


def tagged(row: Row) -> bool:
    return "sale" in row["tags"]


def last_three(row: Row) -> Row:
    return {"ids": row["ids"][-3:]}


def norm(row: Row) -> Row:
    return {"norm": math.sqrt(sum(v * v for v in row["vector"]))}


def joined_tags(row: Row) -> Row:
    return {"tags": ",".join(sorted(row["tags"]))}


def scaler(mean: float, scale: float) -> Callable[[Row], Row]:
    def scaled(row: Row) -> Row:
        return {"x": (row["x"] - mean) / scale, "label": row["label"]}

    return scaled


def tuned(row: Row, *, factor: float, offset: float = 0.0) -> Row:
    return {"x": row["x"] * factor + offset}


class Normaliser:
    """An instance is the function, as many libraries have it."""

    def __init__(self, mean: float, std: float) -> None:
        self.mean, self.std = mean, std

    def __call__(self, row: Row) -> Row:
        return {"x": (row["x"] - self.mean) / self.std}


class Lookup:
    """A method of an instance that holds a table."""

    def __init__(self) -> None:
        self.table = {"a": 1, "b": 2}

    def code(self, row: Row) -> Row:
        return {"code": self.table.get(row["key"], 0)}


def merged(row: Row) -> Row:
    return row | {"split": "train" if row["id"] % 10 < 8 else "test"}


def swapped(row: Row) -> Row:
    low, high = row["low"], row["high"]
    if low > high:
        low, high = high, low
    return {"low": low, "high": high}


def matched(row: Row) -> Row:
    match row["kind"]:
        case "a":
            code = 1
        case "b" | "c":
            code = 2
        case _:
            code = 0
    return {"code": code}


def walrus(row: Row) -> bool:
    return bool((gap := row["end"] - row["start"]) > 0 and gap < 3600)


def as_is(row: Row) -> Row:
    return row


partial_tuned = functools.partial(tuned, factor=2.0)
by_lambda: Callable[[Row], Row] = lambda row: {"y": row["x"] * 2 + 1}  # noqa: E731
plain_filter: Callable[[Row], Any] = lambda row: row["label"] != 3 and row["ok"]  # noqa: E731

CASES = [
    Case(edited, {"price": F, "count": I}, numeric=True),
    Case(edited_twice, {"x": F}, numeric=True),
    Case(dropped, {"x": F, "secret": S}),
    Case(popped, {"x": F, "id": I}, numeric=True),
    Case(renamed, {"x": F, "y": I}, numeric=True),
    Case(added, {"a": F, "b": F}, numeric=True),
    Case(updated, {"x": I}, numeric=True),
    Case(copied, {"x": I}, numeric=True),
    Case(doubled_all, {"a": F, "b": F}, numeric=True),
    Case(zeroed, {"a": F, "b": F, "c": F}, numeric=True),
    Case(total, {"a": F, "b": F, "c": F}, numeric=True),
    Case(kept, {"id": I, "label": S, "rest": F}),
    Case(nested_default, {"a": F, "b": F}, numeric=True),
    Case(helped, {"x": F}, numeric=True),
    Case(counted, {"tags": TEXTS}, why="tags"),
    Case(summed, {"values": FLOATS}, why="values", settles={"sum": F, "mean": F}),
    Case(largest, {"values": INTS}, why="values"),
    Case(tagged, {"tags": TEXTS}, why="tags", keeps=True),
    Case(last_three, {"ids": INTS}, why="ids"),
    Case(norm, {"vector": FLOATS}, why="vector"),
    Case(joined_tags, {"tags": TEXTS}, why="tags"),
    Case(scaler(0.5, 0.25), {"x": F, "label": I}, numeric=True),
    Case(partial_tuned, {"x": F}, numeric=True),
    Case(Normaliser(0.5, 2.0), {"x": F}, why="Normaliser", numeric=True),
    Case(Lookup().code, {"key": S}, why="method"),
    Case(merged, {"id": I}),
    Case(swapped, {"low": F, "high": F}, numeric=True),
    Case(matched, {"kind": S}),
    Case(walrus, {"start": I, "end": I}, keeps=True, numeric=True),
    Case(as_is, {"x": F, "s": S}),
    Case(by_lambda, {"x": F}, numeric=True),
    Case(plain_filter, {"label": I, "ok": B}, keeps=True, numeric=True),
]
