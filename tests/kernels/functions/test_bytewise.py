"""Compare text functions computed on bytes with Python's, and chains with their functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.kernels import function_ops, interpreter
from dml.kernels.compiled.fused_program import Fused
from dml.kernels.compiled.tier_choice import BYTE_STEPS, KernelTiers
from dml.kernels.functions import text_chain
from dml.kernels.functions.byte_sets import set_of
from dml.kernels.functions.bytewise import step_of
from dml.kernels.functions.text_chain import chained
from dml.kernels.functions.tokens import tokenize_words
from dml.kernels.interpreter import ElementProgram
from dml.kernels.program import CHAIN, Program, Step
from dml.kernels.vec import ARROW_TYPES, CastFailure
from tests.kernels.in_python import in_python

# Letters of all sizes in UTF-8, those whose cases are odd, white space that ASCII has not, NUL.
LETTERS = (
    "aAbzZ09_-. \t\n\r\v\f\x00\x1c\x7f\x85\xa0éßİ\u0131\u017f\u212a\u2003\u3000\u200b\ufeff日😀"
)
TEXTS = st.lists(
    st.one_of(st.none(), st.text(st.sampled_from(LETTERS), max_size=40), st.text(max_size=8)),
    max_size=12,
)

# Patterns of RE2 that are sets, and the same for Python, whose \s has \v.
SETS = {
    r"[ \t\n\r\v\f]+": r"[ \t\n\r\v\f]+",
    r"\s+": r"[ \t\n\r\f]+",
    r"\s": r"[ \t\n\r\f]",
    r"[^a-z]+": r"[^a-z]+",
    r"[^\d]": r"[^0-9]",
    r"\S+": r"[^ \t\n\r\f]+",
    r"\.": r"\.",
    "a": "a",
    " +": " +",
    "\x00": "\x00",
    r"[\w\-]": r"[a-zA-Z0-9_\-]",
}
OTHERS = (
    "",
    "ab",
    "a|b",
    "a*",
    "a+?",
    "a{2}",
    "[[:alpha:]]",
    r"[\pL]",
    "é",
    "[aé]",
    ".",
    "^",
    "(a)",
)

CUT = st.sampled_from(["", " ", "a", " \t", "a\x00z", "\n"])
STEPS = st.one_of(
    st.just(("str.to_lowercase", ())),
    st.just(("str.to_uppercase", ())),
    st.tuples(
        st.just("str.replace"),
        st.tuples(
            st.sampled_from(sorted(SETS)),
            st.sampled_from([" ", "", "-", "a", "é", "ab"]),
            st.just(value=False),
            st.none(),
        ),
    ),
    st.tuples(
        st.just("str.replace"),
        st.tuples(
            st.sampled_from(["a", " ", "\\", "ab", "é"]),
            st.sampled_from(["\\", "", "x"]),
            st.just(value=True),
            st.sampled_from([None, 1]),
        ),
    ),
    st.tuples(
        st.sampled_from(["str.strip_chars", "str.strip_chars_start", "str.strip_chars_end"]),
        st.tuples(st.one_of(st.none(), CUT)),
    ),
)
SLICES = st.tuples(
    st.just("list.slice"), st.tuples(st.integers(-2, 5), st.one_of(st.none(), st.integers(0, 6)))
)
LINKS = st.builds(
    lambda text, listed: [*text, *listed],
    st.lists(STEPS, max_size=5),
    st.one_of(
        st.just([]),
        st.builds(lambda cuts: [("str.tokenize_bytes", ()), *cuts], st.lists(SLICES, max_size=2)),
    ),
)


def program(links: list[tuple[str, tuple[Any, ...]]]) -> Program:
    """One function after the other."""
    steps = tuple(Step(name, (i,), "arrow", params) for i, (name, params) in enumerate(links))
    return Program(("arrow",), steps, (len(steps),))


def run(made: Program, column: pa.Array) -> list[Any]:
    """Every output."""
    return interpreter.run(made, [column], len(column)).outputs


@pytest.mark.law
@given(TEXTS, LINKS, st.sampled_from([pa.string(), pa.large_string()]), st.integers(0, 3))
def test_a_chain_gives_what_its_functions_give(
    texts: list[str | None], links: list[Any], kind: pa.DataType, skipped: int
) -> None:
    column = pa.array(texts, kind).slice(min(skipped, len(texts)))
    plain = program(links)
    (expected,), (found,) = run(plain, column), run(chained(plain), column)
    found.validate(full=True)
    assert found.type == expected.type
    assert found.to_pylist() == expected.to_pylist()


ELEMENT = st.sampled_from(
    [
        ("cast", "i4", (True,)),
        ("cast", "f8", (True,)),
        ("cast", "i1", (False,)),
        ("cast", "i1", (True,)),
        ("eq", "b1", ()),
    ]
)


def evaluated(op: str, code: str, params: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """An expression of elements as a link."""
    args = (0, 0) if op == "eq" else (0,)
    inner = ElementProgram(("u1",), (Step(op, args, code, params),), (1,))
    return "list.eval", (inner, ARROW_TYPES[code], params == (True,))


@pytest.mark.law
@given(TEXTS, LINKS, st.one_of(st.none(), ELEMENT))
def test_a_kernel_gives_what_the_functions_give(
    texts: list[str | None], links: list[Any], element: tuple[str, str, Any] | None
) -> None:
    if element is not None and any(name == "str.tokenize_bytes" for name, _ in links):
        links = [*links, evaluated(*element)]
    plain = program(links)
    column = pa.array(texts, pa.string())
    fused = Fused(chained(plain))
    kernels = [in_python(source) for source in fused.sources([column])]
    agree(
        lambda: interpreter.run(plain, [column], len(column)),
        lambda: fused.run(kernels, [column], len(column)),
    )


def agree(one: Callable[[], interpreter.Result], other: Callable[[], interpreter.Result]) -> None:
    """Equal values, or the same failure at the same row."""
    found = []
    for way in (one, other):
        try:
            (output,) = way().outputs
            found.append((pa.array(output).type, pa.array(output).to_pylist()))
        except CastFailure as failure:
            found.append((failure.row, failure.value))
    assert found[0] == found[1]


W3: list[Any] = [
    ("str.to_lowercase", ()),
    ("str.replace", (r"[ \t\n\r\v\f]+", " ", False, None)),
    ("str.strip_chars", (" ",)),
    ("str.tokenize_bytes", ()),
    ("list.slice", (0, 7)),
    evaluated("cast", "i4", (True,)),
]


@pytest.mark.slow
def test_the_compiled_kernel_gives_the_same(tmp_path: Path) -> None:
    made = chained(program(W3))
    texts = ["  A  b\t" * (i % 5) + "x" * (i % 11) if i % 6 else None for i in range(500)]
    column = pa.array(texts)
    tiers = KernelTiers(tmp_path, "swap-at-block-1")
    outputs: list[Any] = [tiers.run(made, [column], len(column)).outputs[0] for _ in range(3)]
    assert (tiers.counts.numpy, tiers.counts.compiled) == (1, 2)
    assert outputs[0].equals(outputs[1])
    assert outputs[0].equals(outputs[2])


def test_one_kernel_is_wanted_by_the_texts_of_all_programs(tmp_path: Path) -> None:
    column = pa.array(["  some words"] * 1000)
    enough = 4 * BYTE_STEPS * column.nbytes
    tiers = KernelTiers(tmp_path, "auto", enough)
    tiers.cache.request = wanted = MagicMock()  # type: ignore[method-assign]
    for _ in range(3):
        tiers.run(chained(program(W3)), [column], len(column))
        assert not wanted.called
    tiers.run(chained(program(W3)), [column], len(column))
    assert wanted.called


def test_letters_beyond_ascii_are_not_the_kernels() -> None:
    made = Fused(chained(program(W3)))
    kernel = MagicMock()
    column = pa.array(["\u0130 A"])
    plain, found = interpreter.run(made.program, [column], 1), made.run([kernel], [column], 1)
    assert found.outputs == plain.outputs
    assert not kernel.called


@pytest.mark.law
@given(TEXTS, st.sampled_from(sorted(SETS)), st.sampled_from(["", " ", "-"]))
def test_a_set_is_replaced_as_python_does(
    texts: list[str | None], pattern: str, value: str
) -> None:
    made = chained(program([("str.replace", (pattern, value, False, None))]))
    assert made.steps[0].op == CHAIN
    (found,) = run(made, pa.array(texts, pa.string()))
    meant = [text and re.sub(SETS[pattern], value, text) for text in texts]
    assert found.to_pylist() == meant


@pytest.mark.law
@given(TEXTS, st.sampled_from(sorted(SETS)), st.sampled_from([pa.string(), pa.large_string()]))
def test_words_are_those_of_python(
    texts: list[str | None], pattern: str, kind: pa.DataType
) -> None:
    column = pa.array(["x", *texts], kind).slice(1)
    found = tokenize_words(column, pattern)
    found.validate(full=True)
    assert found.type == pa.list_(kind)
    meant = [
        text if text is None else [word for word in re.split(SETS[pattern], text) if word]
        for text in texts
    ]
    assert found.to_pylist() == meant


@pytest.mark.law
@given(TEXTS)
def test_cleaning_is_what_python_would_write(texts: list[str | None]) -> None:
    kept = [t if t is None or t.isascii() else "Ab  " for t in texts]
    (found,) = run(chained(program(W3[:-1])), pa.array(kept, pa.string()))
    meant = [t if t is None else list(b" ".join(t.lower().encode().split())[:7]) for t in kept]
    assert found.to_pylist() == meant


@pytest.mark.parametrize("size", [1, 33, 100])
def test_long_runs_at_both_ends(size: int) -> None:
    texts = [" " * size, " " * size + "a" + " " * size, "", "b", "a" + "\t" * size]
    for links in (
        [("str.strip_chars", (" \t",))],
        [("str.replace", (r"\s+", " ", False, None)), ("str.strip_chars_end", (" ",))],
    ):
        plain = program(links)
        column = pa.array(texts)
        assert run(chained(plain), column)[0].equals(run(plain, column)[0])


def test_parts_of_a_column_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_chain, "TOGETHER", 16)
    texts = ["  Ab c" * (i % 9) if i % 7 else None for i in range(200)]
    links: list[Any] = [("str.to_lowercase", ()), ("str.replace", (" +", "é", False, None))]
    for more in ([], [("str.tokenize_bytes", ()), ("list.slice", (1, 9))]):
        plain = program([*links, *more])
        column = pa.array(texts)
        assert run(chained(plain), column)[0].equals(run(plain, column)[0])


def test_values_that_others_read_end_a_chain() -> None:
    upper, lower = Step("str.to_uppercase", (0,), "arrow"), Step("str.to_lowercase", (1,), "arrow")
    bare = Step("str.strip_chars", (2,), "arrow", ("a",))
    made = chained(Program(("arrow",), (upper, lower, bare), (1, 3)))
    assert [len(step.params) for step in made.steps] == [1, 2]
    assert made.outputs == (1, 2)
    column = pa.array(["aBa"])
    assert [r.to_pylist() for r in run(made, column)] == [["ABA"], ["b"]]


def test_programs_without_such_functions_stay_themselves() -> None:
    made = program([("str.reverse", ()), ("str.replace", ("a*", "b", False, None))])
    assert chained(made) is made


def test_a_literal_stays_one_value() -> None:
    literal = Step("lit", (), "arrow", ("A b",))
    made = chained(Program((), (literal, Step("str.to_lowercase", (0,), "arrow")), (1,)))
    assert [pa.array(interpreter.run(made, [], n).outputs[0]).to_pylist() for n in (0, 2)] == [
        [],
        ["a b", "a b"],
    ]


@pytest.mark.parametrize("pattern", OTHERS)
def test_what_is_no_set_of_ascii_is_left_to_the_library(pattern: str) -> None:
    assert set_of(pattern, literal=False) is None
    assert step_of("str.replace", (pattern, "x", False, None)) is None


@pytest.mark.parametrize("pattern", ["[z-a]", "[", "\\"])
def test_a_broken_pattern_is_the_librarys_to_refuse(pattern: str) -> None:
    plain = program([("str.replace", (pattern, "x", False, None))])
    assert chained(plain) is plain
    with pytest.raises(pa.ArrowInvalid):
        function_ops.apply(plain.steps[0], [pa.array(["a"])], 1)


@given(st.sampled_from(sorted(SETS)))
def test_members_are_those_of_the_pattern(pattern: str) -> None:
    found = set_of(pattern, literal=False)
    assert found is not None
    letters = np.arange(128, dtype="u1")
    one = re.compile(SETS[pattern].removesuffix("+"))
    meant = [one.fullmatch(chr(letter)) is not None for letter in letters]
    assert found.within(letters).tolist() == meant
    assert found.table[:128].tolist() == meant
    assert found.others == (one.fullmatch("é") is not None)
