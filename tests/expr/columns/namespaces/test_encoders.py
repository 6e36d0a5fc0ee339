"""Test encoders: one-hot vectors, mappings, vocabularies, and their errors."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import CastError, DmlError, PlanError, SchemaError
from tests.expr.checks import agrees, computed, table

DATA = {
    "x": pa.array([0, 2, -1, None, 5], pa.int32()),
    "s": pa.array(["a", None, "zz", "b", ""]),
    "l": pa.array([[0, 1], None, [], [None, 9, 2], [3]]),
    "f": pa.array([0.0, -0.0, math.nan, None, 2.5]),
    "w": pa.array([["a", "q"], None, [], [None], ["b"]]),
    "b": pa.array([True, False, None, True, False]),
}
X, S, L, F, W = (col(name) for name in "xslfw")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (X.one_hot(3, "u1"), [[1, 0, 0], [0, 0, 1], [0, 0, 0], None, [0, 0, 0]]),
        (L.multi_hot(3, "i8"), [[1, 1, 0], None, [0, 0, 0], [0, 0, 1], [0, 0, 0]]),
        (X.normalize(1, 2), [-0.5, 0.5, -1.0, None, 2.0]),
        (S.replace({"a": "A", "zz": None}), ["A", None, None, "b", ""]),
        (F.replace({0: 7, 2.5: 0.0}), [7.0, 7.0, math.nan, None, 0.0]),
        (X.replace({0: 2, 2: 0}), [2, 0, -1, None, 5]),
        (col("b").replace_strict({True: "yes", False: "no"}), ["yes", "no", None, "yes", "no"]),
        (X.replace_strict({0: 1, 2: 2.5}, default=None), [1.0, 2.5, None, None, None]),
        (X.replace_strict({0: 1}, default=0, return_dtype="u1"), [1, 0, 0, None, 0]),
        (S.lookup(["b", "a"]), [1, None, -1, 0, -1]),
        (S.lookup(["b", "a"], default=None), [1, None, None, 0, None]),
        (X.lookup([5, 0]), [1, -1, -1, None, 0]),
        (W.list.lookup(["a", "b"]), [[0, -1], None, [], [None], [1]]),
        (W.list.lookup(["a", "b"]).multi_hot(2, "u1").is_null(), [False, True] + [False] * 3),
    ],
)
def test_functions(value: dml.Column, wanted: list[Any]) -> None:
    assert repr(computed(DATA, value)) == repr(wanted)


def test_unknown_words_share_the_buckets_that_their_hash_says() -> None:
    words = table(DATA).with_columns(r=S.lookup(["b", "a"], buckets=7), h=S.hash(7)).to_arrow()
    for word, place, bucket in zip(*(words[c].to_pylist() for c in ("s", "r", "h")), strict=True):
        known = {None: None, "b": 0, "a": 1}
        assert place == (known[word] if word in known else 2 + bucket)


def test_text_in_a_dictionary_is_the_text_that_it_is() -> None:
    words = pa.array(["a", "b", "a", None])
    plain, coded = ({"s": column} for column in (words, words.dictionary_encode()))
    for value in (S.hash(100), S.lookup(["b"], buckets=9), S.replace({"a": "z"})):
        assert computed(plain, value) == computed(coded, value)


@pytest.mark.law
@given(st.lists(st.integers(-3, 6) | st.none(), max_size=8), st.integers(1, 5))
def test_a_vector_has_as_many_ones_as_the_number_has_places(numbers: Any, size: int) -> None:
    found = computed({"x": pa.array(numbers, pa.int8())}, X.one_hot(size, "i8"))
    for number, vector in zip(numbers, found, strict=True):
        if number is None:
            assert vector is None
        else:
            assert vector == [int(number == i) for i in range(size)]


def test_what_no_mapping_names_is_an_error_of_its_row() -> None:
    ds = table(DATA).with_columns(r=X.replace_strict({0: 1}))
    agrees(ds, epochs=(0,))
    with pytest.raises(CastError, match="replace_strict meets 2") as caught:
        ds.to_arrow()
    assert "row 1" in caught.value.at
    assert not X.replace_strict({0: 1}).value.total
    assert X.replace_strict({0: 1}, default=None).value.total


def test_literals_that_fail_fail_when_rows_come() -> None:
    ds = table(DATA).with_columns(r=dml.lit(3).replace_strict({0: 1}))
    assert ds.filter(X > 100).to_arrow().num_rows == 0
    with pytest.raises(CastError, match="replace_strict meets 3"):
        ds.to_arrow()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: X.one_hot(0), "of at least 1"),
        (lambda: X.one_hot(3, "string"), "cannot be string"),
        (lambda: S.one_hot(3), "s is string"),
        (lambda: W.multi_hot(3), "w is list<item: string>"),
        (lambda: X.normalize(0, 0), "divides by std"),
        (lambda: X.normalize("a", 1), "normalize needs a number"),  # type: ignore[arg-type]
        (lambda: X.replace({}), "needs a dict"),
        (lambda: X.replace({None: 1}), "cannot look for None"),
        (lambda: X.replace({math.nan: 1}), "cannot look for nan"),
        (lambda: X.replace({0: 2.5}), "2.5 does not fit int32"),
        (lambda: X.replace({"a": 1}), "'a' does not fit int32"),
        (lambda: X.replace_strict({0: None}), "nothing but nulls"),
        (lambda: X.replace_strict({0: 1, 1: "a"}), "without a common type"),
        (lambda: F.lookup([1.0]), "f is double"),
        (lambda: S.lookup("abc"), "needs a list of words"),
        (lambda: S.lookup(["a", "a"]), "given a value twice"),
        (lambda: L.replace({0: 1}), "l is list<item: int64>"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(make: Any, words: str) -> None:
    with pytest.raises(DmlError, match=words) as caught:
        table(DATA).with_columns(r=make())
    assert isinstance(caught.value, PlanError | SchemaError)
    assert "test_encoders.py" in caught.value.at
