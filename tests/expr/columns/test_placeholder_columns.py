"""Test placeholder columns: list elements, several columns at once, row ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import all_columns, col, columns_of, element
from dml.errors import CastError, DmlError, PlanError, SchemaError
from dml.expr.columns.value import value_text
from tests.expr.checks import QUIET, agrees, computed, holds, table

DATA = {
    "x": pa.array([0, 2, -1, None, 5]),
    "f": pa.array([0.5, None, 2.0, 1.0, 0.0], pa.float32()),
    "l": pa.array([[0, 1], None, [], [None, 9, 2], [3]]),
    "w": pa.array([["a b", "q"], None, [], [None], ["b"]]),
}
L, W = col("l").list, col("w").list


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (L.eval(element() * 2 + 1), [[1, 3], None, [], [None, 19, 5], [7]]),
        (L.eval(element().fill_null(0) > 1), [[False] * 2, None, [], [False, True, True], [True]]),
        (L.eval(7), [[7, 7], None, [], [7, 7, 7], [7]]),
        (W.eval(element().str.len_chars()).list.sum(), [4, None, 0, 0, 1]),
        (W.eval(element().str.split(" ").list.eval(element().str.to_uppercase())), [
            [["A", "B"], ["Q"]], None, [], [None], [["B"]],
        ]),
    ],
)  # fmt: skip
def test_expressions_of_elements(value: dml.Column, wanted: list[Any]) -> None:
    assert computed(DATA, value) == wanted


@pytest.mark.law
def test_elements_that_fail_are_errors_of_their_row() -> None:
    ds = table(DATA).with_columns(r=L.eval(element().cast("i1")), s=L.eval(element() * 100))
    agrees(ds)
    agrees(ds.with_columns(r=col("s").list.eval(element().cast("i1"))), epochs=(0,))
    failing = table(DATA).with_columns(r=L.eval((element() * 100).cast("i1")))
    with pytest.raises(CastError, match="meets 900") as caught:
        failing.to_arrow()
    assert "row 3" in caught.value.at


def test_elements_have_names_of_their_expression() -> None:
    one, other = (table(DATA).with_columns(r=L.eval(element() + i)) for i in (1, 2))
    assert one.fingerprint() != other.fingerprint()
    assert value_text(L.eval(element() + 1).value) == "l.list.eval((element() + 1))"


@pytest.mark.law
def test_several_columns_are_made_one_by_one() -> None:
    ds = table(DATA)
    assert ds.select(all_columns()).schema == ds.schema
    assert list(ds.select(("f", "x")).schema) == list(ds.select(["f", col("x")]).schema)
    assert list(ds.select(all_columns().exclude("x", "w")).schema) == ["f", "l"]
    assert list(ds.select(columns_of("list"), "x", y=col("x") + 1).schema) == ["l", "w", "x", "y"]
    assert list(ds.select(columns_of("f4", pa.int64())).schema) == ["x", "f"]
    doubled = ds.with_columns(columns_of("numeric") * 2, k=columns_of_length())
    assert doubled.to_arrow().select(["x", "f", "k"]).to_pydict() == {
        "x": [0, 4, -2, None, 10], "f": [1.0, None, 4.0, 2.0, 0.0], "k": [2, None, 0, 3, 1],
    }  # fmt: skip
    agrees(doubled)
    swapped = ds.select(x=col("f"), f=col("x"))
    assert swapped.to_arrow().to_pydict() == {
        "x": DATA["f"].to_pylist(), "f": DATA["x"].to_pylist(),
    }  # fmt: skip
    assert ds.select(col("x") * 2, "f").fingerprint() == ds.select(x=col("x") * 2, f=col("f")) \
        .fingerprint()  # fmt: skip


def columns_of_length() -> dml.Column:
    """An expression of a single column."""
    return L.len()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda ds: ds.select(col("x") + col("f")), "select has no name for"),
        (lambda ds: ds.select(dml.lit(1)), "reads 0 columns"),
        (lambda ds: ds.select(col("x") + 1, "x"), "'x' twice"),
        (lambda ds: ds.with_columns(col("x") + 1, x=1), "'x' twice"),
        (lambda ds: ds.with_columns(7), "cannot take 7"),
        (lambda ds: ds.with_columns(z=all_columns()), "one is needed"),
        (lambda ds: ds.filter(columns_of("numeric") > 0), "one is needed"),
        (lambda ds: ds.select(columns_of("bool")), "stands for no column"),
        (lambda ds: ds.select(all_columns().exclude("y")), "exclude needs column 'y'"),
        (lambda ds: ds.select(all_columns() + columns_of("f4")), "more than one set"),
        (lambda ds: ds.map(print).select(all_columns() + 1), "known only when it runs"),
        (lambda ds: ds.select(columns_of("wide")), "'wide' is not a type"),
        (lambda ds: ds.select(columns_of()), "needs a type"),
        (lambda ds: ds.select(all_columns().exclude()), "exclude needs names"),
        (lambda ds: ds.with_columns(z=element()), r"needs column 'element\(\)'"),
        (lambda ds: ds.with_columns(z=L.eval(col("x"))), "reads column 'x'"),
        (lambda ds: ds.with_columns(z=L.eval(dml.random())), "depends on the row"),
        (lambda ds: ds.with_columns(z=L.eval(element().one_hot(2))), "gives lists of f4"),
        (lambda ds: ds.with_columns(z=L.eval(element().str.len_chars())), "needs text"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(make: Any, words: str) -> None:
    with pytest.raises(DmlError, match=words) as caught:
        make(table(DATA))
    assert isinstance(caught.value, PlanError | SchemaError)
    assert "test_placeholder_columns.py" in caught.value.at


@pytest.mark.law
def test_ids_stay_with_rows(tmp_path: Path) -> None:
    for i in range(3):
        pq.write_table(pa.table({"x": range(i * 10, i * 10 + 10)}), tmp_path / f"{i}.parquet")
    files = dml.read_parquet(tmp_path, atom_rows=3).with_options(**QUIET)
    ids = files.with_columns(k=dml.row_id(), e=dml.row_id(exact=True))
    assert dict(ids.schema) == {"x": pa.int64(), "k": pa.uint64(), "e": pa.binary(16)}
    wanted = {row["x"]: (row["k"], row["e"]) for row in ids}
    assert len({k for k, _ in wanted.values()}) == len({e for _, e in wanted.values()}) == 30
    for other in (
        ids.shuffle(seed=3),
        files.shuffle(seed=3).filter(col("x") % 3 == 0).with_columns(k=dml.row_id()),
        files.batch(4).with_columns(k=dml.row_id()).unbatch(),
        ids.with_options(optimize=False, executor="threads", num_workers=2),
    ):
        assert all(wanted[row["x"]][0] == row["k"] for row in other)
    repeated = files.repeat(2).with_columns(k=dml.row_id())
    assert len({row["k"] for row in repeated}) == 60
    holds(repeated)


@pytest.mark.law
def test_ids_are_no_random_operator() -> None:
    plain = table(DATA).shuffle().with_columns(r=dml.random())
    named = table(DATA).filter(dml.row_id() > 0).shuffle().with_columns(r=dml.random())
    agrees(named)
    assert named.to_arrow().equals(plain.to_arrow())
    agrees(table(DATA).with_columns(k=dml.row_id(), r=dml.random() + dml.row_id()).shuffle())
