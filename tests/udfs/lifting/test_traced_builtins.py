"""Test replacements of Python's functions in lifted code: text, math, loops, ``try``."""

# ruff: noqa: FURB163, FURB192, C416, PLR1730, TRY301 - each as people write it

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dml.udfs.lifting.lifter import Lifted, Refusal, lift
from tests.udfs.lifting.lifting import SCHEMA, Row, agrees, drawn

DIGIT = re.compile(r"\d+|é", re.IGNORECASE)


def quotient(r: Row) -> Row:
    try:
        q = r["c"] // r["n"]
        p = r["a"] / r["b"]
    except (ValueError, ZeroDivisionError):
        return {"y": -1, "z": 0.5}
    except ArithmeticError:
        return {"y": -2, "z": 0.5}
    else:
        return {"y": q, "z": p}


def read(r: Row) -> Row:
    try:
        number = int(r["s"])
    except ValueError:
        number = -1
    try:
        real = float(r["s"])
    except Exception:  # noqa: BLE001
        real = -1.0
    return {"y": number, "z": real}


def nested(r: Row) -> Row:
    try:
        try:
            return {"y": 1 / r["c"]}
        except OverflowError:
            return {"y": 0.0}
    except LookupError:
        return {"y": 1.0}
    except ZeroDivisionError:
        return {"y": 2.0}


def raising(r: Row) -> Row:
    try:
        if r["a"] > 1:
            raise KeyError("x")
        return {"y": r["missing"] if r["a"] > 0 else 1.0}
    except KeyError:
        return {"y": 3.0}


def edits(r: Row) -> Row:
    r["a"] += 1
    r["x"] = r["c"] if r["c"] is not None else 7
    other = r
    other["x"] += 1
    del r["s"]
    r.update(z=r.pop("b"), v=0)
    r.setdefault("v", 2)
    return r


def copies(r: Row) -> Row:
    out, more = dict(r), r.copy()
    out["a"] = more["b"] = 1.0
    return {"y": out["a"] + r["a"], "z": more["b"] - r["b"], "w": "a" in out}


def loops(r: Row) -> Row:
    best, count = r["a"], 0
    for name in ("a", "b"):
        if r[name] > best:
            best = r[name]
        for factor in range(3):
            count += r["d"] * factor
    while count > 10**12:
        count = 0
    return {"y": best, "z": count}


def classed(r: Row) -> Row:
    kinds = [isinstance(r[n], int) + 2 * isinstance(r[n], (float, str)) for n in "acpsd"]
    return {n: k for n, k in zip("acpsd", kinds, strict=True)}


scaled = partial(lambda r, k, *, b: {"y": r["a"] * k + b}, k=2.0, b=1)
LIFTED: dict[str, Callable[[Row], Any]] = {
    "cases": lambda r: {"y": r["s"].lower(), "z": r["s"].upper(), "w": r["s"].title()},
    "more cases": lambda r: {"y": r["s"].casefold(), "z": r["s"].swapcase()},
    "strips": lambda r: {"y": r["s"].strip(), "z": r["s"].lstrip("aé"), "w": r["s"].rstrip("")},
    "ends": lambda r: {"y": r["s"].startswith("a"), "z": r["s"].endswith(("b", "é"))},
    "part of ends": lambda r: {"y": r["s"].startswith("b", 1), "z": r["s"].startswith("")},
    "removals": lambda r: {"y": r["s"].removeprefix("a"), "z": r["s"].removesuffix("b")},
    "replacements": lambda r: {"y": r["s"].replace("a", "xx"), "z": r["s"].replace("", "-")},
    "one replacement": lambda r: {"y": r["s"].replace("a", "", 1)},
    "padding": lambda r: {"y": r["s"].zfill(3), "z": r["s"].rjust(2, "*"), "w": r["s"].center(5)},
    "places": lambda r: {"y": r["s"].find("b"), "z": r["s"].count("a"), "w": r["s"].index("a")},
    "kinds of text": lambda r: {
        "y": r["s"].isdigit(),
        "z": r["s"].isalpha(),
        "w": r["s"].isspace(),
    },
    "within": lambda r: {"y": "a" in r["s"], "w": r["s"] not in ("a", "z")},
    "slices": lambda r: {"y": r["s"][:2], "z": r["s"][1:], "w": r["s"][-2:], "v": r["s"][::-1]},
    "slices from": lambda r: {"y": r["s"][1:3], "z": r["s"][3:1], "w": r["s"][:-1]},
    "item": lambda r: {"y": r["s"][0], "z": r["s"][-1]},
    "lengths": lambda r: {"y": len(r["s"]), "z": len(r["s"].split()), "w": len(r["s"] + "é")},
    "cuts": lambda r: {"y": r["s"].split("a")[0], "z": r["s"].partition("b")[2]},
    "joined": lambda r: {"y": r["s"] + "x", "z": "x" + r["s"] + r["s"]},
    "read": read,
    "written": lambda r: {"y": str(r["c"]), "z": str(r["a"]), "w": str(r["p"]), "v": str(r["s"])},
    "narrow written": lambda r: {"y": str(r["e"]), "z": float(str(r["e"]))},
    "patterns": lambda r: {"y": DIGIT.sub("<>", r["s"]), "z": bool(DIGIT.match(r["s"]))},
    "found": lambda r: {"y": DIGIT.search(r["s"]) is None, "z": 1 if DIGIT.fullmatch("1") else 0},
    "checksum": lambda r: {"y": zlib.crc32(r["s"].encode()) % 7, "z": zlib.adler32(b"x")},
    "logarithms": lambda r: {
        "y": math.log(r["a"]),
        "z": math.log1p(r["c"]),
        "w": math.log2(r["b"]),
    },
    "math of constants": lambda r: {"y": r["a"] + math.exp(1.0), "z": math.log(max(r["b"], 2.0))},
    "circle": lambda r: {
        "y": math.sin(r["a"]),
        "z": math.atan2(r["a"], r["c"]),
        "w": math.cos(1 * r["d"]),
    },
    "exponentials": lambda r: {
        "y": math.exp(r["a"]),
        "z": math.expm1(r["b"]),
        "w": math.tanh(r["e"]),
    },
    "lengths of sides": lambda r: {"y": math.hypot(r["a"], r["b"]), "z": math.pow(r["a"], 0.5)},
    "base of logarithms": lambda r: {"y": math.log(r["a"], 10), "z": math.log(r["c"], r["b"])},
    "float powers": lambda r: {
        "y": r["a"] ** 2,
        "z": r["b"] ** -1.5,
        "w": 0.5 ** r["a"],
        "v": r["c"] ** 0.5,
    },
    "decimals": lambda r: {"y": round(r["a"], 2), "z": round(r["c"], -2), "w": round(r["b"], 0)},
    "shifts": lambda r: {"y": (r["c"] >> 2) & 3, "z": r["d"] << 20, "w": r["c"] << 3},
    "sets": lambda r: {"y": r["c"] in {1, 2, 3}, "z": r["s"] not in {"a", "é"}},
    "comprehension": lambda r: {n: r[n] * 2 for n in ("a", "c")},
    "generator": lambda r: {"y": sum(r[n] for n in ("c", "d")), "z": any(r[n] > 1 for n in "ab")},
    "items": lambda r: {k: v for k, v in r.items() if k != "s"},
    "sorted": lambda r: {"y": sorted([r["a"], r["b"]])[0], "z": max([r["c"], r["n"]])},
    "quotient": quotient,
    "nested": nested,
    "raising": raising,
    "edits": edits,
    "copies": copies,
    "loops": loops,
    "classed": classed,
    "partial": scaled,
}


@pytest.mark.law
@pytest.mark.parametrize("name", LIFTED)
def test_what_is_called_gives_what_python_gives(name: str) -> None:
    lifted = lift(LIFTED[name], SCHEMA)
    assert isinstance(lifted, Lifted), lifted
    rows = drawn(1, 80, nulls=False) + drawn(2, 40, nulls=True)
    verdicts = [agrees(LIFTED[name], lifted, row) for row in rows]
    assert False not in verdicts, rows[verdicts.index(False)]
    assert True in verdicts


def helper(x: Any) -> Any:
    return x * 3.5


def matched(text: str) -> Any:
    return DIGIT.match(text)


def endless(r: Row) -> Row:
    while True:
        r["y"] = 1


def growing(r: Row) -> Row:
    found = [1]
    for each in found:
        found += [each]
    return {"y": len(found) + r["c"]}


def told(r: Row) -> Row:
    try:
        return {"y": r["s"] + str(r["c"] // r["n"])}
    except ZeroDivisionError as error:
        return {"y": str(error)}


def careless(r: Row) -> Row:
    try:
        return {"y": 1.0 / r["a"]}
    except:  # noqa: E722
        return {"y": 0.0}


REFUSED: dict[str, tuple[Callable[[Row], Any], str]] = {
    "look up": (lambda r: {"y": {1: 2}[r["c"]]}, "looks up a value of the row"),
    "no end": (endless, "a loop that does not end soon"),
    "long": (lambda r: {"y": sum(range(10**9)) + r["c"]}, "more than 1024 rounds"),
    "growing": (growing, "a loop that does not end soon"),
    "as the row says": (lambda r: {"y": sum(range(r["c"]))}, "as long as the row says"),
    "what was raised": (told, "what an exception says"),
    "whatever is raised": (careless, "catches whatever is raised"),
    "a match": (lambda r: {"y": matched(r["s"]).group()}, "the attribute .group"),
    "replaced as it says": (lambda r: {"y": DIGIT.sub(helper, r["s"])}, "not a constant text"),
    "other bytes": (lambda r: {"y": zlib.crc32(r["s"].encode("utf-16"))}, "than UTF-8"),
    "joined": (lambda r: {"y": "-".join([r["s"], "x"])}, "takes plain values alone"),
    "pieces": (lambda r: {"y": r["s"].split("a")}, "returns a TracedPieces"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proven_is_refused_in_one_sentence(name: str) -> None:
    fn, words = REFUSED[name]
    found = lift(fn, SCHEMA)
    assert isinstance(found, Refusal)
    assert words in found.reason
