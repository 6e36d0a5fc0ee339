"""Test ``join`` against Polars and pandas, where they are installed."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

import dml
from tests.expr.checks import QUIET

NAN = float("nan")
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [0, 1, 2, -5, None]),
    "f": (pa.float64(), [0.0, -0.0, NAN, 2.5, None]),
    "s": (pa.string(), ["", "a", "ä", "aa", None]),
    "d": (pa.date32(), [dt.date(1960, 1, 1), dt.date(2024, 2, 29), None]),
    "b": (pa.bool_(), [True, False, None]),
}
ONS = (["i"], ["f"], ["s"], ["d"], ["i", "s"], ["b", "f", "d"])
SIZES = ((0, 0), (0, 5), (5, 0), (1, 1), (9, 7), (40, 30), (200, 30))


def table(draw: random.Random, n: int, name: str) -> pa.Table:
    columns = {
        key: pa.array([draw.choice(values) for _ in range(n)], kind)
        for key, (kind, values) in KINDS.items()
    }
    return pa.table({**columns, name: pa.array(range(n), pa.int64())})


def tables(size: tuple[int, int], seed: int) -> tuple[pa.Table, pa.Table]:
    draw = random.Random(seed)
    return table(draw, size[0], "x"), table(draw, size[1], "y")


def ours(left: pa.Table, right: pa.Table, *args: Any, **options: Any) -> pa.Table:
    one, two = (dml.from_arrow(each, atom_rows=7) for each in (left, right))
    return one.join(two, *args, **options).with_options(**QUIET).to_arrow()


def plain(found: Any, names: list[str], *, ordered: bool) -> list[str]:
    rows = [repr([row[name] for name in names]) for row in found]
    return rows if ordered else sorted(rows)


@pytest.mark.sample(4)
@pytest.mark.law
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti", "cross"])
def test_polars_has_the_same_rows(how: Any) -> None:
    polars = pytest.importorskip("polars")
    for number, size in enumerate(SIZES):
        left, right = tables(size, number)
        for on in ONS if how != "cross" else [None]:
            for nulls_equal in (False, True) if on else (False,):
                options: dict[str, Any] = {"how": how, "nulls_equal": nulls_equal}
                found = ours(left, right, on, **options)
                if on is not None:
                    options["coalesce"] = True
                theirs = polars.from_arrow(left).join(
                    *(polars.from_arrow(right), on), maintain_order="left_right", **options
                )
                assert set(found.schema.names) == set(theirs.columns)
                # zeros of either sign are one key, and the side that it is shown of differs
                names = [n for n in found.schema.names if "f" not in n or how in ("semi", "anti")]
                wanted = plain(theirs.to_dicts(), names, ordered=how not in ("right", "full"))
                ordered = how not in ("right", "full")
                assert plain(found.to_pylist(), names, ordered=ordered) == wanted, (size, on)


@pytest.mark.law
@pytest.mark.parametrize("how", ["inner", "left"])
def test_pandas_has_the_same_rows(how: Any) -> None:
    pandas = pytest.importorskip("pandas")
    for number, size in enumerate(SIZES):
        left, right = tables(size, number)
        for on in (["i"], ["s"], ["i", "s"]):
            one, two = (
                each.select([*on, each.schema.names[-1]]).filter(_filled(each, on))
                for each in (left, right)
            )
            found = ours(one, two, on, how=how)
            theirs = pandas.merge(one.to_pandas(), two.to_pandas(), on=on, how=how)
            pairs = [
                (x, None if y != y else int(y))  # noqa: PLR0124 - NaN stands for null there
                for x, y in zip(theirs["x"].tolist(), theirs["y"].tolist(), strict=True)
            ]
            assert [(row["x"], row["y"]) for row in found.to_pylist()] == pairs, (size, on)


def _filled(given: pa.Table, on: list[str]) -> pa.Array:
    rows = given.to_pylist()
    return pa.array([all(row[name] is not None for name in on) for row in rows], pa.bool_())
