"""Test that statistics exclude only row groups in which no row can pass the filter."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dml.expr.columns.value import Value, col, lit
from dml.io.parquet.parquet import ParquetSource, read_parquet

OPS = ("eq", "ne", "lt", "le", "gt", "ge")
X = col("x")


def over(path: Path, values: Any, kind: pa.DataType, **options: Any) -> ParquetSource:
    """A file with one row group of one column "x"."""
    pq.write_table(pa.table({"x": pa.array(values, kind)}), path / "x.parquet", **options)
    return read_parquet(path / "x.parquet")


def may(source: ParquetSource, *predicate: Value) -> bool:
    return source.may_match(source.unit(0), predicate)


def op(name: str, *args: Value) -> Value:
    return Value(name, args)


small = st.integers(-3, 3)
leaf = st.one_of(
    st.builds(lambda o, v: op(o, X, lit(v)), st.sampled_from(OPS), st.none() | small),
    st.builds(lambda o, v: op(o, lit(v), X), st.sampled_from(OPS), small),
    st.builds(lambda vs: Value("is_in", (X,), tuple(vs)), st.lists(small, max_size=3)),
    st.just(op("is_null", X)),
)
predicates = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.builds(lambda a, b: op("and", a, b), inner, inner),
        st.builds(lambda a, b: op("or", a, b), inner, inner),
        st.builds(lambda a: op("not", a), inner),
        st.builds(lambda a: op("bit_not", a), inner),
    ),
    max_leaves=5,
)


def holds(value: Value, x: float | None) -> bool | None:
    """Three-valued truth of a predicate for one row."""
    if value.op == "is_null":
        return x is None
    if value.op == "is_in":
        return None if x is None else x in value.params
    if value.op in ("not", "bit_not"):
        inner = holds(value.args[0], x)
        return None if inner is None else not inner
    if value.op in ("and", "or"):
        both = [holds(arg, x) for arg in value.args]
        decisive = value.op == "or"
        if decisive in both:
            return decisive
        return None if None in both else not decisive
    a, b = (x if arg.op == "col" else arg.params[0] for arg in value.args)
    if a is None or b is None:
        return None
    compare = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return compare[value.op]


@pytest.mark.law
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.none() | small, min_size=1, max_size=4), st.booleans(), st.booleans(), predicates
)
def test_a_no_is_always_right(
    tmp_path: Path, values: list[int | None], floats: bool, nan: bool, predicate: Value
) -> None:
    rows: list[float | None] = [*values, math.nan] if floats and nan else list(values)
    source = over(tmp_path, rows, pa.float64() if floats else pa.int16())
    if any(holds(predicate, x) is True for x in rows):
        assert may(source, predicate)


@pytest.mark.parametrize(
    ("values", "kind", "predicate", "expected"),
    [
        ([1, 5], pa.int64(), op("gt", X, lit(5)), False),
        ([1, 5], pa.int64(), op("ge", X, lit(5)), True),
        ([1, 5], pa.int64(), op("lt", lit(5), X), False),
        ([1, 5], pa.int64(), op("not", op("le", X, lit(5))), False),
        ([5, 5, None], pa.int64(), op("ne", X, lit(5)), False),
        ([5, 6], pa.int64(), op("eq", X, lit(None)), False),
        ([1, 5], pa.int64(), op("eq", X, lit(7.5)), False),
        ([1, 5], pa.int64(), op("eq", X, lit("a")), True),
        ([1, 5], pa.int64(), op("eq", X, lit(10**400)), True),
        ([2**53 + 1], pa.int64(), op("eq", X, lit(float(2**53))), True),
        ([2**64 - 1], pa.uint64(), op("lt", X, lit(2**63)), False),
        ([200], pa.uint8(), op("lt", X, lit(100)), False),
        ([1, 5], pa.int64(), op("bit_and", op("gt", X, lit(0)), op("gt", X, lit(9))), False),
        ([1, 5], pa.int64(), op("or", op("gt", X, lit(9)), op("lt", X, lit(0))), False),
        ([1, 5], pa.int64(), op("or", op("gt", X, lit(9)), op("lt", X, X)), True),
        ([1, 5], pa.int64(), Value("is_in", (X,), (0, 9)), False),
        ([1, 5], pa.int64(), Value("is_in", (X,), (0, 3)), True),
        ([1, 5], pa.int64(), op("not", Value("is_in", (X,), (0, 9))), True),
        ([1, 5], pa.int64(), op("is_null", X), False),
        ([1, None], pa.int64(), op("is_null", X), True),
        ([None, None], pa.int64(), op("not", op("is_null", X)), False),
        ([None, None], pa.int64(), op("eq", X, lit(1)), False),
        ([1, 5], pa.int64(), lit(value=False), False),
        ([1, 5], pa.int64(), lit(None), False),
        ([1, 5], pa.int64(), lit(value=True), True),
        ([1.0, 2.0], pa.float64(), op("gt", X, lit(2)), False),
        ([1.0, math.nan], pa.float64(), op("gt", X, lit(2)), False),
        ([1.0, math.nan], pa.float64(), op("not", op("le", X, lit(2))), True),
        ([1.0, math.nan], pa.float64(), op("ne", X, lit(1.0)), True),
        ([math.nan], pa.float64(), op("eq", X, lit(1.0)), True),
        ([1.0], pa.float64(), op("eq", X, lit(math.nan)), True),
        ([0.0], pa.float64(), op("eq", X, lit(-0.0)), True),
        ([-0.0], pa.float64(), op("lt", X, lit(0.0)), False),
        ([0.1], pa.float32(), op("eq", X, lit(0.1)), True),
        ([0.1], pa.float32(), op("gt", X, lit(0.2)), False),
        ([0.1], pa.float32(), op("lt", X, lit(1e300)), True),
        ([1], pa.int8(), Value("eq", (X, lit(7, pa.float32()))), True),
        ([1], pa.int64(), Value("eq", (X, lit(7, pa.int64()))), False),
        (["b", "d"], pa.string(), op("lt", X, lit("b")), False),
        (["b", "d"], pa.string(), op("eq", X, lit("é")), False),
        (["b", "d"], pa.string(), op("eq", X, lit("c")), True),
        ([b"b", b"\xff"], pa.binary(), op("lt", X, lit(b"a")), False),
        ([b"b", b"\xff"], pa.binary(), op("gt", X, lit(b"z")), True),
        ([True, True], pa.bool_(), op("not", X), False),
        ([True, True], pa.bool_(), X, True),
        ([True, True], pa.bool_(), op("eq", X, lit(1)), True),
        ([dt.date(2020, 1, 1)], pa.date32(), op("gt", X, lit(dt.date(2021, 1, 1))), False),
        ([decimal.Decimal("1.1")], pa.decimal128(3, 1), op("gt", X, lit(9)), True),
        ([dt.datetime(2020, 1, 1)], pa.timestamp("ns"), op("is_null", X), False),
        ([dt.datetime(2020, 1, 1)], pa.timestamp("ns"), op("eq", X, lit(3)), True),
        ([1.5], pa.float16(), op("gt", X, lit(9)), True),
        ([[1], []], pa.list_(pa.int64()), op("gt", X, lit(9)), True),
        ([[1], None], pa.list_(pa.int64()), op("not", op("is_null", X)), True),
        ([{"a": 1}, None], pa.struct({"a": pa.int64()}), op("is_null", X), True),
        ([1, 5], pa.int64(), op("gt", op("add", X, lit(1)), lit(99)), True),
    ],
)
def test_what_is_proven(
    tmp_path: Path, values: list[Any], kind: pa.DataType, predicate: Value, expected: bool
) -> None:
    if kind == pa.float16():
        values = [np.float16(v) for v in values]
    assert may(over(tmp_path, values, kind), predicate) is expected


def test_all_parts_of_a_predicate_count(tmp_path: Path) -> None:
    source = over(tmp_path, [1, 5], pa.int64())
    assert may(source)
    assert may(source, op("gt", X, lit(0)), op("lt", X, lit(9)))
    assert not may(source, op("gt", X, lit(0)), op("lt", X, lit(0)))


def test_absent_statistics_prove_nothing(tmp_path: Path) -> None:
    source = over(tmp_path, [1, 5], pa.int64(), write_statistics=False)
    assert may(source, op("gt", X, lit(99)))
    assert may(source, op("is_null", X))
    assert may(source, op("gt", col("unknown"), lit(99)))


def test_long_text_proves_what_its_bounds_allow(tmp_path: Path) -> None:
    values = ["é" * 3000, "ü" * 3000]
    source = over(tmp_path, values, pa.string())
    assert may(source, op("eq", X, lit(values[0])))
    assert may(source, op("eq", X, lit(values[1])))
    assert pc.min(pa.array(values)).as_py() == values[0]
