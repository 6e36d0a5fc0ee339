"""Compare lifted functions with Python, row by row, on values made to break them."""

# ruff: noqa: ARG005 - what a lambda refers to is the point, not what it is given

from __future__ import annotations

import math
from collections.abc import Callable
from math import sqrt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.data.schema import Schema
from dml.expr.columns.value import col
from dml.udfs.lifting.lifter import Lifted, Refusal, lift
from dml.udfs.lifting.symbolic_row import Tracer, UnliftableError
from dml.udfs.lifting.traced_builtins import REPLACED
from dml.udfs.lifting.traced_value import Traced
from tests.udfs.lifting.lifting import SCHEMA, Row, agrees, computed, drawn

K = 3.5


def helper(x: Any) -> Any:
    return x * K


def one_if(x: Any) -> int:
    return 1 if x else 0


def winding(r: Row) -> Row:
    total = one_if(r["a"] > 1) + one_if(r["a"] > 2) + one_if(r["b"] > 1) + one_if(r["b"] > 2)
    return {"y": total + one_if(r["c"] > 1) + one_if(r["c"] > 2) + one_if(r["p"])}


def closing(n: int) -> Callable[[Row], Row]:
    return lambda r: {"y": r["c"] + n}


def stepwise(r: Row) -> Row:
    v = r["a"]
    if v < 0:
        v = -v
    if v > 2:
        v = 2.0
    return {"y": v + r["b"]}


def guarded(r: Row) -> Row:
    if r["a"] < 0 or r["c"] > 5:
        raise ValueError(r)
    return {"y": r["a"] + r["c"], "z": r["n"] if r["n"] is not None else 0}


def copying(r: Row) -> Row:
    return {**r, "y": 0.0 if r["a"] is None else r["a"]}


def unpacked(r: Row) -> Row:
    x, y = r["a"], r["b"]
    return {"y": 1.0 if (x, y) == (1.0, 2.5) else 0.0}


LIFTED: dict[str, Callable[[Row], Any]] = {
    "float arithmetic": lambda r: {
        "y": r["a"] + r["b"],
        "z": r["a"] - r["b"],
        "w": r["a"] * r["b"],
    },
    "int arithmetic": lambda r: {"y": r["c"] + r["n"], "z": r["c"] - r["n"]},
    "int product": lambda r: {"y": r["c"] * r["n"]},
    "float division": lambda r: {"y": r["a"] / r["b"]},
    "float floor division": lambda r: {"y": r["a"] // r["b"], "z": r["a"] % r["b"]},
    "int division": lambda r: {"y": r["c"] / r["n"]},
    "int floor division": lambda r: {"y": r["c"] // r["n"], "z": r["c"] % r["n"]},
    "divmod": lambda r: {"y": divmod(r["c"], r["n"])[1], "z": divmod(r["a"], r["b"])[0]},
    "mixed": lambda r: {"y": r["a"] + r["c"], "z": r["d"] * r["e"], "w": r["c"] // 2.0},
    "narrow columns": lambda r: {"y": r["d"] * 2 + 1, "z": r["e"] * 2},
    "signs of ints": lambda r: {"y": -r["c"], "z": abs(r["c"])},
    "signs": lambda r: {"y": -r["a"], "z": abs(r["a"]), "w": +r["p"], "v": -r["p"]},
    "comparisons": lambda r: {"y": r["a"] < r["b"], "z": r["a"] == r["b"], "w": r["a"] != r["b"]},
    "int against float": lambda r: {
        "y": r["a"] < r["c"],
        "z": r["c"] >= r["a"],
        "w": r["c"] == r["a"],
    },
    "chained": lambda r: {"y": 0 < r["a"] < 1},
    "condition": lambda r: {"y": 1.0 if 0 < r["a"] < 1 and r["b"] > 0 else 0.0},
    "leaky": lambda r: {"y": r["a"] if r["a"] > 0 else 0.01 * r["a"]},
    "max and min": lambda r: {"y": max(r["a"], r["b"]), "z": min(r["a"], 0.0, r["b"])},
    "booleans": lambda r: {"y": r["p"] and r["a"] > 0, "z": not r["p"], "w": r["p"] + r["p"]},
    "bits": lambda r: {
        "y": r["p"] & (r["a"] > 0),
        "z": r["c"] & 7,
        "w": r["c"] ^ r["n"],
        "v": ~r["c"],
    },
    "none": lambda r: {"y": 0.0 if r["a"] is None else r["a"] * 2},
    "none twice": lambda r: {
        "y": r["a"] if r["a"] is not None else (r["b"] if r["b"] is not None else -1.0)
    },
    "or": lambda r: {"y": r["a"] or 5.0, "z": r["s"] or "empty"},
    "equals none": lambda r: {"y": r["a"] == None, "z": r["c"] != None},  # noqa: E711
    "neither": lambda r: {"y": (r["a"] or r["b"]) is None},
    "is none": lambda r: {"y": r["a"] is None, "z": (r["c"] or None) is not None},
    "none or one": lambda r: {"y": r["c"] in (None, 1), "z": r["a"] in (r["a"], 2.0)},
    "member": lambda r: {"y": r["c"] in (1, 2, 3)},
    "get": lambda r: {"y": r.get("a"), "z": r.get("absent", 1)},
    "to int": lambda r: {"y": int(r["a"]), "z": int(r["p"]), "w": int(r["c"])},
    "rounding": lambda r: {"y": math.floor(r["a"]), "z": math.ceil(r["a"]), "w": round(r["a"])},
    "to float": lambda r: {"y": float(r["c"]), "z": bool(r["a"]), "w": float(r["p"])},
    "square root": lambda r: {"y": sqrt(r["a"]), "z": math.fabs(r["a"])},
    "classes": lambda r: {
        "y": math.isnan(r["a"]),
        "z": math.isinf(r["b"]),
        "w": math.isfinite(r["a"]),
    },
    "text": lambda r: {
        "y": r["s"] == "a",
        "z": r["s"] < "b",
        "w": "x" if r["s"] >= "b" else r["s"],
    },
    "callee": lambda r: {"y": helper(r["a"])},
    "closure": closing(3),
    "extreme closure": closing(-(2**63)),
    "powers": lambda r: {"y": r["c"] ** 2, "z": r["d"] ** 3},
    "guarded division": lambda r: {"y": 1 / r["c"] if r["c"] else 0.0},
    "overflow then modulo": lambda r: {"y": (r["c"] * 10**18) % 7},
    "none on a path": lambda r: {"y": None if r["a"] > 0 else 1.5},
    "booleans as numbers": lambda r: {
        "y": r["p"] == True,  # noqa: E712 - what is lifted
        "z": r["p"] < r["c"],
        "w": r["a"] * r["p"],
    },
    "reversed": lambda r: {"y": 2 / r["c"], "z": 7 // r["c"], "w": -7 % r["c"], "v": 7.5 % r["a"]},
    "whole row": lambda r: r,
    "row and more": lambda r: r | {"a": r["a"] + 1},
    "copying": copying,
    "stepwise": stepwise,
    "guarded": guarded,
    "unpacked": unpacked,
    "filter": lambda r: r["a"] > 0,
    "filter with more": lambda r: (r["a"] > 0 and r["b"] < 1) or r["p"],
    "filter text": lambda r: not r["s"],
}


@pytest.mark.law
@pytest.mark.parametrize("name", LIFTED)
def test_a_lifted_function_gives_what_python_gives(name: str) -> None:
    fn = LIFTED[name]
    lifted = lift(fn, SCHEMA)
    assert isinstance(lifted, Lifted), lifted
    rows = drawn(1, 60, nulls=False) + drawn(2, 60, nulls=True)
    verdicts = [agrees(fn, lifted, row) for row in rows]
    assert False not in verdicts, rows[verdicts.index(False)]
    assert True in verdicts


@pytest.mark.parametrize("name", ["leaky", "int arithmetic", "none", "stepwise"])
def test_ordinary_rows_are_inside_the_proof(name: str) -> None:
    rows = [{"a": 1.5 * i, "b": 2.0, "c": i, "n": 3} for i in range(-5, 5)]
    full = [{**drawn(3, 1, nulls=False)[0], **row} for row in rows]
    lifted = lift(LIFTED[name], SCHEMA)
    assert isinstance(lifted, Lifted)
    failed, out = computed(lifted, full)
    assert not failed
    assert out == [tuple(LIFTED[name](row).values()) for row in full]


def is_true(x: Any) -> bool:
    return x is True


def matching(r: Row) -> bool:
    match r["p"]:
        case True:
            return True
    return False


def chosen_identity(r: Row) -> bool:
    return r["p"] is (r["c"] and None)


IDENTITY = "compares by identity"
REFUSED: dict[str, tuple[Callable[[Row], Any], str]] = {
    "is": (lambda r: r["p"] is True, IDENTITY),
    "is of a comparison": (lambda r: (r["a"] > 150) is True, IDENTITY),
    "is not": (lambda r: r["p"] is not False, IDENTITY),
    "is a column": (lambda r: r["a"] is r["b"], IDENTITY),
    "is, in a callee": (lambda r: is_true(r["p"]), IDENTITY),
    "match": (matching, IDENTITY),
    "is what is chosen": (chosen_identity, IDENTITY),
    "math of integers": (lambda r: {"y": math.gcd(r["c"], 2)}, "calls math.gcd"),
    "base": (lambda r: {"y": int(r["a"], 10)}, "in a base of its own"),
    "not pure": (lambda r: {"y": [x for x in r["l"]]}, "it "),  # noqa: C416
    "power of the row": (lambda r: {"y": 2 ** r["c"]}, "to a power that depends on the row"),
    "high power": (lambda r: {"y": r["c"] ** 99}, "other than 1 to 16"),
    "two kinds": (lambda r: {"y": max(r["a"], 0)}, "an int on one path and a float on another"),
    "format": (lambda r: {"y": f"{r['a']}"}, "formats a value"),
    "method of numbers": (lambda r: {"y": r["a"].is_integer()}, "uses .is_integer of a value"),
    "items": (lambda r: {"y": [c for c in r["s"]]}, "item by item"),  # noqa: C416
    "number as filter": (lambda r: r["c"], "a filter must return a bool"),
    "row in place": (lambda r: r.__ior__({"y": 1}), "the attribute .__ior__"),
    "other columns": (lambda r: {"y": 1} if r["p"] else {"z": 1}, "other columns on other paths"),
    "dict on a path": (lambda r: {"y": 1} if r["p"] else True, "a dict on some paths only"),
    "always raises": (lambda r: {"y": r["missing"]}, "raises on every path"),
    "none everywhere": (lambda r: {"y": None}, "None on every path"),
    "huge integer": (lambda r: {"y": r["c"] + 2**64}, "beyond 64 bits"),
    "inexact comparison": (lambda r: r["a"] > 2**53 + 1, "beyond 2**53"),
    "text and number": (lambda r: r["s"] == 1, "compares values of different types"),
    "text arithmetic": (lambda r: {"y": r["s"] * 2}, "computes with text"),
    "a list": (lambda r: {"y": [r["a"]]}, "returns a list as 'y'"),
    "nothing": (lambda r: {}, "returns no columns"),
    "none": (lambda r: None, "neither a dict nor a bool"),
    "many paths": (winding, "more than 64 paths"),
}  # fmt: skip


def test_every_function_of_math_is_replaced_or_refused() -> None:
    functions = {f for name, f in vars(math).items() if callable(f) and name[0] != "_"}
    assert functions <= set(REPLACED)
    pairs = [Traced(Tracer((), tests_none=False), col("a"), "f")] * 2
    for function in (math.prod, math.fsum, math.dist, getattr(math, "sumprod", math.hypot)):
        with pytest.raises(UnliftableError, match="has no lifted form"):
            REPLACED[function](pairs, pairs)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proven_is_refused_in_one_sentence(name: str) -> None:
    fn, words = REFUSED[name]
    found = lift(fn, SCHEMA)
    assert isinstance(found, Refusal)
    assert words in found.reason
    assert "\n" not in found.reason


def test_columns_of_other_types_are_not_touched() -> None:
    schema = Schema({"a": pa.float64(), "l": pa.list_(pa.int8()), "u": pa.uint64()})
    assert isinstance(lift(lambda r: {"y": r["a"] + 1}, schema), Lifted)
    for fn in (lambda r: r["l"] == r["a"], lambda r: r["u"] > 1, lambda r: {**r}):
        assert isinstance(lift(fn, schema), Refusal)


def test_an_unknown_schema_is_refused() -> None:
    assert isinstance(lift(lambda r: r["a"] > 0, Schema(known=False)), Refusal)


OPERATORS = ("+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", ">", ">=", "and", "or")
TERMS = st.sampled_from(
    ['r["a"]', 'r["b"]', 'r["c"]', 'r["n"]', 'r["d"]', 'r["p"]', "1", "2.5", "0", "-3"]
)
EXPRESSIONS = st.recursive(
    TERMS,
    lambda inner: (
        st.tuples(inner, st.sampled_from(OPERATORS), inner).map(lambda t: f"({' '.join(t)})")
        | st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})")
        | inner.map(lambda x: f"abs({x})")
        | inner.map(lambda x: f"(not {x})")
        | inner.map(lambda x: f"int({x})")
    ),
    max_leaves=6,
)


@pytest.mark.law
@given(EXPRESSIONS, st.integers(0, 10**6))
def test_any_expression_gives_what_python_gives(text: str, seed: int) -> None:
    space: dict[str, Any] = {}
    exec(f"def f(r): return {{'y': {text}}}", space)
    lifted = lift(space["f"], SCHEMA)
    if isinstance(lifted, Lifted):
        for row in drawn(seed, 4, nulls=False) + drawn(seed, 4, nulls=True):
            assert agrees(space["f"], lifted, row) is not False, row
