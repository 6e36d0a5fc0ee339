"""Expected and measured costs of a plan are printed as tables that fit on a screen."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dml.base.amounts import ABSENT, bytes_text, count_text, cut, seconds_text
from dml.base.display import Grid
from dml.events import Event, OperatorTotals, RunFinished, Tuned
from dml.optimize.cost.beliefs import total
from dml.optimize.cost.estimate import EXACT, Estimate
from dml.optimize.cost.rule_gains import RuleGain
from dml.optimize.engine import RuleTrace
from dml.profile import work_s

WIDE = 118
TITLE_LETTERS, SHORT_LETTERS = 52, 36
LEGEND = (
    "p: a table, scaled to this machine   s: a sample   h: runs before this one   ~: rows guessed"
)


class Actual(NamedTuple):
    """The measured work of an operator in a run; seconds are the sum over all workers."""

    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0


def costs_text(found: Sequence[Estimate]) -> str:
    """Return a table of the expected rows and seconds of every operator, source first."""
    rows = [["#", "operator", "rows", "seconds", "per 1M rows", "from"]]
    rows += [
        [
            str(each.ordinal),
            cut(each.title, TITLE_LETTERS),
            _rows(each),
            _seconds(each),
            seconds_text(each.per_row.typical * 1e6),
            _from(each),
        ]
        for each in found
    ]
    known = [each.seconds for each in found if each.seconds is not None]
    whole = total(known)
    told = f"in all {seconds_text(whole.typical)} of work, {whole.spread()}" if known else ""
    return "\n".join([*Grid(rows, {1, 5}).lines(), *([told] if told else []), LEGEND])


def analyzed_text(
    found: Sequence[Estimate],
    events: Sequence[Event],
    trace: RuleTrace,
    gains: Sequence[RuleGain] = (),
) -> str:
    """Return a table of expected and measured costs, then the rewritings made or refused."""
    actual = actuals(events)
    whole = math.fsum(each.seconds for each in actual.values())
    rows = [["#", "operator", "rows est", "rows", "est", "seconds", "from", "off", "share"]]
    rows += [_compared(each, actual.get(each.ordinal, Actual()), whole) for each in found]
    lines, did = Grid(rows, {1, 6}).lines(), {i: each.seconds for i, each in actual.items()}
    lines += [f"tuned  {each.text}" for each in events if isinstance(each, Tuned)]
    return "\n".join(
        [*lines, *_ending(found, events, whole), LEGEND, rewrites_text(trace, gains, did)]
    )


def actuals(events: Iterable[Event]) -> dict[int, Actual]:
    """Return the measured work of each operator, by its ordinal."""
    found: dict[int, Actual] = {}
    for each in events:
        if isinstance(each, OperatorTotals):
            own = (each.rows_in, each.rows_out, work_s(each))
            sums = zip(found.get(each.ordinal, Actual()), own, strict=True)
            found[each.ordinal] = Actual(*(one + two for one, two in sums))  # type: ignore[arg-type]
    return found


def _compared(each: Estimate, did: Actual, whole: float) -> list[str]:
    belief = each.seconds
    off = did.seconds / belief.typical if belief is not None else math.nan
    return [
        str(each.ordinal),
        cut(each.title, SHORT_LETTERS),
        _rows(each),
        count_text(did.rows_out),
        _seconds(each),
        seconds_text(did.seconds),
        _from(each),
        f"{off:,.{2 if off < 10 else 0}f}x" if math.isfinite(off) else ABSENT,
        f"{did.seconds / whole:.1%}" if whole else ABSENT,
    ]


def expected_text(each: Estimate) -> str:
    """Return the expected rows and seconds of an operator; a "~" marks a guessed number of rows."""
    return f"{_rows(each)} rows, {_seconds(each)}"


def _rows(each: Estimate) -> str:
    if each.rows_out == math.inf:
        return "endless"
    return ("" if each.counted == EXACT else "~") + count_text(each.rows_out)


def _seconds(each: Estimate) -> str:
    return ABSENT if each.seconds is None else seconds_text(each.seconds.typical)


def _from(each: Estimate) -> str:
    return f"{each.per_row.source} {each.per_row.spread()}"


def _ending(found: Sequence[Estimate], events: Sequence[Event], whole: float) -> Iterator[str]:
    """Yield the closing lines: sums of expected and measured seconds, and the run's duration."""
    known = [each.seconds for each in found if each.seconds is not None]
    expected = seconds_text(total(known).typical) if known else ABSENT
    yield f"work: {expected} expected, {seconds_text(whole)} measured, on all threads together"
    for each in events:
        if isinstance(each, RunFinished):
            yield from _tiers(each, events)
            rows, seconds = count_text(each.rows), seconds_text(each.seconds)
            yield f"run: {rows} rows in {seconds}, {each.status}"


def _tiers(run: RunFinished, events: Sequence[Event]) -> Iterator[str]:
    """Yield a line with the bytes read from sources, stores and local copies of stores."""
    known = [each for each in events if isinstance(each, OperatorTotals)]
    far, near = sum(each.far_bytes for each in known), sum(each.near_bytes for each in known)
    if far or near:
        kept = f"{bytes_text(far)} from the store, {bytes_text(near)} from copies of it here"
        yield f"read: {bytes_text(run.bytes_read)} from sources, {kept}"


def rewrites_text(
    trace: RuleTrace, gains: Sequence[RuleGain] = (), did: Mapping[int, float] | None = None
) -> str:
    """Return each rule that fired, how often, its law and its gain; then refusals with reasons.

    ``did`` has the operators' seconds in a run, by ordinal.
    """
    return "\n".join(_rewrites(trace, {each.rule.name: each.describe(did) for each in gains}))


def _rewrites(trace: RuleTrace, gains: Mapping[str, str]) -> Iterator[str]:
    fired = Counter((entry.rule.name, entry.rule.law) for entry in trace.applied)
    yield "rewrites" if fired else "no rewrites"
    for (name, law), times in fired.items():
        often = f" ({times} times)" if times > 1 else ""
        yield from _wrapped(f"{name}{often}: {law}")
        if name in gains:
            yield f"    {gains[name]}"
    if trace.refused:
        yield "refused"
    for refused in trace.refused:
        yield from _wrapped(f"{refused.what}: {refused.why}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDE, initial_indent="  ", subsequent_indent="    ")
