"""Test ``join`` against every pair of rows, in memory and from disk, and its errors."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dml
from dml.errors import MatchError, PlanError, SchemaError
from dml.ops.join.join import HOWS, SYNONYMS
from dml.testing.executions import PLAIN, WRITTEN, RunWay, elements, outcome
from tests.expr.checks import QUIET, UNUSED, agrees, holds, node_of, resumes, table
from tests.sampling import amount

NAN = float("nan")
TINY = RunWay(target_bytes=1, budget=1)


def lefts(atom_rows: int = 3) -> dml.Dataset:
    ids = pa.array([3, 1, None, 2, 1, 9, 2, None], pa.int32())
    return table({"k": ids, "x": pa.array(range(8))}, atom_rows)


def rights(atom_rows: int = 2) -> dml.Dataset:
    ids = pa.array([1, 2, None, 1, 7, 2, 1], pa.int64())
    words = pa.array(["a", None, "c", "d", "e", "f", "g"])
    return table({"k": ids, "x": words, "y": pa.array([0.5] * 7)}, atom_rows)


def rows(ds: dml.Dataset) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in ds.with_options(**QUIET).to_arrow().to_pylist()]


def test_rows_come_in_the_order_of_the_left_then_of_the_right() -> None:
    ds = lefts().join(rights(), "k")
    assert list(ds.schema) == ["k", "x", "x_right", "y"]
    assert [(k, x, w) for k, x, w, _ in rows(ds)] == [
        *((1, 1, "a"), (1, 1, "d"), (1, 1, "g")),
        *((2, 3, None), (2, 3, "f")),
        *((1, 4, "a"), (1, 4, "d"), (1, 4, "g")),
        *((2, 6, None), (2, 6, "f")),
    ]


def test_what_no_row_met_comes_last() -> None:
    ds = lefts().take(2).join(rights().drop("y"), "k", how="outer")
    assert ds.schema["k"] == pa.int64()
    assert rows(ds) == [
        (3, 0, None),
        *((1, 1, "a"), (1, 1, "d"), (1, 1, "g")),
        *((2, None, None), (None, None, "c"), (7, None, "e"), (2, None, "f")),
    ]


@pytest.mark.sample(3)
@pytest.mark.law
@pytest.mark.parametrize("how", [how for how in HOWS if how != "cross"])
def test_every_way_of_running_and_resuming(how: str) -> None:
    ds, other = lefts(), rights()
    for nulls_equal in (False, True):
        made = ds.join(other, "k", how=how, nulls_equal=nulls_equal)
        holds(made)
        resumes(made, TINY)
    holds(ds.join(other.take(0), "k", how=how))
    holds(ds.take(0).join(other, "k", how=how))
    holds(ds.join(other.shuffle(seed=1), "k", how=how).shuffle(3, seed=1).repeat(2))
    agrees(ds.join(other, "k", how=how).with_columns(u=dml.random(seed=3)))


@pytest.mark.law
def test_cross() -> None:
    ds = lefts().join(rights().take(3), how="cross")
    assert list(ds.schema) == ["k", "x", "k_right", "x_right", "y"]
    holds(ds)
    resumes(ds, TINY)


KEYS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.sampled_from([0, 1, 2, -1, 2**63 - 1, -(2**63)]),
    pa.uint8(): st.integers(0, 3),
    pa.float64(): st.sampled_from([0.0, -0.0, NAN, 1.5, float("inf")]),
    pa.bool_(): st.booleans(),
    pa.string(): st.sampled_from(["", "a", "aa", "b\0", "é"]),
    pa.large_binary(): st.sampled_from([b"", b"\0", b"\0\0"]),
    pa.binary(2): st.sampled_from([b"ab", b"ba"]),
    pa.date32(): st.sampled_from([dt.date(1969, 1, 1), dt.date(2024, 2, 29)]),
    pa.timestamp("us"): st.sampled_from([dt.datetime(1970, 1, 1), dt.datetime(2000, 1, 1)]),
    pa.decimal128(5, 2): st.integers(0, 3),
}


@st.composite
def two_tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table, list[str]]:
    kinds = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3))
    names = [f"k{i}" for i in range(len(kinds))]
    made = []
    for name in ("x", "y"):
        n = draw(st.integers(0, 12))
        columns = {
            key: pa.array(draw(st.lists(KEYS[kind] | st.none(), min_size=n, max_size=n)), kind)
            for key, kind in zip(names, kinds, strict=True)
        }
        made.append(pa.table({**columns, name: pa.array(range(n), pa.int64())}))
    return made[0], made[1], names


def alike(a: Any, b: Any, *, nulls_equal: bool) -> bool:
    if a is None or b is None:
        return nulls_equal and a is b
    return bool(a == b) or str(a) == str(b) == "nan"


def pairs(left: pa.Table, right: pa.Table, keys: list[str], **how: bool) -> list[tuple[Any, Any]]:
    return [
        (one["x"], two["y"])
        for one in left.to_pylist()
        for two in right.to_pylist()
        if all(alike(one[key], two[key], **how) for key in keys)
    ]


def expected(how: str, left: pa.Table, right: pa.Table, met: list[Any]) -> list[Any]:
    by = {x: [y for a, y in met if a == x] for x in range(left.num_rows)}
    if how in ("semi", "anti"):
        return [(x,) for x in by if bool(by[x]) == (how == "semi")]
    kept = how in ("left", "outer")
    out = [(x, y) for x, ys in by.items() for y in ys or ([None] if kept else [])]
    unmet = set(range(right.num_rows)) - {y for _, y in met}
    return [*out, *((None, y) for y in sorted(unmet))] if how in ("right", "outer") else out


@pytest.mark.law
@settings(max_examples=amount(60, 150))
@given(two_tables(), st.sampled_from([h for h in HOWS if h != "cross"]), st.booleans())
def test_a_join_is_a_nested_loop(tables: Any, how: str, nulls_equal: bool) -> None:
    left, right, keys = tables
    met = pairs(left, right, keys, nulls_equal=nulls_equal)
    ds = dml.from_arrow(left, atom_rows=4).join(
        dml.from_arrow(right, atom_rows=3), keys, how=how, nulls_equal=nulls_equal
    )
    wanted = expected(how, left, right, met)
    names = ["x"] if how in ("semi", "anti") else ["x", "y"]
    for way in (WRITTEN, PLAIN, TINY, RunWay(budget=2000, target_bytes=1)):
        found = elements(node_of(ds.select(*names)), way, UNUSED)
        assert [tuple(row.values()) for row in found] == wanted, way


def test_words_of_other_libraries() -> None:
    for said, meant in SYNONYMS.items():
        one, two = (lefts().join(rights(), "k", how=how) for how in (said, meant))
        assert one.fingerprint() == two.fingerprint()


def test_what_is_refused() -> None:
    ds, other = lefts(), rights()
    with pytest.raises(PlanError, match="join of batches"):
        ds.join(other.batch(2), "k")
    with pytest.raises(PlanError, match="join of batches"):
        ds.batch(2).join(other, "k")
    for one, two in ((ds.repeat(), other), (ds, other.repeat())):
        with pytest.raises(PlanError, match="without an end"):
            one.join(two, "k")
    with pytest.raises(PlanError, match="how='outside'"):
        ds.join(other, "k", how="outside")
    with pytest.raises(PlanError, match="validate='2:1'"):
        ds.join(other, "k", validate="2:1")
    with pytest.raises(PlanError, match="1 keys on the left and 0"):
        ds.join(other, left_on="k")
    with pytest.raises(PlanError, match="0 keys"):
        ds.join(other)
    with pytest.raises(PlanError, match="1 keys"):
        ds.join(other, "k", how="cross")
    with pytest.raises(PlanError, match="on= and left_on="):
        ds.join(other, "k", left_on="k")
    with pytest.raises(PlanError, match="semi join with validate"):
        ds.join(other, "k", how="semi", validate="1:1")
    with pytest.raises(PlanError, match="join needs pipelines"):
        ds.join({"k": [1]}, "k")
    with pytest.raises(SchemaError, match="'q'"):
        ds.join(other, "q")
    with pytest.raises(SchemaError, match="without a common type"):
        ds.join(other, left_on="k", right_on="x")
    with pytest.raises(SchemaError, match="two columns the name 'x_right'"):
        ds.rename(k="x_right").join(other, left_on="x_right", right_on="k")
    lists = table({"k": pa.array([[1]], pa.list_(pa.int64()))})
    with pytest.raises(SchemaError, match="join by 'k', which is list"):
        lists.join(lists, "k")
    made = ds.map(lambda row: {"k": int(repr(row["x"]))}, fingerprint="f")
    with pytest.raises(SchemaError, match="columns of its left side"):
        made.join(other, "k")


VALID = {
    "1:m": (["inner", "1:m"], 7, [1, 1, 1, 2, 2]),
    "m:1": (["inner", "m:1"], 7, []),
    "few m:1": (["left", "m:1"], 5, [3, 1, None, 2, 1, 9, 2, None]),
    "few 1:1": (["left", "1:1"], 5, [3, 1, None, 2]),
}


@pytest.mark.law
@pytest.mark.parametrize("case", VALID)
def test_validate_in_the_place_of_the_row(case: str) -> None:
    (how, validate), last, wanted = VALID[case]
    other = rights().drop("x").skip(7 - last).take(4 if last == 5 else 7)
    ds = lefts().drop("x").join(other, "k", how=how, validate=validate)
    agrees(ds)
    for way in (WRITTEN, TINY, RunWay(budget=2000)):
        found = outcome(elements(node_of(ds), way, UNUSED))
        assert [row["k"] for row in found.elements] == wanted
        assert found.error == ("" if len(wanted) == 8 else "MatchError")
        assert not found.error or f"validate={validate!r} meets a key twice: k=" in found.text


def test_a_row_with_too_many_matches_is_told() -> None:
    ds = lefts().join(rights(), "k", validate="m:1").with_options(**QUIET)
    with pytest.raises(MatchError, match="validate='m:1' meets a key twice: k=1"):
        ds.to_arrow()
