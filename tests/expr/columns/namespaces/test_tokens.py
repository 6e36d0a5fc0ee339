"""Test how text is split: bytes, code points, words and n-grams."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col
from dml.errors import PlanError
from tests.expr.checks import computed, table

DATA = {
    "s": pa.array([" The cat\tsat", None, "", "é😀", "a,b;;C"]),
    "w": pa.array([["a", "b", "c"], None, [], ["x", None, "y"], ["z"]]),
}
S, W = col("s").str, col("w").list


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (S.slice(0, 2).str.tokenize_bytes(), [
            [32, 84], None, [], [195, 169, 240, 159, 152, 128], [97, 44],
        ]),
        (S.slice(0, 2).str.tokenize_chars(), [[32, 84], None, [], [233, 0x1F600], [97, 44]]),
        (S.tokenize_words(), [["The", "cat", "sat"], None, [], ["é😀"], ["a,b;;C"]]),
        (S.tokenize_words("[^a-z]+", lower=True), [
            ["the", "cat", "sat"], None, [], [], ["a", "b", "c"],
        ]),
        (S.slice(-3).str.ngrams(2), [["sa", "at"], None, [], ["é😀"], [";;", ";C"]]),
        (S.slice(-2).str.ngrams(1, 2), [
            ["a", "t", "at"], None, [], ["é", "😀", "é😀"], [";", "C", ";C"],
        ]),
        (W.ngrams(2), [["a b", "b c"], None, [], ["x y"], []]),
        (W.ngrams(1, 3, separator=""), [
            ["a", "b", "c", "ab", "bc", "abc"], None, [], ["x", "y", "xy"], ["z"],
        ]),
        (S.tokenize_words().list.lookup(["cat"], default=None).list.sum(), [0, None, 0, 0, 0]),
    ],
)  # fmt: skip
def test_functions(value: dml.Column, wanted: list[Any]) -> None:
    assert computed(DATA, value) == wanted


@pytest.mark.law
@given(st.lists(st.text(max_size=9) | st.none(), max_size=5), st.integers(1, 4))
def test_every_text_of_python(texts: list[str | None], n: int) -> None:
    data = {"s": pa.array(texts, pa.string())}
    for value, means in (
        (S.tokenize_bytes(), lambda text: list(text.encode())),
        (S.tokenize_chars(), lambda text: [ord(c) for c in text]),
        (S.ngrams(n), lambda text: [text[i : i + n] for i in range(len(text) - n + 1)]),
        (S.tokenize_words(), lambda text: [w for w in ascii_words(text) if w]),
    ):
        assert computed(data, value) == [None if t is None else means(t) for t in texts]


def ascii_words(text: str) -> list[str]:
    for space in "\t\n\v\f\r":
        text = text.replace(space, " ")
    return text.split(" ")


@pytest.mark.parametrize("pattern", ["", "a*", r"\b", "^", "$", "(?m)^", "x|", r"b\B|\B", "(a|)"])
def test_patterns_that_match_nothing_are_refused(pattern: str) -> None:
    with pytest.raises(PlanError, match="can match no character"):
        S.tokenize_words(pattern)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: S.tokenize_words("("), "is not a pattern"),
        (lambda: S.ngrams(0), "of at least 1"),
        (lambda: S.ngrams(3, 2), "of at least 3"),
        (lambda: W.ngrams(1, separator=None), "separator is text"),  # type: ignore[arg-type]
    ],
)
def test_parameters_are_checked(make: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        table(DATA).with_columns(r=make())
    assert "test_tokens.py" in caught.value.at
