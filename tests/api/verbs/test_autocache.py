"""Test where in a pipeline ``autocache()`` is allowed."""

from __future__ import annotations

from typing import Any

import pytest

import dml
from dml.errors import PlanError
from dml.ops.cache.autocache import AutoStored
from dml.ops.cache.cache import Cache

DATA = {"x": [*range(20)]}


def test_random_rows_are_never_frozen() -> None:
    def drawn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {"y": row["x"] + rng.random()}

    ds = dml.from_dict(DATA)
    drawing = [
        ds.with_columns(r=dml.random()),
        ds.filter(dml.random() > 0.5),
        ds.random_map(drawn),
        ds.shuffle(),
        ds.shuffle(10),
        ds.random_map(drawn).batch(3),
    ]
    for each in drawing:
        with pytest.raises(PlanError, match="others in every epoch"):
            each.autocache()
    fixed = [
        ds.map(dict),
        ds.shuffle(reshuffle_each_iteration=False),
        ds.shuffle().cache(),
        ds.split([0.5, 0.5])[0],
    ]
    for each in fixed:
        each.autocache()


def test_reuse_is_of_row_functions_over_one_source() -> None:
    with pytest.raises(PlanError, match="row functions over one source"):
        dml.from_dict(DATA).shuffle(10).autocache(reuse=2)
    with pytest.raises(PlanError, match="reuse must be"):
        dml.from_dict(DATA).autocache(reuse=0)


def test_it_is_done_by_workers_where_they_make_the_rows() -> None:
    ds = dml.from_dict(DATA)
    assert isinstance(ds.map(dict).autocache()._node, AutoStored)
    assert isinstance(ds.map(dict).cache(tier="auto")._node, AutoStored)
    assert isinstance(ds.batch(3).autocache()._node, Cache)
    assert "tier='auto', reuse=2" in repr(ds.with_columns(r=dml.random()).autocache(2))
    assert ds.autocache().fingerprint() != ds.autocache(reuse=2).fingerprint()
