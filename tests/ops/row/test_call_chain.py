"""Test functions that are called in one loop: only the time differs from separate loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dml
from dml.api.dataset import Dataset
from dml.data import row_slicing
from dml.errors import DmlError
from dml.events import OperatorTotals
from dml.exec.tasks import steps
from dml.ops.row import call_chain, map_rows
from tests.expr.checks import QUIET

CALLED: list[tuple[str, Any]] = []
ODD: dict[int, Any] = {}
RAISES: dict[str, int] = {}
N = 40


def value(x: int) -> Any:
    return ODD.get(x, x * 3)


def one(row: dict[str, Any]) -> dict[str, Any]:
    """Always a new dict; what is in it is for the test to say."""
    CALLED.append(("map", row["x"]))
    if RAISES.get("map") == row["x"]:
        raise ArithmeticError(row["x"])
    return {"y": value(row["x"]), "x": row["x"]}


def judged(row: dict[str, Any]) -> Any:
    """Only looks up."""
    CALLED.append(("filter", row["x"]))
    if RAISES.get("filter") == row["x"]:
        raise KeyError(row["x"])
    return row["y"] if type(row["y"]) in {bool, str} else row["x"] % 3


def source() -> Dataset:
    table = pa.table({"x": pa.array(range(N)), "z": pa.array([None, "a"] * (N // 2))})
    return dml.from_arrow(table, atom_rows=17).with_options(**QUIET)


PIPELINES: dict[str, Callable[[Dataset], Dataset]] = {
    "map": lambda ds: ds.map(one),
    "map, filter": lambda ds: ds.map(one).filter(judged),
    "one column": lambda ds: ds.select("x").map(one).filter(judged),
    "twice": lambda ds: ds.map(one).filter(judged).filter(judged).map(one),
    "declared": lambda ds: ds.map(one, schema={"y": "int64", "x": "int64"}).filter(judged),
    "batched": lambda ds: ds.map(one).filter(judged).batch(5),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Parts so small that the loops have something to do."""
    monkeypatch.setattr(steps, "CALLS", 3)
    monkeypatch.setattr(row_slicing, "CALLS", 5)
    monkeypatch.setattr(row_slicing, "FIRST_STEP", 2)
    monkeypatch.setattr(map_rows, "SETTLING_ROWS", 3)
    monkeypatch.setattr(call_chain, "PIECE", 2)
    yield
    ODD.clear()
    RAISES.clear()


def never(_node: object) -> bool:
    return False


def seen(ds: Dataset, *, together: bool) -> tuple[list[str], str, list[Any], list[Any]]:
    """Elements, the error at their end, rows that each function was called with, and counts."""
    CALLED.clear()
    out, found, it = [], "", iter(ds.epoch(0))
    with pytest.MonkeyPatch.context() as patch:
        if not together:
            patch.setattr(call_chain, "starts", never)
        try:
            out += [repr(element) for element in it]
        except DmlError as error:
            found = str(error)
    calls = [sorted(row for name, row in CALLED if name == which) for which in ("map", "filter")]
    totals = [e for e in it.events() if isinstance(e, OperatorTotals)]
    counts = [(e.name, e.rows_in, e.rows_out, e.python_calls) for e in totals]
    return out, found, calls, [] if found else counts


ODDITIES = (
    None,
    True,
    1.0,
    2.5,
    float("nan"),
    "a",
    "",
    "ä",
    "\ud800",
    b"b",
    2**70,
    -(2**63),
    [1],
    {"a": 1},
)


@pytest.mark.law
@pytest.mark.parametrize("name", PIPELINES)
@given(
    odd=st.dictionaries(st.integers(0, N - 1), st.sampled_from(ODDITIES), max_size=3),
    raising=st.dictionaries(st.sampled_from(["map", "filter"]), st.integers(0, N - 1)),
)
def test_one_loop_or_two(name: str, odd: dict[int, Any], raising: dict[str, int]) -> None:
    ODD.clear()
    ODD.update(odd)
    RAISES.clear()
    RAISES.update(raising)
    ds = PIPELINES[name](source())
    together, apart = seen(ds, together=True), seen(ds, together=False)
    assert together[0] == apart[0]
    assert together[1] == apart[1]
    assert together[3] == apart[3]
    if name != "twice":
        assert all(len(rows) == len(set(rows)) for rows in together[2])
    if not together[1]:
        assert together[2] == apart[2]


@pytest.mark.law
@pytest.mark.parametrize(
    "values", [[1.5, 2.5], ["a", "ä"], [b"a", b""], [True, False], [1, 2], [None, 1]]
)
def test_kinds_of_columns(values: list[Any]) -> None:
    ODD.update({x: values[x % 2] for x in range(N)})
    for pipeline in (PIPELINES[name] for name in PIPELINES if name != "declared"):
        assert seen(pipeline(source()), together=True) == seen(pipeline(source()), together=False)


def test_a_dict_with_other_names() -> None:
    def turned(row: dict[str, Any]) -> dict[str, Any]:
        CALLED.append(("map", row["x"]))
        return {"a" if row["x"] < 30 else "b": row["x"]}

    ds = source().map(turned)
    together = seen(ds, together=True)
    assert together == seen(ds, together=False)
    assert "while ['a'] are needed" in together[1]


@pytest.mark.parametrize("kind", [str, bytes])
def test_a_text_that_is_too_large_also_where_the_filter_drops_its_row(kind: type) -> None:
    x = next(x for x in range(20, N) if x % 3 == 0)
    ODD.update({row: kind() for row in range(N)})
    ODD[x] = "x" * 9_000_000 if kind is str else b"x" * 9_000_000
    settings = source().with_options(memory_limit="16MiB")

    def dropped(row: dict[str, Any]) -> Any:
        return row["x"] % 3

    ds = settings.map(one).filter(dropped)
    together, apart = seen(ds, together=True), seen(ds, together=False)
    assert together[0] == apart[0]
    assert together[1] == apart[1]
    assert "does not fit into the memory number" in together[1]


def test_loops_are_used() -> None:
    found: list[int] = []
    run = call_chain.CallChain.run

    def counted(self: Any, block: Any, schema: Any, at: Any) -> Any:
        found.append(block.n)
        return run(self, block, schema, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_chain.CallChain, "run", counted)
        ds = dml.from_arrow(pa.table({"x": pa.array(range(2_000))})).with_options(executor="sync")
        list(ds.map(one, schema={"y": "int64", "x": "int64"}).filter(judged))
    assert 0 < sum(found) < 2_000  # but for first rows, which say how the time is divided


@pytest.mark.sample(1)
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_slices_behind_the_first_go_through_the_loop(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looped = list[int]()
    run = call_chain.CallChain.run

    def counted(self: Any, block: Any, *others: Any) -> Any:
        looped.append(block.n)
        return run(self, block, *others)

    monkeypatch.setattr(call_chain.CallChain, "run", counted)
    monkeypatch.setattr(steps, "CALLS", 16384)
    CALLED.clear()
    ds = dml.range(100_000).rename({"id": "x"}).map(one).filter(judged).batch(1000)
    for _ in ds.with_options(**QUIET | {"executor": executor, "num_workers": 2}):
        pass
    assert sum(looped) > 50_000
    assert sorted(x for name, x in CALLED if name == "map") == [*range(100_000)]
