"""Compare short forms of column functions with Polars, whose names they have."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from tests.sampling import amount

Build = Callable[[Any], Any]

NUMBERS: dict[str, Build] = {
    "add": lambda m: m.col("k").add(m.col("j")),
    "sub": lambda m: m.col("k").sub(m.col("j")),
    "mul": lambda m: m.col("x").mul(m.col("y")),
    "truediv": lambda m: m.col("k").truediv(m.col("j")),
    "floordiv": lambda m: m.col("k").floordiv(m.col("j")),
    "mod": lambda m: m.col("k").mod(m.col("j")),
    "pow": lambda m: m.col("k").pow(3),
    "neg": lambda m: m.col("x").neg(),
    "sign": lambda m: m.col("x").sign(),
    "sign of integers": lambda m: m.col("k").sign(),
    "eq": lambda m: m.col("k").eq(m.col("j")),
    "ne": lambda m: m.col("k").ne(m.col("j")),
    "lt": lambda m: m.col("k").lt(m.col("j")),
    "le": lambda m: m.col("k").le(m.col("j")),
    "gt": lambda m: m.col("k").gt(m.col("j")),
    "ge": lambda m: m.col("k").ge(m.col("j")),
    "eq_missing": lambda m: m.col("k").eq_missing(m.col("j")),
    "eq_missing of a literal": lambda m: m.col("k").eq_missing(1),
    "eq_missing of None": lambda m: m.col("k").eq_missing(None),
    "ne_missing": lambda m: m.col("k").ne_missing(m.col("j")),
    "and_": lambda m: m.col("a").and_(m.col("b"), m.col("k") > 0),
    "or_": lambda m: m.col("a").or_(m.col("b"), m.col("k") > 0),
    "xor": lambda m: m.col("a").xor(m.col("b")),
    "not_": lambda m: m.col("a").not_(),
    "is_between": lambda m: m.col("k").is_between(0, m.col("j")),
    "is_between left": lambda m: m.col("k").is_between(0, 3, "left"),
    "is_between right": lambda m: m.col("k").is_between(0, 3, "right"),
    "is_between none": lambda m: m.col("k").is_between(0, 3, "none"),
    "is_finite": lambda m: m.col("x").is_finite(),
    "is_infinite": lambda m: m.col("x").is_infinite(),
    "is_not_nan": lambda m: m.col("x").is_not_nan(),
}
OTHERS: dict[str, Build] = {
    "str.strip_prefix": lambda m: m.col("s").str.strip_prefix("a."),
    "str.strip_suffix": lambda m: m.col("s").str.strip_suffix("a."),
    "list.tail": lambda m: m.col("l").list.tail(2),
    "list.tail of none": lambda m: m.col("l").list.tail(0),
    "list.n_unique": lambda m: m.col("l").list.n_unique(),
    "list.any": lambda m: m.col("t").list.any(),
    "list.all": lambda m: m.col("t").list.all(),
    "dt.century": lambda m: m.col("m").dt.century(),
    "dt.millennium": lambda m: m.col("m").dt.millennium(),
    "dt.is_leap_year": lambda m: m.col("m").dt.is_leap_year(),
    "dt.timestamp": lambda m: m.col("m").dt.timestamp("ms"),
    "dt.to_string": lambda m: m.col("m").dt.to_string("%Y-%m-%d %H:%M:%S"),
}
WHOLE = st.none() | st.integers(-4, 4) | st.integers(-(2**31), 2**31)
FLOATS = st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan])
LOGIC = st.none() | st.booleans()
TEXTS = st.none() | st.text("a.b\n", max_size=6)
MOMENTS = st.none() | st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1))
KINDS: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    **dict.fromkeys("kj", (WHOLE, pa.int64())),
    **dict.fromkeys("xy", (FLOATS, pa.float64())),
    **dict.fromkeys("ab", (LOGIC, pa.bool_())),
    "s": (TEXTS, pa.string()),
    "l": (st.none() | st.lists(WHOLE, max_size=4), pa.list_(pa.int64())),
    "t": (st.none() | st.lists(LOGIC, max_size=3), pa.list_(pa.bool_())),
    "m": (MOMENTS, pa.timestamp("us")),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A few rows of every kind."""
    n = draw(st.integers(1, 6))
    made = {
        name: pa.array(draw(st.lists(values, min_size=n, max_size=n)), kind)
        for name, (values, kind) in KINDS.items()
    }
    return pa.table(made)


@pytest.mark.sample(20)
@pytest.mark.law
@pytest.mark.parametrize("name", [*NUMBERS, *OTHERS])
@given(rows=tables())
@settings(max_examples=amount(15, 25), deadline=None)
def test_a_short_form_gives_what_polars_gives(name: str, rows: pa.Table) -> None:
    pl = pytest.importorskip("polars")
    build = {**NUMBERS, **OTHERS}[name]
    ours = dml.from_arrow(rows).select(z=build(dml)).to_arrow()["z"]
    theirs = pl.from_arrow(rows).select(z=build(pl)).to_arrow()["z"]
    # as text: -0.0 is not 0.0
    assert str(ours.to_pylist()) == str(theirs.to_pylist())
