"""Test that ``max_errors`` ends a run at the same row, however its rows are cut."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.api.dataset import Dataset
from dml.errors import UDFError
from dml.testing.executions import RunWay, elements
from tests.expr.checks import QUIET, UNUSED, node_of, numbers

Row: TypeAlias = dict[str, Any]
Event: TypeAlias = "tuple[str, Any]"
"""A row's number that goes on, or what an error said of the one that it cost."""
TYPED = {"x": "int64"}


class Fails(NamedTuple):
    """A function that raises for one row in ``each``, and says its name."""

    name: str
    each: int
    rest: int

    def check(self, x: int) -> None:
        """Raise, or not."""
        if x % self.each == self.rest % self.each:
            raise ValueError(f"{self.name} {x}")

    def row(self, row: Row) -> Row:
        """Of a row, which stays."""
        self.check(row["x"])
        return {"x": row["x"]}

    def keep(self, row: Row) -> bool:
        """Of a row that stays, or not."""
        self.check(row["x"])
        return bool(row["x"] % 7)

    def rows(self, row: Row) -> Iterator[Row]:
        """Of a row that becomes up to three."""
        for child in range(row["x"] % 4):
            self.check(row["x"] + child)
            yield {"x": row["x"] + child}

    def group(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Of some rows."""
        for x in batch["x"]:
            self.check(int(x))
        return {"x": batch["x"]}


def _said(check: Callable[[int], None], *numbers: int) -> str:
    """What the function says of the first number for which it raises."""
    for x in numbers:
        try:
            check(x)
        except ValueError as error:
            return str(error)
    return ""


def _each(become: Callable[[int], list[Event]], events: Iterator[Event]) -> Iterator[Event]:
    for event in events:
        yield from become(event[1]) if event[0] == "row" else [event]


def _row(f: Fails, x: int) -> list[Event]:
    return [("error", _said(f.check, x))] if _said(f.check, x) else [("row", x)]


def _kept(f: Fails, x: int) -> list[Event]:
    return [event for event in _row(f, x) if event[0] == "error" or x % 7]


def _children(f: Fails, x: int) -> list[Event]:
    made = [event for child in range(x % 4) for event in _row(f, x + child)]
    ends = (number for number, event in enumerate(made, 1) if event[0] == "error")
    return made[: next(ends, len(made))]


def _groups(f: Fails, size: int, events: Iterator[Event]) -> Iterator[Event]:
    group: list[int] = []
    for event in events:
        if event[0] == "error":
            yield event
            continue
        group.append(event[1])
        if len(group) == size:
            yield from _group(f, group)
            group = []
    yield from _group(f, group)


def _group(f: Fails, group: list[int]) -> list[Event]:
    said = _said(f.check, *group)
    return [("error", said)] if said else [("row", x) for x in group]


def _turn(given: Iterator[Event]) -> Iterator[Event]:
    """What is lost before a pipeline's next row, and that row; nothing else at its end."""
    for event in given:
        yield event
        if event[0] == "row":
            return


def _in_turns(sides: list[Iterator[Event]]) -> Iterator[Event]:
    while sides:
        for side in list(sides):
            some = list(_turn(side))
            if not some or some[-1][0] == "error":
                sides.remove(side)
            yield from some


def _opened(f: Fails, events: Iterator[Event]) -> Iterator[Event]:
    """Two pipelines at a time, of up to three rows for each row; as tf.data's interleave."""
    places: list[Iterator[Event] | None] = [None, None]
    place, over = 0, False
    while not over or any(places):
        if places[place] is None and not over:
            some = list(_turn(events))
            yield from (event for event in some if event[0] == "error")
            over = not some or some[-1][0] == "error"
            if not over:
                places[place] = iter([e for c in range(some[-1][1] % 4) for e in _row(f, c)])
            continue
        side = places[place]
        if side is not None:
            some = list(_turn(side))
            if not some or some[-1][0] == "error":
                places[place] = None
            yield from some
        place = 1 - place


def _zipped(first: Iterator[Event], second: Iterator[Event]) -> Iterator[Event]:
    while True:
        both: list[Event] = []
        for side in (first, second):
            some = list(_turn(side))
            yield from (event for event in some if event[0] == "error")
            if not some or some[-1][0] == "error":
                return
            both.append(some[-1])
        yield both[0]


def _numbers(n: int) -> Iterator[Event]:
    return (("row", x) for x in range(n))


def _lifted(each: int) -> Callable[[Row], Row]:
    return lambda row: {"x": row["x"] + 0 * (1 // (row["x"] % each))}


def _divided(each: int, x: int) -> list[Event]:
    return [("row", x)] if x % each else [("error", "ZeroDivisionError")]


class Verb(NamedTuple):
    """What a verb does, and what becomes of what comes from below, one after the other."""

    run: Callable[[Dataset, Fails], Dataset]
    model: Callable[[Fails, Iterator[Event]], Iterator[Event]]


def _of_rows(name: str, become: Callable[[Fails, int], list[Event]], **options: Any) -> Verb:
    methods = {"filter": "keep", "flat_map": "rows"}

    def run(ds: Dataset, f: Fails) -> Dataset:
        fn = getattr(f, methods.get(name, "row"))
        made: Dataset = getattr(ds, name)(fn, on_error="skip", **options)
        return made

    return Verb(run, lambda f, events: _each(partial(become, f), events))


VERBS = {
    "map": _of_rows("map", _row),
    "declared": _of_rows("map", _row, schema=TYPED),
    "apart": _of_rows("map", _row, num_cpus=2),
    "filter": _of_rows("filter", _kept),
    "flat_map": _of_rows("flat_map", _children),
    "declared_flat_map": _of_rows("flat_map", _children, schema=TYPED),
    "random_map": Verb(
        lambda ds, f: ds.random_map(lambda row, _: f.row(row), on_error="skip"),
        lambda f, events: _each(partial(_row, f), events),
    ),
    "lifted": Verb(
        lambda ds, f: ds.map(_lifted(f.each), on_error="skip"),
        lambda f, events: _each(partial(_divided, f.each), events),
    ),
    "groups": Verb(
        lambda ds, f: ds.map_batches(f.group, batch_size=3, on_error="skip"),
        lambda f, events: _groups(f, 3, events),
    ),
    "batches": Verb(
        lambda ds, f: ds.batch(4).map(f.group, on_error="skip").unbatch(),
        lambda f, events: _groups(f, 4, events),
    ),
    "opened": Verb(
        lambda ds, f: ds.interleave(
            lambda row: numbers(row["x"] % 4).map(f.row, on_error="skip"), cycle_length=2
        ),
        _opened,
    ),
    "beside": Verb(
        lambda ds, f: ds.interleave(numbers(9).map(f.row, on_error="skip")),
        lambda f, events: _in_turns([events, _each(partial(_row, f), _numbers(9))]),
    ),
    "zipped": Verb(
        lambda ds, f: ds.zip(numbers(9).map(f.row, on_error="skip").rename({"x": "y"})).select("x"),
        lambda f, events: _zipped(events, _each(partial(_row, f), _numbers(9))),
    ),
    "take_while": Verb(
        lambda ds, f: ds.take_while(f.row, on_error="skip"),
        lambda f, events: _each(partial(_row, f), events),
    ),
}


class Case(NamedTuple):
    """A pipeline, what becomes of its rows, and how many errors it may have."""

    ds: Dataset
    events: list[Event]
    most: int

    def wanted(self, given: int = 0) -> tuple[list[int], str]:
        """The rows of a run that begins behind the first ``given``; what the last error said."""
        rows: list[int] = []
        errors = passed = 0
        for kind, value in self.events:
            errors += kind == "error" and passed >= given
            if errors > self.most:
                return rows, value
            if kind == "row":
                passed += 1
                rows += [value] if passed > given else []
        return rows, ""

    def got(self, way: RunWay, state: Any = None) -> tuple[list[int], str, str]:
        """The rows of a run, what the error says, and where."""
        made = elements(node_of(self.ds), way, UNUSED, state=state)
        rows: list[int] = []
        error = UDFError("")
        try:
            rows.extend(int(row["x"]) for row in made)
        except UDFError as raised:
            error = raised
        errors = f"{self.most + 1} error{'s' * (self.most > 0)}"
        assert error.what in {"", f"functions raised {errors}, and max_errors={self.most}"}
        return rows, error.why, error.at


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to three verbs over a few rows."""
    names = draw(st.lists(st.sampled_from(sorted(VERBS)), min_size=1, max_size=3))
    count = draw(st.integers(0, 60))
    ds = numbers(count)
    if "groups" in names:  # of which none crosses an atom
        ds = dml.from_dict({"x": range(count)})
    events: Iterator[Event] = _numbers(count)
    for number, name in enumerate(names):
        fails = Fails(f"f{number}", draw(st.integers(2, 9)), draw(st.integers(0, 8)))
        ds, events = VERBS[name].run(ds, fails), VERBS[name].model(fails, events)
    return Case(ds.with_options(**QUIET), list(events), draw(st.integers(0, 12)))


ways = st.builds(
    RunWay,
    rewriting=st.booleans(),
    threads=st.sampled_from([0, 0, 2]),
    target_bytes=st.sampled_from([1, 300, 1 << 20]),
    slices=st.none() | st.integers(0, 99),
    cuts=st.none() | st.integers(0, 99),
)


@pytest.mark.law
@given(cases(), st.lists(ways, min_size=2, max_size=3))
def test_a_run_ends_at_one_row_however_its_rows_are_cut(case: Case, some: list[RunWay]) -> None:
    wanted, said = case.wanted()
    places = set()
    for way in some:
        rows, why, at = case.got(dataclasses.replace(way, max_errors=case.most))
        assert rows == wanted, way
        assert said in why, way
        assert bool(said) == bool(why), way
        places.add(at)
    assert len(places) == 1


@pytest.mark.law
@given(cases(), st.lists(ways, min_size=2, max_size=2), st.data())
def test_a_resumed_run_counts_what_it_loses_behind_the_rows_given_before(
    case: Case, some: list[RunWay], data: st.DataObject
) -> None:
    # positions are of the plan, which rewriting changes
    rewriting = some[0].rewriting
    first, then = (
        dataclasses.replace(way, max_errors=case.most, rewriting=rewriting) for way in some
    )
    rows, _ = case.wanted()
    given = data.draw(st.integers(0, len(rows)))
    made = elements(node_of(case.ds), first, UNUSED)
    assert [int(row["x"]) for row in islice(made, given)] == rows[:given]
    state = json.loads(json.dumps(made.state_dict()))
    made.close()
    wanted, said = case.wanted(given)
    got, why, _ = case.got(then, state)
    assert got == wanted
    assert said in why
    assert bool(said) == bool(why)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_the_first_error_too_many_is_the_one_that_is_told(most: int, optimize: bool) -> None:
    def f(row: Row) -> Row:
        if row["id"] % 7 == 3:
            raise ValueError(f"row {row['id']}")
        return {"id": row["id"]}

    ds = dml.from_items([{"id": n} for n in range(200)]).repeat(2).map(f, on_error="skip")
    ds = ds.with_options(executor="sync", max_errors=most, optimize=optimize, telemetry_dir="off")
    rows = list[int]()
    with pytest.raises(UDFError, match=f"raised {most + 1} error") as caught:
        rows.extend(row["id"] for row in ds)
    assert f"row {7 * most + 3}" in caught.value.why
    assert rows == [n for n in range(7 * most + 3) if n % 7 != 3]
