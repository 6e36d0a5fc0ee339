"""Test that lifted functions computed in one pass equal those computed one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml import col, lit
from dml.api.dataset import Dataset
from dml.errors import DmlError, UDFError
from dml.kernels.compiled.expression_shapes import LONGEST
from dml.ops.row import lifted, lifted_chain
from dml.ops.row.lifted_chain import MOST_OPERATIONS, LiftedChain
from dml.optimize.phases import optimize
from tests.expr.checks import agrees, node_of
from tests.sampling import amount

Row = dict[str, Any]
Verb = Callable[[Dataset], Dataset]
INTS = st.none() | st.integers(-9, 9) | st.sampled_from([2**62, 2**63 - 1, -(2**63)])
FLOATS = st.none() | st.sampled_from([0.0, -0.0, 1.5, -7.25, math.inf, math.nan, 1e300])
TEXTS = st.none() | st.sampled_from(["", "a", "Bc", "ß"])
ATOM = 16

VERBS: tuple[Verb, ...] = (
    lambda ds: ds.map(lambda r: {**r, "v": r["v"] * 2 + 1}),
    lambda ds: ds.map(lambda r: {**r, "v": r["v"] * 3}, on_error="skip"),
    lambda ds: ds.map(lambda r: {**r, "f": r["f"] / 2 + r["v"]}),
    lambda ds: ds.map(lambda r: {**r, "v": r["w"], "w": r["v"] // 3}),
    lambda ds: ds.map(lambda r: {**r, "w": r["w"] % r["v"]}, on_error="skip"),
    lambda ds: ds.map(lambda r: {**r, "w": -1}),
    lambda ds: ds.map(lambda r: {**r, "b": r["v"] > r["w"], "s": r["s"]}),
    lambda ds: ds.map(lambda r: {"f": r["f"], "v": r["v"], "w": r["v"] + r["w"], "s": r["s"]}),
    lambda ds: ds.map(lambda r: {**r, "s": r["s"].upper()}, on_error="skip"),
    lambda ds: ds.map(lambda r: {**r, "v": abs(r["v"]) if r["f"] > 1 else r["w"]}),
    lambda ds: ds.filter(lambda r: r["v"] % 3 != 1),
    lambda ds: ds.filter(lambda r: r["f"] > -8 or r["w"] > 0, on_error="skip"),
    lambda ds: ds.filter(col("v") % 4 != 1),
    lambda ds: ds.filter((col("w") > -7) & (dml.random() < 0.9)),
    lambda ds: ds.with_columns(w=col("v") - col("w"), one=lit(1)),
    lambda ds: ds.with_columns(f=col("f") * 0.5 + dml.random()),
    lambda ds: ds.with_columns(w=col("w").cast("int8", strict=False).cast("int64")),
    lambda ds: ds.fill_null({"v": 5, "f": 0.25}),
    lambda ds: ds.select("f", "s", "w", "v"),
)


@contextmanager
def one_by_one() -> Iterator[None]:
    """Within the context, no operators are computed together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiftedChain, "of", staticmethod(lambda _: None))
        yield


def outcome(ds: Dataset) -> list[Any]:
    """Rows, row ids (by a shuffle), the error that ended the run, and rows lost by operator."""
    found: list[Any] = []
    for each in (ds.batch(5), ds.shuffle(seed=3)):
        try:
            iterator = iter(each.with_options(executor="sync", telemetry_dir="off", prefetch=0))
            found.extend(map(repr, iterator))
            found.append([(r["operator"], r["skipped"]) for r in iterator.stats().records[1:]])
        except DmlError as error:
            found.append((type(error), error.what, error.at))
    return found


@st.composite
def pipelines(draw: st.DrawFn) -> Dataset:
    rows = draw(st.lists(st.tuples(INTS, INTS, FLOATS, TEXTS), max_size=40))
    # functions are compared on the first rows, which are therefore ordinary ones
    v, w, f, s = zip(*[(i % 7 + 1, i % 5, i / 4, "x") for i in range(70)], *rows, strict=True)
    ds = dml.from_dict({"v": v, "w": w, "f": f, "s": s}, atom_rows=ATOM)
    for verb in draw(st.lists(st.sampled_from(VERBS), min_size=2, max_size=8)):
        ds = verb(ds)
    return ds


@pytest.mark.law
@settings(max_examples=amount(60, 400))
@given(pipelines())
def test_together_and_one_by_one_are_the_same(ds: Dataset) -> None:
    together = outcome(ds)
    with one_by_one():
        assert together == outcome(ds)


def chains(ds: Dataset) -> list[list[str]]:
    """The operators of the plan's first stage that are computed together."""
    rest = list(optimize(node_of(ds), 0).plan.stage.steps)
    found = []
    while rest:
        chain = LiftedChain.of(rest)
        if chain is not None:
            found.append([type(node).__name__ for node in chain.nodes])
        del rest[: 1 if chain is None else len(chain.nodes)]
    return found


def added(ds: Dataset, times: int = 1) -> Dataset:
    for _ in range(times):
        ds = ds.map(lambda r: {"id": r["id"] * 3 + 1})
    return ds


MAP, SEGMENT, FILTER = "LiftedMap", "Segment", "LiftedFilter"


def test_maps_and_the_filter_above_them_are_one_chain() -> None:
    ds = added(dml.range(9), 3)
    kept = ds.filter(lambda r: r["id"] % 2 == 0)
    assert chains(ds) == [[MAP] * 3]
    assert chains(kept) == [[MAP, MAP, MAP, FILTER]]
    assert chains(added(kept, 2)) == [[MAP, MAP, MAP, FILTER], [MAP, MAP]]
    assert chains(kept.filter(lambda r: r["id"] > 3)) == [[MAP, MAP, MAP, FILTER]]


def test_expressions_beside_functions_are_part_of_the_chain() -> None:
    ds = added(added(dml.range(9)).with_columns(id=col("id") + 1))
    assert chains(ds) == [[MAP, SEGMENT, MAP]]
    assert chains(added(dml.range(9).filter(col("id") > 2))) == [[SEGMENT, MAP]]
    assert chains(ds.filter(col("id") > 2)) == [[MAP, SEGMENT, MAP, SEGMENT]]
    made = ds.filter(col("id") > 2).with_columns(a=col("id") + 1)
    assert chains(made) == [[MAP, SEGMENT, MAP]]  # what is computed of kept rows alone
    assert chains(dml.range(9).with_columns(a=1)) == []
    may_fail = col("id").cast("int8").cast("int64")
    assert chains(added(added(dml.range(9)).with_columns(id=may_fail))) == []


def test_text_that_may_grow_ends_a_chain() -> None:
    ds = dml.from_dict({"s": ["a", "b"], "id": [1, 2]})
    passed = ds.map(lambda r: {**r, "id": r["id"] + 1}).map(lambda r: {**r, "id": r["id"] + 1})
    assert chains(passed) == [[MAP, MAP]]
    made = passed.map(lambda r: {**r, "s": r["s"].upper()}).map(lambda r: {"id": r["id"]})
    assert chains(made) == [[MAP, MAP, MAP]]


def test_a_chain_is_no_longer_than_a_kernel() -> None:
    assert MOST_OPERATIONS < LONGEST
    lengths = [len(nodes) for nodes in chains(added(dml.range(9), 60))]
    assert sum(lengths) == 60
    assert max(lengths) >= 10
    assert min(lengths) < 60


def test_each_block_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = {"together": 0, "alone": 0}

    def counting(name: str, evaluate: Any) -> Any:
        def counted(*args: Any) -> Any:
            evaluated[name] += 1
            return evaluate(*args)

        return counted

    for name, module in (("alone", lifted), ("together", lifted_chain)):
        monkeypatch.setattr(module, "evaluate", counting(name, vars(module)["evaluate"]))
    ds = added(dml.range(500, atom_rows=100), 10).filter(lambda r: r["id"] % 2 == 0)
    ds = ds.with_options(executor="sync", telemetry_dir="off")
    rows = [row["id"] for row in ds]
    assert rows == [(3**10 * i + (3**10 - 1) // 2) for i in range(500) if i % 2 == 0]
    assert evaluated["together"] >= 3
    first = evaluated["alone"]
    assert first <= 4 * 11  # the blocks before all functions were compared
    assert [row["id"] for row in ds] == rows
    assert evaluated["alone"] == first
    counts = [(r["rows_in"], r["rows_out"]) for r in ds.stats().records[1:12]]
    assert counts == [(500, 500)] * 10 + [(500, len(rows))]


def test_rows_of_a_filter_below_are_counted() -> None:
    ds = added(dml.range(400, atom_rows=100).filter(col("id") % 4 == 0), 2)
    for _ in range(2):
        iterator = iter(ds.with_options(executor="sync", telemetry_dir="off"))
        assert len(list(iterator)) == 100
        found = [(r["rows_in"], r["rows_out"]) for r in iterator.stats().records[1:4]]
        assert found == [(400, 100), (100, 100), (100, 100)]


def test_an_error_is_that_of_the_function_that_raised() -> None:
    ds = dml.range(300, atom_rows=100).map(lambda r: {"id": r["id"] + 1})

    def divided(r: Row) -> Row:
        return {"id": r["id"], "q": 10 // (r["id"] - 251)}

    ds = ds.map(divided).map(lambda r: {"id": r["id"] * 2, "q": r["q"]})
    assert chains(ds) == [[MAP] * 3]
    seen: list[int] = []
    with pytest.raises(UDFError, match=r"divided.*ZeroDivisionError") as caught:
        seen.extend(row["id"] for row in ds.with_options(executor="sync"))
    assert seen == [2 * i + 2 for i in range(250)]
    assert caught.value.row == 250


def test_rows_are_lost_by_the_function_that_raised() -> None:
    ds = dml.range(300, atom_rows=100).map(lambda r: {"id": r["id"] + 1})
    ds = ds.map(lambda r: {"id": r["id"], "q": 10 // (r["id"] - 251)}, on_error="skip")
    ds = ds.map(lambda r: {"id": r["id"] * 2, "q": r["q"]}, on_error="skip")
    iterator = iter(ds.with_options(executor="sync", telemetry_dir="off"))
    assert len(list(iterator)) == 299
    assert [r["skipped"] for r in iterator.stats().records[1:4]] == [0, 1, 0]


def test_explain_shows_what_is_computed_together() -> None:
    def plus(r: Row) -> Row:
        return {"id": r["id"] + 1}

    ds = dml.range(9).map(plus).with_columns(id=col("id") * 2).map(plus)
    text = "note      plus, expressions, plus: computed together, in one pass over a block"
    assert text in ds.explain("physical")
    assert "computed together" not in dml.range(9).map(plus).explain("physical")


@pytest.mark.law
def test_the_oracle_agrees() -> None:
    ds = dml.from_dict({"v": [*range(100), None, 2**62, 2**63 - 1]}, atom_rows=10)
    ds = ds.map(lambda r: {"v": r["v"] * 2}, on_error="skip").with_columns(w=col("v") + 1)
    ds = ds.map(lambda r: {**r, "v": r["w"] + r["v"]}, on_error="skip")
    agrees(ds.filter(lambda r: r["v"] % 3 == 1))


STEP = 1


def test_a_global_that_changes_during_a_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dml.range(40, atom_rows=10).map(lambda row: {"x": row["id"] + STEP})
    ds = rows.filter(lambda row: row["x"] % 2 < 2).with_options(executor="sync", prefetch=0)
    found = []
    for row in ds.iter_rows():
        found.append(row["x"])
        monkeypatch.setitem(globals(), "STEP", 1000)
    assert found[:2] == [1, 2]
    assert found[-1] == 1039


def test_a_function_of_a_module_that_changes_between_epochs_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ds = dml.range(3).map(lambda row: {"x": math.floor(row["id"] + 0.5)})
    assert [row["x"] for row in ds] == [0, 1, 2]
    monkeypatch.setattr(math, "floor", math.ceil)
    assert [row["x"] for row in ds] == [1, 2, 3]
