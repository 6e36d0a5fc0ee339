"""Test ``Dataset`` as a value: pickling and copying, endless streams, types as text, statistics."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest

import dml
from dml import col
from dml.errors import PlanError


def doubled(row: dict[str, int]) -> dict[str, int]:
    return {"id": row["id"] * 2}


@pytest.mark.parametrize("again", [copy.deepcopy, lambda ds: pickle.loads(pickle.dumps(ds))])
def test_a_dataset_can_be_copied_and_sent_after_it_was_used(
    again: Callable[[dml.Dataset], dml.Dataset],
) -> None:
    ds = dml.range(100).map(doubled).filter(col("id") > 20).shuffle(16, seed=3).batch(8)
    before = [batch["id"].tolist() for batch in ds]
    ds.explain("rules")
    other = again(ds)
    assert [batch["id"].tolist() for batch in other.epoch(0)] == before
    assert other.fingerprint() == ds.fingerprint()


ENDLESS = dml.range(10).repeat()


@pytest.mark.parametrize(
    "act",
    [
        lambda: ENDLESS.shuffle(seed=1),
        lambda: ENDLESS.filter(col("id") > 3).shuffle(),
        ENDLESS.count,
        ENDLESS.batch(4).count,
        ENDLESS.to_numpy,
        ENDLESS.to_arrow,
    ],
)
def test_what_waits_for_the_end_of_an_endless_stream_says_so(act: Callable[[], object]) -> None:
    with pytest.raises(PlanError, match="endless"):
        act()


def test_an_endless_stream_that_is_cut_short_ends() -> None:
    assert ENDLESS.take(25).count() == 25
    assert len(ENDLESS.take(25).shuffle(seed=1).to_numpy()["id"]) == 25


def test_types_as_arrow_prints_them() -> None:
    ds = dml.from_items([{"x": 1}]).with_columns(t=dml.lit(None, "timestamp[us]"))
    assert ds.schema["t"] == pa.timestamp("us")


def test_a_notebook_shows_names_as_they_are_and_computes_nothing() -> None:
    ds = dml.from_dict({"<b>&": [1, 2]}).map(lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    assert "<b>" not in ds._repr_html_()
    assert "&lt;b&gt;&amp;" in ds._repr_html_()


def test_stats_are_a_table_wherever_they_are_shown() -> None:
    ds = dml.range(10).batch(5)
    assert len(list(ds)) == 2
    assert repr(ds.stats()) == str(ds.stats())
    assert "Range" in repr(ds.stats())


def test_stats_tell_of_epochs_that_were_asked_for_by_number() -> None:
    ds = dml.range(6).batch(2)
    for k in range(2):
        assert len(list(ds.epoch(k))) == 3
    assert ds.stats().records[-1]["rows_out"] == 6
    next(iter(ds))
    assert ds.stats().records[-1]["rows_out"] == 2, "its own iteration comes first"


@pytest.mark.law
def test_an_iterator_and_a_plan_of_several_are_shown_as_texts() -> None:
    ds = dml.range(4).batch(2)
    assert repr(iter(ds)).startswith("Elements of epoch 0 of Batch(2)")
    text = dml.explain_all([ds, ds.skip(1)])
    assert repr(text) == str(text)
    assert text._repr_html_().startswith("<pre")  # type: ignore[attr-defined]
