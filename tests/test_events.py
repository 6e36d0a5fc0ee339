"""Test that events are one line of JSON each, and that lines of newer versions are read."""

from __future__ import annotations

import dataclasses
import json
import threading
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.events import (
    KINDS,
    Event,
    Operator,
    OperatorTotals,
    Progress,
    RunFinished,
    RunStarted,
    Tally,
    Unknown,
    Waits,
    Warned,
    from_json,
    to_json,
)
from dml.fleet.reader import latest

texts = st.text(max_size=20)
counts = st.integers(-(2**70), 2**70)
seconds = st.floats(allow_nan=False, allow_infinity=False)
BY_TYPE = {
    "int": counts,
    "float": seconds,
    "str": texts,
    "bool": st.booleans(),
    "Names": st.dictionaries(texts, texts, max_size=3),
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | seconds | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def _drawn(annotation: str) -> st.SearchStrategy[object]:
    known = BY_TYPE[annotation.removesuffix(" | None")]
    return st.none() | known if annotation.endswith("| None") else known


def _events() -> st.SearchStrategy[Event]:
    return st.one_of(
        [
            st.builds(
                kind,
                **{
                    each.name: _drawn(str(each.type))
                    for each in dataclasses.fields(kind)
                    if each.name != "extra"
                },
            )
            for kind in KINDS.values()
        ]
    )


@pytest.mark.law
@given(_events())
def test_an_event_survives_its_line(event: Event) -> None:
    line = to_json(event)
    assert "\n" not in line
    assert line.isascii()
    assert from_json(line) == event
    assert to_json(from_json(line)) == line


@pytest.mark.law
@given(_events(), st.dictionaries(texts.map("new_".__add__), json_values, max_size=3))
def test_fields_of_a_newer_version_are_kept(event: Event, news: dict[str, object]) -> None:
    newer = {**json.loads(to_json(event)), **news, "v": 99}
    read = from_json(json.dumps(newer))
    assert type(read) is type(event)
    assert read.version == 99
    assert json.loads(to_json(read)) == newer


@pytest.mark.law
@given(st.dictionaries(texts, json_values, max_size=5))
def test_any_json_object_is_an_event(fields: dict[str, object]) -> None:
    from_json(json.dumps(fields))


def test_an_unknown_kind_is_kept_whole() -> None:
    line = '{"kind":"CacheFilled","bytes":3,"v":7,"run":"r","at":1.5}'
    event = from_json(line)
    assert event == Unknown(name="CacheFilled", run="r", at=1.5, version=7, fields={"bytes": 3})
    assert json.loads(to_json(event)) == json.loads(line)


def test_a_field_of_another_type_keeps_its_default() -> None:
    event = from_json('{"kind":"Waits","consumer_s":"long","worker_idle_s":true,"at":2}')
    assert isinstance(event, Waits)
    assert (event.consumer_s, event.worker_idle_s, event.at) == (0.0, 0.0, 2)
    assert event.extra == {"consumer_s": "long", "worker_idle_s": True}


@pytest.mark.parametrize("line", ["", "{", "[]", "3", "null", '{"kind":', "\x00", "[" * 100_000])
def test_damage_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(line)


def test_figures_that_json_cannot_hold_are_not_recorded() -> None:
    line = to_json(Waits(consumer_s=float("nan"), worker_idle_s=float("inf"), run="r"))
    read = from_json(line)
    assert isinstance(read, Waits)
    assert (read.consumer_s, read.worker_idle_s, read.run) == (0.0, 0.0, "r")


def test_a_tally_adds_up_blocks() -> None:
    tally = Tally()
    tally.block(0, 10, 10, 100, 80, 0.5, 0.25)
    tally.block(0, 20, 5, 200, 40, 0.25)
    tally.calls(1, 7)
    tally.lookups(1, 2, 1)
    first, second, third = tally.totals(
        [
            Operator(ordinal=0, operator="Filter"),
            Operator(ordinal=1, operator="Map", lifted="yes"),
            Operator(ordinal=2, operator="Batch"),
        ],
        run="r",
        at=3.0,
    )
    assert first == OperatorTotals(
        run="r", at=3.0, ordinal=0, operator="Filter", blocks=2, rows_in=30, rows_out=15,
        bytes_in=300, bytes_out=120, seconds=0.75, cpu_s=0.25,
    )  # fmt: skip
    assert (second.python_calls, second.cache_hits, second.cache_misses) == (7, 2, 1)
    assert second.lifted == "yes"
    assert (third.blocks, third.rows_out) == (0, 0)


def test_cpu_that_was_not_measured_is_not_zero() -> None:
    (only,) = Tally().totals(
        [Operator(ordinal=0, operator="Map")], run="r", at=0.0, cpu_measured=False
    )
    assert only.cpu_s is None


@pytest.mark.law
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=30), st.integers(1, 4))
def test_merging_equals_counting_in_one_place(blocks: list[tuple[int, int]], parts: int) -> None:
    one, many = Tally(), [Tally() for _ in range(parts)]
    for place, (ordinal, rows) in enumerate(blocks):
        for tally in (one, many[place % parts]):
            tally.block(ordinal, rows, rows, rows * 8, rows * 8, rows / 4, rows / 8)
            tally.calls(ordinal, rows)
    operators = [Operator(ordinal=n, operator="Map") for n in range(4)]
    merged = many[0].merge(*many[1:])
    assert merged.totals(operators, run="", at=0) == one.totals(operators, run="", at=0)


def test_a_tally_can_be_read_while_its_thread_counts() -> None:
    tally, done = Tally(), threading.Event()

    def count() -> None:
        for n in range(20_000):
            tally.block(n % 50, 1, 1, 8, 8, 0.0)
        done.set()

    thread = threading.Thread(target=count)
    thread.start()
    while not done.is_set():
        Tally().merge(tally)
    thread.join()
    operators = [Operator(ordinal=n, operator="Map") for n in range(50)]
    assert sum(each.rows_in for each in tally.totals(operators, run="", at=0)) == 20_000


def test_counting_a_block_costs_less_than_a_microsecond() -> None:
    tally = Tally()
    best = min(
        timeit.repeat(
            lambda: tally.block(3, 4096, 4000, 100_000, 90_000, 1e-3, 1e-3), number=5000, repeat=9
        )
    )
    assert best / 5000 < 1e-6


def test_only_the_latest_cumulative_figures_count() -> None:
    def totals(at: float, rows: int, worker: str = "") -> OperatorTotals:
        return OperatorTotals(run="r", at=at, ordinal=1, rows_out=rows, worker=worker)

    events = [
        RunStarted(run="r", at=0.0),
        totals(1.0, 10),
        totals(2.0, 20),
        totals(1.5, 15),
        totals(1.0, 7, worker="w"),
        Warned(run="r", at=1.0, name="a"),
        Warned(run="r", at=1.0, name="b"),
        Progress(run="r", at=1.0, rows=1),
        RunFinished(run="r", at=3.0),
    ]
    kept = latest(events)
    assert [each.rows_out for each in kept if isinstance(each, OperatorTotals)] == [20, 7]
    assert [each.name for each in kept if isinstance(each, Warned)] == ["a", "b"]
    assert len(kept) == 7
