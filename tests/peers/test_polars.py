"""Compare dml with Polars: the same expressions give the same columns."""

from __future__ import annotations

import random

import pytest

import dml
from tests.peers.polars_expressions import drawn, table

CASES, SAMPLE = 5000, 300


@pytest.mark.law
@pytest.mark.parametrize("block", range(4))
def test_expressions_give_the_same_columns(block: int, whole: bool) -> None:
    pl = pytest.importorskip("polars")
    for seed in range(block, CASES if whole else SAMPLE, 4):
        rng = random.Random(seed)
        rows, build = table(rng), drawn(rng)
        ours = dml.from_arrow(rows).with_columns(z=build(dml)).select("z").to_arrow()["z"]
        theirs = pl.from_arrow(rows).select(z=build(pl)).to_arrow()["z"]
        # as text: -0.0 is not 0.0
        assert str(ours.to_pylist()) == str(theirs.to_pylist()), f"{seed}: {build(pl)}"
