"""Test lifted functions on later rows; only the first rows are also computed in Python."""

# ruff: noqa: TRY301 - as people write it

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import dml
from dml.errors import UDFError
from dml.ops.row.lifted import COMPARED

Row = dict[str, Any]
# The first rows take the plain way through every function here; the last ones do not.
FIRST: list[Row] = [
    {"a": n % 50, "b": n + 1, "f": n / 2, "s": f"t{n}", "k": n % 2 == 0, "v": None}
    for n in range(COMPARED + 6)
]
LATE: list[Row] = [
    {"a": 170, "b": 70, "f": 1.5, "s": "12 x", "k": True, "v": [1]},
    {"a": 101, "b": 0, "f": -0.0, "s": "", "k": False, "v": None},
]


def seen_by(fn: Callable[[Row], Any], rows: list[Row]) -> list[Row]:
    """Rows with a column that is not lifted for those alone that look at it."""
    wanted = {"a", "b", "f", "s", "k", *(("v",) if "v" in fn.__code__.co_consts else ())}
    return [{name: row[name] for name in row if name in wanted} for row in rows]


def python(fn: Callable[[Row], Any], rows: list[Row]) -> tuple[list[Any], str]:
    """What Python makes of the rows, and the name of what it raises."""
    out: list[Any] = []
    try:
        for row in rows:
            out.append(fn(dict(row)))  # noqa: PERF401 - the rows before an error are wanted
    except Exception as error:  # noqa: BLE001 - that is what is compared
        return out, type(error).__name__
    return out, ""


def engine(fn: Callable[[Row], Any], rows: list[Row], executor: str) -> tuple[list[Any], str]:
    out: list[Any] = []
    try:
        for row in dml.from_items(rows).map(fn).with_options(executor=executor, prefetch=0):
            out.append(row)  # noqa: PERF402 - the rows before an error are wanted
    except UDFError as error:
        return out, type(error.__cause__).__name__
    return out, ""


def exactly(rows: list[Any]) -> list[Any]:
    """Rows with the order of their columns, the types of values and the signs of zeros."""
    return [[(name, type(value), repr(value)) for name, value in row.items()] for row in rows]


def class_of_raised(row: Row) -> Row:
    try:
        return {"y": 10 // (row["a"] - 170)}
    except Exception as error:  # noqa: BLE001
        return {"y": 1 if isinstance(error, ZeroDivisionError) else 2}


def class_of_made(row: Row) -> Row:
    made = ValueError("x")
    return {"y": isinstance(made, ValueError) if row["a"] > 100 else False}


def class_of_pieces(row: Row) -> Row:
    if row["a"] > 100:
        return {"y": isinstance(row["s"].split(), list), "z": isinstance(row.items(), tuple)}
    return {"y": False, "z": False}


def class_of_unread(row: Row) -> Row:
    return {"y": isinstance(row["v"], list)}


def seen_later(row: Row) -> Row:
    pairs = row.items()
    if row["a"] > 100:
        row["a"] = row["b"]
    return dict(pairs)


def seen_on_the_way(row: Row) -> Row:
    for name, value in row.items():
        if name == "a" and value > 100:
            row["b"] = 0
        if name == "b":
            row["b"] = value + 1
    return row


def by_place(row: Row) -> Row:
    return {"y": row.values()[0] if row["a"] > 100 else 1}  # type: ignore[index]


def names_compared(row: Row) -> Row:
    return {"y": row["a"] > 100 and row.keys() == {"a": 1, "b": 1, "f": 1, "s": 1, "k": 1}.keys()}


def grown_on_the_way(row: Row) -> Row:
    for name in row:
        if name == "a" and row["a"] > 100:
            row["more"] = row["b"]
    return {"y": row["a"]}


def removed_on_the_way(row: Row) -> Row:
    for name, value in row.items():
        if name == "b" and row["a"] > 100:
            del row[name]
            row[name] = value
    return row


def updated_on_the_way(row: Row) -> Row:
    if row["a"] > 100:
        row.update((name * 2, len(row)) for name in "ab")
    else:
        row.update(aa=row["b"], bb=row["b"])
    return row


def no_such_arguments(row: Row) -> Row:
    try:
        if row["a"] > 100:
            raise UnicodeDecodeError("x")  # type: ignore[call-arg]
    except UnicodeError:
        return {"y": 1}
    except TypeError:
        return {"y": 2}
    return {"y": 3}


def turned_by_number(row: Row) -> Row:
    try:
        if row["a"] > 100:
            raise OSError(2, "x")
    except FileNotFoundError:
        return {"y": 1}
    except OSError:
        return {"y": 2}
    return {"y": 3}


def stopped(value: int) -> int:
    if value > 100:
        raise StopIteration
    return value


def turned_by_generator(row: Row) -> Row:
    try:
        return {"y": sum(stopped(row[name]) for name in "a")}
    except RuntimeError:
        return {"y": -1}
    except StopIteration:
        return {"y": -2}


def sum_of_text(row: Row) -> Row:
    return {"y": sum([row["s"]], "") if row["a"] > 100 else row["s"]}


def radians_of_text(row: Row) -> Row:
    return {"y": math.radians("1" + row["s"][:2]) if row["a"] > 100 else 0.5}


def half_a_character(row: Row) -> Row:
    if row["a"] > 100:
        return {"y": row["k"]}
    return {"y": len(row["s"].replace("x", "\ud800")) > 0 or row["s"] == "\ud800"}


def longest(row: Row) -> Row:
    return {"y": row["s"][: 10**20], "z": row["s"][10**20 :], "w": row["s"][10**20 : 2]}


CASES: list[Callable[[Row], Any]] = [
    *(class_of_raised, class_of_made, class_of_pieces, class_of_unread),
    *(seen_later, seen_on_the_way, by_place, names_compared, grown_on_the_way),
    *(removed_on_the_way, updated_on_the_way),
    *(no_such_arguments, turned_by_number, turned_by_generator),
    *(sum_of_text, radians_of_text, half_a_character, longest),
]


@pytest.mark.parametrize("executor", ["sync", "threads"])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_late_rows_are_those_of_python(fn: Callable[[Row], Any], executor: str) -> None:
    for late in (LATE, LATE[1:]):
        rows = seen_by(fn, FIRST + late)
        wanted, raised = python(fn, rows)
        got, error = engine(fn, rows, executor)
        assert error == raised
        assert exactly(got) == exactly(wanted)[: len(got)]
        assert raised or len(got) == len(wanted)


SCALE = 1


def scaled(row: Row) -> Row:
    return {"y": row["a"] * SCALE}


def scaled_by(row: Row) -> Row:
    return {"y": scaled(row)["y"]}


def large(row: Row) -> bool:
    return bool(row["a"] * SCALE > 100)


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_a_global_that_changes_between_two_runs(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dml.from_items(FIRST + LATE).select("a")
    rows = rows.with_options(executor=executor, prefetch=0)
    mapped, further, kept = rows.map(scaled), rows.map(scaled_by), rows.filter(large)
    assert further.schema is not None
    for scale in (1, 100, 1, 3):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert [row["y"] for row in mapped] == [row["a"] * scale for row in rows]
        assert [row["y"] for row in further] == [row["a"] * scale for row in rows]
        assert [row["a"] for row in kept] == [row["a"] for row in rows if row["a"] * scale > 100]


def test_explain_says_that_a_global_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = dml.from_items([{"a": 1}]).map(scaled)
    assert "computed as expressions" in mapped.explain("physical")
    monkeypatch.setitem(globals(), "SCALE", 2)
    assert "around it has changed" in mapped.explain("physical")


def test_a_variable_that_changes_during_a_run() -> None:
    scale = 1

    def by_scale(row: Row) -> Row:
        return {"y": row["a"] * scale}

    out = []
    items = dml.from_items(FIRST[:10] * 30).map(by_scale).with_options(executor="sync", prefetch=0)
    for row in items:
        out.append(row["y"])
        scale = 2 if len(out) == 200 else scale
    assert out[:10] == [row["a"] for row in FIRST[:10]]
    again = [row["y"] for row in items]
    assert again == [row["a"] * 2 for row in FIRST[:10]] * 30


def joined(row: Row) -> Row:
    if row["a"] > 100:
        return {"a": len("-".join([row["s"]])), "y": 1}
    return {"a": row["a"], "y": 2}


def outside_of_logarithms(row: Row) -> Row:
    try:
        return {"a": row["a"], "y": math.log(100.5 - row["a"])}
    except ValueError:
        return {"a": -1, "y": 0.0}


def absent(row: Row) -> Row:
    taken = {**row}
    if taken["a"] is None:
        return {"a": 60, "y": 1}
    return {"a": row["a"], "y": 2}


def of_a_class(row: Row) -> Row:
    if isinstance((100.5 - row["a"]) ** 0.5, float):
        return {"a": row["a"], "y": 2}
    return {"a": -1, "y": 1}


@pytest.mark.parametrize("fn", [joined, outside_of_logarithms, absent, of_a_class])
def test_a_filter_sees_what_the_function_gives(fn: Callable[[Row], Any]) -> None:
    rows = [*FIRST, *LATE, {**LATE[0], "a": None}] if fn is absent else FIRST + LATE
    rows = seen_by(fn, rows)
    wanted = [made for made in (fn(dict(row)) for row in rows) if made["a"] > 50]
    kept = dml.from_items(rows).map(fn).filter(dml.col("a") > 50)
    assert exactly(list(kept.with_options(executor="sync"))) == exactly(wanted)
