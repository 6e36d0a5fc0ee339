"""Test functions of text against Python's own, their parameters and their errors."""

from __future__ import annotations

import unicodedata
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml import col, lit
from dml.errors import CastError, PlanError, SchemaError
from dml.testing.functions.strings import lowered, uppered
from tests.expr.checks import agrees, computed, table

WORDS = ["Ab c", None, "", "é-é", "+7"]
TEXT = {"s": pa.array(WORDS)}
S = col("s").str


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (S.len_chars(), [4, None, 0, 3, 2]),
        (S.len_bytes(), [4, None, 0, 5, 2]),
        (S.to_lowercase(), ["ab c", None, "", "é-é", "+7"]),
        (S.to_uppercase(), ["AB C", None, "", "É-É", "+7"]),
        (S.reverse(), ["c bA", None, "", "é-é", "7+"]),
        (S.strip_chars("A7é"), ["b c", None, "", "-", "+"]),
        (S.strip_chars_start("A+"), ["b c", None, "", "é-é", "7"]),
        (S.strip_chars_end("c "), ["Ab", None, "", "é-é", "+7"]),
        (S.starts_with("é"), [False, None, False, True, False]),
        (S.ends_with(""), [True, None, True, True, True]),
        (S.contains("[a-c]"), [True, None, False, False, False]),
        (S.contains("+", literal=True), [False, None, False, False, True]),
        (S.contains(""), [True, None, True, True, True]),
        (S.replace("é", "e"), ["Ab c", None, "", "e-é", "+7"]),
        (S.replace("é", "e", literal=True, n=2), ["Ab c", None, "", "e-e", "+7"]),
        (S.replace_all(r"(\w) (\w)", r"\2\1"), ["Acb", None, "", "é-é", "+7"]),
        (S.replace_all("^.", "_"), ["_b c", None, "", "_-é", "_7"]),
        (S.slice(1), ["b c", None, "", "-é", "7"]),
        (S.slice(-3, 2), ["b ", None, "", "é-", "+7"]),
        (S.slice(0, 0), ["", None, "", "", ""]),
        (S.split("-"), [["Ab c"], None, [""], ["é", "é"], ["+7"]]),
        (S.zfill(3), ["Ab c", None, "000", "é-é", "+07"]),
        (S.pad_start(4, "é"), ["Ab c", None, "éééé", "éé-é", "éé+7"]),
        (S.pad_end(3), ["Ab c", None, "   ", "é-é", "+7 "]),
        (S.concat("x", col("s"), separator="/").str.len_chars(), [11, None, 3, 9, 7]),
        (S.slice(1).str.concat("x", col("s"), separator="/").str.slice(0, 3), [
            "b c", None, "/x/", "-é/", "7/x",
        ]),
        (S.concat(None), [None] * 5),
        (S.split(" ").list.last().str.len_chars() + 1, [2, None, 1, 4, 3]),
        (S.encode().str.decode(), WORDS),
        (S.encode().str.len_bytes(), [4, None, 0, 5, 2]),
        (lit("a-b").str.split("-").list.len(), [2] * 5),
        (lit("word").str.len_chars() + S.len_chars(), [8, None, 4, 7, 6]),
        (lit(None).str.to_uppercase().fill_null("none"), ["none"] * 5),
    ],
)  # fmt: skip
def test_functions(value: dml.Column, wanted: list[Any]) -> None:
    assert computed(TEXT, value) == wanted


@pytest.mark.law
@given(st.lists(st.text(), max_size=5), st.integers(-4, 4), st.integers(0, 3), st.text(max_size=2))
def test_python_says_the_same(texts: list[str], offset: int, n: int, part: str) -> None:
    data = {"s": pa.array(texts, pa.string())}
    assert computed(data, S.slice(offset, n)) == [text[offset:][:n] for text in texts]
    assert computed(data, S.reverse()) == [text[::-1] for text in texts]
    assert computed(data, S.strip_chars()) == [text.strip() for text in texts]
    assert computed(data, S.strip_chars(part)) == [text.strip(part) for text in texts]
    assert computed(data, S.zfill(n)) == [text.zfill(n) for text in texts]
    assert computed(data, S.starts_with(part)) == [text.startswith(part) for text in texts]
    if part:
        assert computed(data, S.split(part)) == [text.split(part) for text in texts]
        every = S.replace(part, "x", literal=True, n=n)
        assert computed(data, every) == [text.replace(part, "x", n) for text in texts]


@pytest.mark.law
def test_cases_map_one_character_to_one() -> None:
    """Over all characters whose cases Python knows; those of pyarrow may be newer."""
    every = [chr(i) for i in range(0x110000) if unicodedata.category(chr(i)) not in ("Cn", "Cs")]
    ds = table({"s": pa.array(every)}, atom_rows=1 << 19)
    for function, law in ((S.to_lowercase(), lowered), (S.to_uppercase(), uppered)):
        found = ds.with_columns(r=function).to_arrow()["r"].to_pylist()
        pairs = zip(every, found, strict=True)
        known = [(c, other) for c, other in pairs if unicodedata.category(other) != "Cn"]
        assert len(known) > 100_000
        assert [c for c, other in known if other != law(c)] == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: S.contains("("),
        lambda: S.contains("(?=a)"),
        lambda: S.contains(col("s")),  # type: ignore[arg-type]
        lambda: S.replace("(a)", r"\2"),
        lambda: S.replace("", "x"),
        lambda: S.replace("a", "x", n=2),
        lambda: S.replace("a", "x", n=-1, literal=True),
        lambda: S.replace_all("a", 1),  # type: ignore[arg-type]
        lambda: S.split(""),
        lambda: S.slice(0.5),  # type: ignore[arg-type]
        lambda: S.slice(0, -1),
        lambda: S.pad_start(3, "ab"),
        lambda: S.pad_end(-1),
        lambda: S.zfill(1 << 40),
        lambda: S.concat("a", separator=None),  # type: ignore[arg-type]
        lambda: S.strip_chars(1),  # type: ignore[arg-type]
    ],
)
def test_parameters_are_checked_where_they_are_written(make: Any) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert caught.value.why
    assert caught.value.try_
    assert "test_strings.py" in caught.value.at


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (col("n").str.len_chars(), "n is int64"),
        (col("b").str.to_lowercase(), ".str.decode() before"),
        (col("l").str.contains("a"), ".list.join(...) before"),
        (S.concat(col("n")), "n is int64"),
        (S.concat(1), "1"),
        (col("s") + "a", ".str.concat"),
    ],
)
def test_other_types_are_refused_by_name(value: dml.Column, words: str) -> None:
    data = {
        "s": pa.array(["a"]), "n": pa.array([1]), "b": pa.array([b"a"]), "l": pa.array([["a"]]),
    }  # fmt: skip
    with pytest.raises(SchemaError) as caught:
        table(data).with_columns(r=value)
    assert words in str(caught.value)
    assert "test_strings.py" in caught.value.at


def test_bytes_that_are_no_text() -> None:
    data = {"b": pa.array([b"a", None, b"\xff", b"\xc3\xa9"])}
    assert computed(data, col("b").str.decode(strict=False)) == ["a", None, None, "é"]
    with pytest.raises(CastError, match="xff"):
        table(data).with_columns(r=col("b").str.decode()).to_arrow()
    agrees(table(data).with_columns(r=col("b").str.decode()), epochs=(0,))
    literal = lit(b"\xff").str.decode()
    with pytest.raises(CastError):
        table(data).with_columns(r=literal).to_arrow()


def test_large_text_is_text() -> None:
    ds = table({"s": pa.array(["a b"], pa.large_string())})
    made = ds.with_columns(u=S.to_uppercase(), p=S.split(" "), c=S.concat("x"))
    assert made.schema["u"] == made.schema["c"] == pa.string()
    assert made.schema["p"] == pa.list_(pa.string())
    assert made.to_arrow()["p"].type == made.schema["p"]


def test_text_is_shown_as_it_is_written() -> None:
    assert (
        repr(S.pad_start(3, "0").str.contains("a"))
        == "s.str.pad_start(3, '0').str.contains('a', False)"
    )
