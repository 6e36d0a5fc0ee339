"""Test column expressions against the results of Python and NumPy."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col, lit, when
from dml.errors import PlanError, SchemaError
from tests.expr.checks import computed, table

INTS = {"a": pa.array([7, -7, None, 0]), "b": pa.array([2, 2, 2, None])}
BOOLS = {
    "p": pa.array([True, True, True, False, False, False, None, None, None]),
    "q": pa.array([True, False, None] * 3),
}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (col("a") + 1, [8, -6, None, 1]),
        (1 - col("a"), [-6, 8, None, 1]),
        (col("a") // col("b"), [3, -4, None, None]),
        (col("a") % col("b"), [1, 1, None, None]),
        (7 // col("a"), [1, -1, None, None]),
        (col("a") / 2, [3.5, -3.5, None, 0.0]),
        (-col("a"), [-7, 7, None, 0]),
        (abs(col("a")), [7, 7, None, 0]),
        (col("a") ** 3, [343, -343, None, 0]),
        (col("a") ** 1, [7, -7, None, 0]),
        (col("a") & 3, [3, 1, None, 0]),
        (~col("a"), [-8, 6, None, -1]),
        (col("a") << 63, [-(2**63), -(2**63), None, 0]),
        (col("a") << 64, [0, 0, None, 0]),
        (col("a") >> 99, [0, -1, None, 0]),
        (1 << col("b"), [4, 4, 4, None]),
        (64 >> col("b"), [16, 16, 16, None]),
        (+col("a"), [7, -7, None, 0]),
        (round(col("a"), -1), [10, -10, None, 0]),
        (round(col("a")), [7, -7, None, 0]),
        (divmod(col("a"), 2)[0], [3, -4, None, 0]),
        (divmod(col("a"), 2)[1], [1, 1, None, 0]),
        (divmod(7, col("b"))[0], [3, 3, 3, None]),
        (col("a").between(0, 7), [True, False, None, True]),
        (col("a").clip(-1, 1), [1, -1, None, 0]),
        (col("a").clip(), [7, -7, None, 0]),
        (col("a").clip(None, 1), [1, -7, None, 0]),
        (col("a").clip(col("b")), [7, 2, None, None]),
        (col("a").clip(0.5), [7.0, 0.5, None, 0.5]),
        (col("a").is_null(), [False, False, True, False]),
        (col("a").is_not_null(), [True, True, False, True]),
        (col("a").fill_null(col("b")), [7, -7, 2, 0]),
        (dml.minimum("a" and col("a"), col("b"), 1), [1, -7, None, None]),
        (dml.maximum(col("a"), col("b")), [7, 2, None, None]),
        (col("a").round(-1), [10, -10, None, 0]),
        (col("a").floor(), [7, -7, None, 0]),
    ],
)
def test_integers(value: dml.Column, wanted: list[Any]) -> None:
    assert computed(INTS, value) == wanted


def test_integers_wrap_in_their_own_width() -> None:
    small = {"i": pa.array([127, -128], pa.int8()), "u": pa.array([255, 0], pa.uint8())}
    assert computed(small, col("i") + 1) == [-128, -127]
    assert computed(small, col("u") - 1) == [254, 255]
    assert computed(small, abs(col("i"))) == [127, -128]
    assert computed(small, col("i") * col("u")) == [127 * 255, 0]  # int16 has both


@pytest.mark.parametrize(("op", "wanted"), [
    ("and", [True, False, None, False, False, False, None, False, None]),
    ("or", [True, True, True, True, False, None, True, None, None]),
    ("xor", [False, True, None, True, False, None, None, None, None]),
])  # fmt: skip
def test_logic_has_three_values(op: str, wanted: list[Any]) -> None:
    made = {"and": col("p") & col("q"), "or": col("p") | col("q"), "xor": col("p") ^ col("q")}
    assert computed(BOOLS, made[op]) == wanted


def test_logic_with_literals() -> None:
    assert computed(BOOLS, ~col("p")) == [False] * 3 + [True] * 3 + [None] * 3
    assert computed(BOOLS, col("p") & None) == [None] * 3 + [False] * 3 + [None] * 3
    assert computed(BOOLS, col("p") | True) == [True] * 9


def test_floats_and_nan() -> None:
    floats = {"f": pa.array([math.nan, None, -0.0, 2.5])}
    assert computed(floats, col("f") == col("f")) == [False, None, True, True]
    assert computed(floats, col("f") != col("f")) == [True, None, False, False]
    assert computed(floats, col("f").is_nan()) == [True, None, False, False]
    assert computed(floats, col("f").fill_nan(0.5)) == [0.5, None, -0.0, 2.5]
    assert computed(floats, col("f").fill_nan(None))[0] is None
    assert repr(computed(floats, col("f").clip(0, 2))) == "[nan, None, 0.0, 2.0]"
    assert computed(floats, col("f") % 0) == [None, None, None, None]
    assert computed(floats, col("f").is_in([math.nan, 2.5])) == [False, None, False, True]
    assert repr(computed(floats, col("f").round(0))) == "[nan, None, -0.0, 2.0]"


def test_is_in() -> None:
    assert computed(INTS, col("a").is_in([])) == [False, False, None, False]
    assert computed(INTS, col("a").is_in([7, 0])) == [True, False, None, True]
    assert computed(INTS, col("a").is_in([7.5, 0.0])) == [False, False, None, True]
    text = {"s": pa.array(["a", None, "b"], pa.large_string())}
    assert computed(text, col("s").is_in(["b", "c"])) == [False, None, True]
    assert computed(text, col("s").is_in([])) == [False, None, False]
    with pytest.raises(SchemaError, match="cannot look for None"):
        computed(INTS, col("a").is_in([1, None]))


def test_bucketize_counts_whole_numbers_exactly() -> None:
    big = {"x": pa.array([2**53, 2**53 + 1, None])}
    assert computed(big, col("x").bucketize([2**53 + 1])) == [0, 1, None]
    assert computed(big, col("x").bucketize([0.5, 10**400])) == [1, 1, None]
    assert computed(big, col("x").bucketize([])) == [0, 0, None]
    edges = [-math.inf, 0, math.inf]
    floats = {"x": pa.array([-math.inf, -0.0, math.nan, None])}
    assert computed(floats, col("x").bucketize(edges)) == [1, 2, 3, None]


def test_hash_buckets() -> None:
    whole = computed(INTS, col("a").hash())
    assert computed(INTS, col("a").hash(10)) == [None if h is None else h % 10 for h in whole]
    most = computed(INTS, col("a").hash(1 << 63))
    assert most == [None if h is None else h % 2**63 for h in whole]
    assert col("a").hash(10).value.total  # it may be computed anywhere
    assert computed(INTS, col("a").hash(seed=-1)) != whole


def test_when() -> None:
    a = col("a")
    assert computed(INTS, when(a > 0).then("p").when(a < 0).then("n").otherwise(None)) == [
        "p", "n", None, None,
    ]  # fmt: skip
    assert computed(INTS, when(a > 0).then(1).otherwise(0.5)) == [1.0, 0.5, 0.5, 0.5]
    assert computed(INTS, when(None).then(1).otherwise(a)) == [7, -7, None, 0]
    assert computed(INTS, when(lit(True)).then(None).otherwise(a)) == [None] * 4
    assert computed(INTS, when(a > 0).then(None).otherwise(None)) == [None] * 4


def test_stack() -> None:
    mixed = {"i": pa.array([1, None, 3], pa.int8()), "f": pa.array([0.5, 1, 2], pa.float32())}
    assert computed(mixed, dml.stack("i", "f", 7)) == [[1.0, 0.5, 7.0], None, [3.0, 2.0, 7.0]]
    ds = table(mixed).with_columns(t=dml.stack(col("i"), 2, True))
    assert str(ds.schema["t"].value_type) == "int8"
    assert computed(mixed, dml.stack(1, 2)) == [[1, 2]] * 3
    assert computed(mixed, dml.stack("i", None)) == [None] * 3
    with pytest.raises(PlanError, match="at least one column"):
        dml.stack()


def test_moments() -> None:
    noon = dt.datetime(2020, 1, 1, 12)
    for unit in ("s", "ms", "us", "ns"):
        times = {"t": pa.array([noon, None], pa.timestamp(unit))}
        assert computed(times, col("t") == noon) == [True, None]
        assert computed(times, col("t") > dt.date(2020, 1, 1)) == [True, None]
        assert computed(times, col("t").is_in([noon])) == [True, None]
        assert computed(times, col("t").fill_null(dt.date(2020, 1, 2)))[1] is not None
    days = {"d": pa.array([dt.date(2020, 1, 1), None])}
    assert computed(days, col("d") >= dt.datetime(2020, 1, 1)) == [True, None]
    zoned = {"z": pa.array([noon.replace(tzinfo=dt.UTC)], pa.timestamp("us", "Asia/Tokyo"))}
    assert computed(zoned, col("z") == noon.replace(tzinfo=dt.UTC)) == [True]


@pytest.mark.parametrize(
    "make",
    [
        lambda: col("x") ** 0.5,
        lambda: col("x") ** -1,
        lambda: col("x") ** True,
        lambda: 2 ** col("x"),
        lambda: col(3),  # type: ignore[arg-type]
    ],
)
def test_refusals(make: Any) -> None:
    with pytest.raises(SchemaError):
        make()


def test_a_column_is_no_truth_value() -> None:
    for ask in (
        lambda: bool(col("x")),
        lambda: 0 < col("x") < 3,
        lambda: col("x") in [col("y"), 3],
    ):
        with pytest.raises(PlanError, match="not a truth value"):
            ask()


@pytest.mark.law
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9), st.integers(1, 64))
def test_powers_wrap_like_products(values: list[int], exponent: int) -> None:
    found = computed({"x": pa.array(values, pa.int32())}, col("x") ** exponent)
    assert found == [(v**exponent + 2**31) % 2**32 - 2**31 for v in values]


@pytest.mark.law
@given(st.lists(st.floats(width=32), min_size=1, max_size=9), st.integers(-3, 3))
def test_rounding_float32_stays_float32(values: list[float], digits: int) -> None:
    array = pa.array(values, pa.float32())
    ds = table({"x": array}).with_columns(r=col("x").round(digits)).select("r")
    (batch,) = ds.batch(99)
    assert batch["r"].dtype == np.float32
