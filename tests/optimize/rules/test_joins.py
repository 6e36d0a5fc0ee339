"""Test the rules that reduce the columns and rows that reach a join."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.optimize.rules.joins import columns_before_join, filter_before_join, keys_before_semi_join
from dml.optimize.rules.normal_form import drop_identity_segment
from dml.testing.plans import keeps_rows, leaves, rewrites
from tests.optimize.tables import flights, parquet

LATE = col("late") > 0
SMALL = (col("id") * 20).cast("int8") > 3


def gates() -> dml.Dataset:
    data = {"gate": ["g1", "g0", "g1", None], "id": [4, 5, 6, 7], "walk": [1.0, 2.0, 3.0, 4.0]}
    return dml.from_dict(data, atom_rows=2)


@pytest.mark.law
def test_columns_before_join() -> None:
    by = [columns_before_join]
    joined = flights().join(gates(), "gate")
    narrow = flights().select("late", "gate").join(gates().select("gate", "walk"), "gate")
    rewrites(joined.select("walk", "late"), to=narrow.select("walk", "late"), by=by)
    # the left id gives the right one its name
    both = flights().select("id", "gate").join(gates().select("gate", "id"), "gate")
    rewrites(joined.select("id_right"), to=both.select("id_right"), by=by)
    leaves(joined.with_columns(far=col("walk") * 2), by=by)
    keeps_rows(flights().join(gates(), how="cross").with_columns(one=1).select("one"))


@pytest.mark.law
def test_keys_before_semi_join() -> None:
    by = [keys_before_semi_join]
    to = flights().join(gates().select("gate"), "gate", how="anti")
    rewrites(flights().join(gates(), "gate", how="anti"), to=to, by=by)
    leaves(flights().join(gates(), "gate"), by=by)


@pytest.mark.law
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_filter_before_join(how: str) -> None:
    by = [filter_before_join, drop_identity_segment]
    joined = flights().join(gates(), "gate", how=how)
    rewrites(joined.filter(LATE), to=flights().filter(LATE).join(gates(), "gate", how=how), by=by)
    leaves(joined.filter(SMALL), by=by[:1])  # may fail on rows that have no match
    leaves(joined.filter(dml.random(seed=1) < 0.5), by=by)  # keyed by the row that is made
    if how in ("inner", "left"):
        one = flights().join(gates().take(2), "gate", how=how, validate="m:1")
        leaves(one.filter(LATE), by=by[:1])


@pytest.mark.law
def test_a_filter_of_the_right_side_before_an_inner_join() -> None:
    by = [filter_before_join, drop_identity_segment]
    far = (col("walk") > 1.5) & (col("id_right") != 9)
    below = gates().filter((col("walk") > 1.5) & (col("id") != 9))
    rest = col("id") > col("walk")
    few = flights().take(5)
    one, two = few.join(gates(), "gate"), few.join(below, "gate")
    rewrites(one.filter(far & rest), to=two.filter(rest), by=by)
    one, two = few.join(gates(), how="cross"), few.join(below, how="cross")
    rewrites(one.filter(far & rest), to=two.filter(rest), by=by)
    for how in ("left", "right", "outer"):
        leaves(flights().join(gates(), "gate", how=how).filter(far), by=by)
    leaves(flights().join(gates(), "gate", how="outer").filter(LATE), by=by)


@pytest.mark.law
def test_columns_that_nobody_needs_are_read_of_neither_file(tmp_path: Path) -> None:
    words = pa.table({"id": [3, 4, 5], "word": ["a", "b", "c"], "long": ["x", "y", "z"]})
    pq.write_table(words, tmp_path / "words.parquet")
    ds = parquet(tmp_path).join(dml.read_parquet(tmp_path / "words.parquet"), "id")
    text = ds.select("word", "x").explain("physical")
    assert "2 of 3 columns (id, x)" in text
    assert "2 of 3 columns (id, word)" in text
    plan = keeps_rows(ds.select("word", "x").filter(col("x") > 1.1).batch(2))
    assert plan.stage.columns == ("id", "x")
    assert len(plan.stage.predicate) == 1
    assert [each.stage.columns for each in plan.beside[0]] == [("id", "word")]
    assert keeps_rows(ds).stage.columns == ("id", "x", "name")
