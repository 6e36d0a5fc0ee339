"""Test short forms of verbs: they equal the long forms, including the fingerprint."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import dml
from dml import Column, Dataset, col
from dml.errors import PlanError, SchemaError
from tests.refusals import refused

NAN = float("nan")
ROWS = dml.from_dict({"x": [1.0, NAN, None, 4.0], "k": [1, 2, None, 4], "s": ["a", None, "c", ""]})

X, K, T = col("x"), col("k"), col("s").str

SAME: list[tuple[Callable[[Dataset], Dataset], Callable[[Dataset], Dataset]]] = [
    (lambda d: d.rename_column("x", "y"), lambda d: d.rename({"x": "y"})),
    (lambda d: d.cast_column("k", "f4"), lambda d: d.cast({"k": "f4"})),
    (lambda d: d.slice(1), lambda d: d.skip(1)),
    (lambda d: d.slice(1, 2), lambda d: d.skip(1).take(2)),
    (lambda d: d.gather_every(2), lambda d: d.shard(2, 0)),
    (lambda d: d.gather_every(2, 1), lambda d: d.skip(1).shard(2, 0)),
    (lambda d: d.fill_nan({"x": 0.0}), lambda d: d.with_columns(x=col("x").fill_nan(0.0))),
    (lambda d: d.fill_nan(x=0.0), lambda d: d.with_columns(x=col("x").fill_nan(0.0))),
    (lambda d: d.drop_nans(), lambda d: d.drop_nans("x")),
    (
        lambda d: d.select((X + 1).alias("y"), "k"),
        lambda d: d.with_columns(y=X + 1).select("y", "k"),
    ),
    (lambda d: d.select(X.alias("k"), K.alias("x")), lambda d: d.select(k=X, x=K)),
    (lambda d: d.with_columns((X * K).alias("y")), lambda d: d.with_columns(y=X * K)),
    (lambda d: d.agg((X * K).sum().alias("y")), lambda d: d.agg(y=(X * K).sum())),
    (
        lambda d: d.group_by((K // 2).alias("h")).agg(X.max().alias("y"), dml.len().alias("n")),
        lambda d: d.group_by(h=K // 2).agg(y=X.max(), n=dml.len()),
    ),
    (lambda d: d.drop_nulls(), lambda d: d.drop_nulls("x", "k", "s")),
]


@pytest.mark.parametrize(("short", "long"), SAME)
def test_a_short_form_has_the_name_of_the_long_one(
    short: Callable[[Dataset], Dataset], long: Callable[[Dataset], Dataset]
) -> None:
    assert short(ROWS).fingerprint() == long(ROWS).fingerprint()


WORDS = dml.from_dict({"l": [[1, 2, 2], None], "b": [[True], []]})
FORMS: list[tuple[Column, Column]] = [
    (X.add(1), X + 1),
    (X.sub(K), X - K),
    (X.mul(2), X * 2),
    (X.truediv(K), X / K),
    (X.floordiv(2), X // 2),
    (X.mod(2), X % 2),
    (X.pow(3), X**3),
    (X.neg(), -X),
    (X.sign(), dml.when(X > 0).then(1).when(X < 0).then(-1).otherwise(X)),
    (X.eq(K), X == K),
    (X.ne(K), X != K),
    (X.lt(K), X < K),
    (X.le(K), X <= K),
    (X.gt(K), X > K),
    (X.ge(K), X >= K),
    ((X > 1).and_(K > 1, K < 3), (X > 1) & (K > 1) & (K < 3)),
    ((X > 1).or_(K > 1, K < 3), (X > 1) | (K > 1) | (K < 3)),
    ((X > 1).xor(K > 1), (X > 1) ^ (K > 1)),
    ((X > 1).not_(), ~(X > 1)),
    (X.eq_missing(K), (X == K).fill_null(X.is_null() & K.is_null())),
    (X.ne_missing(K), ~X.eq_missing(K)),
    (X.is_between(1, K), X.between(1, K)),
    (X.is_between(1, K, "none"), (X > 1) & (X < K)),
    (X.is_finite(), abs(X) < math.inf),
    (X.is_infinite(), abs(X) == math.inf),
    (X.is_not_nan(), ~X.is_nan()),
    (T.strip_prefix("a."), T.replace(r"\A(?:a\.)", "")),
    (T.strip_suffix("a."), T.replace(r"(?:a\.)\z", "")),
]
LISTS: list[tuple[Column, Column]] = [
    (col("l").list.tail(2), col("l").list.slice(-2, 2)),
    (col("l").list.tail(0), col("l").list.slice(0, 0)),
    (col("l").list.n_unique(), col("l").list.unique().list.len()),
    (col("b").list.any(), col("b").list.contains(item=True)),
    (col("b").list.all(), ~col("b").list.contains(item=False)),
]


@pytest.mark.parametrize("place", range(len(FORMS)))
def test_a_short_form_of_columns_is_the_long_one(place: int) -> None:
    short, long = FORMS[place]
    assert ROWS.select(z=short).fingerprint() == ROWS.select(z=long).fingerprint()


@pytest.mark.parametrize("place", range(len(LISTS)))
def test_a_short_form_of_lists_is_the_long_one(place: int) -> None:
    short, long = LISTS[place]
    assert WORDS.select(z=short).fingerprint() == WORDS.select(z=long).fingerprint()


def test_names_given_by_alias() -> None:
    assert repr(X.alias("y")) == "x.alias('y')"
    refused(PlanError, lambda: X.alias(1), "needs a name")  # type: ignore[arg-type]
    refused(PlanError, lambda: ROWS.select(X.alias("y"), y=K), "'y' twice")
    refused(PlanError, lambda: ROWS.agg(X.max().alias("y"), K.max().alias("y")), "two columns 'y'")
    refused(PlanError, lambda: ROWS.group_by(X.alias("y"), y=K), "two columns 'y'")
    refused(SchemaError, lambda: ROWS.select(dml.all_columns().alias("y")), "several columns")
    refused(SchemaError, lambda: ROWS.with_columns(z=X.alias("y")), "cannot be a literal")
    refused(PlanError, lambda: ROWS.sort(X.alias("y")), "sort by")


def test_forms_that_have_no_meaning() -> None:
    refused(PlanError, lambda: X.is_between(1, 2, "middle"), "middle")
    refused(SchemaError, lambda: X.pow(0), "whole exponent")
    refused(PlanError, lambda: T.strip_prefix(1), "the prefix")  # type: ignore[arg-type]
    unsigned = ROWS.cast(k="uint8", strict=False)
    refused(SchemaError, lambda: unsigned.select(z=K.sign()), "uint8")


def kept(ds: Dataset) -> list[int | None]:
    return list(ds.to_arrow()["k"].to_pylist())


def test_nan_null_and_false() -> None:
    assert kept(ROWS.drop_nans("x")) == [1, None, 4]
    assert kept(ROWS.drop_nulls("x")) == [1, 2, 4]
    assert kept(ROWS.remove(col("x") > 2)) == [1, 2, None]  # null is not true: it stays
    assert kept(ROWS.filter(col("x") > 2)) == [4]
    assert ROWS.drop_nans("x").drop_nulls("x").count() == 2
    assert ROWS.select("s").drop_nans().count() == 4, "no floats, no NaN"


def test_columns_that_a_function_decides_must_be_named() -> None:
    some = ROWS.flat_map(lambda row: [row])
    for act in (some.drop_nans, some.drop_nulls):
        refused(SchemaError, act, "needs known columns")
    assert some.drop_nans("x").count() == 3


def test_names_that_are_not_there() -> None:
    refused(SchemaError, lambda: ROWS.rename_column("z", "y"), "z")
    refused(SchemaError, lambda: ROWS.fill_nan(z=0.0), "z")
    refused(PlanError, lambda: ROWS.gather_every(0), "at least 1")
    refused(PlanError, lambda: ROWS.slice(-1), "at least 0")


def test_names_of_other_libraries() -> None:
    assert ROWS.column_names == ROWS.columns == ["x", "k", "s"]
    assert dml.from_list([{"a": 1}]).fingerprint() == dml.from_items([{"a": 1}]).fingerprint()
    for data in ([1, 2], ["a", "b"], {"x": [1.5]}, ([1, 2], ["a", "b"])):
        made = dml.from_tensor_slices(data).to_dict()
        named = data if isinstance(data, dict) else {"item": data}
        both = {"item_0": [1, 2], "item_1": ["a", "b"]}
        assert made == (both if isinstance(data, tuple) else named)


def test_text_under_a_keyword_may_be_a_column_or_a_text() -> None:
    for act in (
        lambda: ROWS.with_columns(y="x"),
        lambda: ROWS.with_column("y", "x"),
        lambda: ROWS.select(y="x"),
        lambda: ROWS.group_by(y="x"),
        lambda: ROWS.agg(y="x"),
        lambda: ROWS.group_by("k").agg(y="mean"),
    ):
        refused(PlanError, act, "y=dml.col(")
    assert ROWS.with_column("y", dml.lit("x")).take(1).to_dict()["y"] == ["x"]
