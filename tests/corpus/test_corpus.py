"""Run realistic row functions: lifted or not, the rows are those of plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.corpus.case import Case
from tests.corpus.corpus import CASES
from tests.corpus.python import OutsideArrowError, in_engine, lifted, one, pipeline, same
from tests.corpus.rows import drawn
from tests.sampling import amount

GUARDS = (0.0, 0.002, 0.3, 0.3)  # share of odd values, from none to many
SIZES = (300, 600, 300, 6)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
def test_what_becomes_of_it(case: Case) -> None:
    reason = lifted(case)
    assert case.why in reason if case.why else not reason


def test_most_are_lifted() -> None:
    assert len(CASES) >= 60
    assert sum(not case.why for case in CASES) >= 0.6 * len(CASES)


def close(case: Case, got: Any, want: Any) -> bool:
    """Equal to the bit; where a schema was settled or declared, as far as it tells."""
    if case.why and isinstance(want, dict):
        order = list(got)
        want = {name: want[name] for name in order} if order else want
        return all(same(got[n], want[n]) or bool(got[n] == want[n]) for n in order)
    return same(got, want)


def compare(case: Case, table: pa.Table, wanted: Sequence[Any]) -> None:
    """The engine's rows, calls and error against Python's ``wanted``, one for each row."""
    failed = next((i for i, w in enumerate(wanted) if isinstance(w, Exception)), len(wanted))
    seen = in_engine(case, table)
    expected = [row for row in wanted[:failed] if row is not None]
    assert len(seen.rows) == len(expected)
    if not case.draws:
        wrong = [(g, w) for g, w in zip(seen.rows, expected, strict=True) if not close(case, g, w)]
        assert not wrong, wrong[:3]
    assert (seen.error is None) is (failed == len(wanted)), seen.error
    if seen.error is not None and not isinstance(wanted[failed], OutsideArrowError):
        cause = seen.error.__cause__
        assert (type(cause), str(cause)) == (type(wanted[failed]), str(wanted[failed]))
    if case.why and failed == len(wanted):
        assert seen.calls == len(wanted)  # never twice, and every row once
    assert seen.calls <= len(wanted)


@pytest.mark.law
@each_case
def test_rows_errors_and_calls_are_those_of_python(case: Case, whole: bool) -> None:
    for seed, guards in enumerate(GUARDS[:1] if case.draws else GUARDS):
        rows = 100_000 if whole and seed else SIZES[seed] // amount(4, 1)
        table = drawn(case.columns, rows, guards, seed)
        wanted = [one(case, row) for row in table.to_pylist()]
        fine = [not isinstance(each, Exception) for each in wanted]
        if not all(fine):
            compare(case, table, wanted)
        clean = table.filter(pa.array(fine))
        if clean.num_rows:
            compare(case, clean, [w for w, good in zip(wanted, fine, strict=True) if good])


@each_case
def test_explain_says_what_becomes_of_it(case: Case) -> None:
    table = drawn(case.columns, 3, 0.0, 0)
    text = pipeline(case, table).explain("physical")
    words = "its columns were declared" if case.settles else f"called for each row: {lifted(case)}"
    assert (words if case.why else "computed as expressions") in text
