"""Test the names of what pipelines have in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

import dml
from dml import col
from dml.api.session import optimized
from dml.errors import DmlError
from dml.expr.facts import Rows
from dml.optimize.shared_prefixes import prefix_names
from dml.settings import Settings
from dml.testing.draws import Drawn
from dml.testing.strategies import pipelines
from dml.testing.strategies_data import DataPool


def names_of(ds: dml.Dataset) -> dict[str, str]:
    stations = optimized(ds._node, ds._settings)
    return prefix_names(stations.normalized, stations.plan)


@pytest.fixture
def table(tmp_path: Path) -> dml.Dataset:
    data = pa.table({name: np.arange(100) for name in "abcd"})
    pq.write_table(data, tmp_path / "t.parquet")
    return dml.read_parquet(str(tmp_path / "t.parquet"))


def test_pipelines_that_go_on_differently_share_what_they_have_in_common(
    table: dml.Dataset,
) -> None:
    common = table.filter(col("a") > 3).with_columns(e=col("b") + 1)
    one = names_of(common.map(lambda row: {"x": str(row["e"])}).batch(8))
    two = names_of(common.select("c", "e").shuffle(10).batch(4))
    three = names_of(table.filter(col("a") > 3).with_columns(e=col("c") * 2))
    whole = common.fingerprint(domain="fleet")
    assert [*one][:3] == [*names_of(common)]
    assert [*names_of(common)][-1] == whole
    assert [name for name in one if name in three] == [*one][:2]  # the source, and the filter
    assert [*two][:2] == [*one][:2]


def test_prefixes_end_below_what_draws(table: dml.Dataset) -> None:
    common = table.filter(col("a") > 3)
    expected = [*names_of(common)]
    assert [*names_of(common.shuffle(seed=1).map(lambda row: {"x": row["a"]}))] == expected
    drawn = common.with_columns(z=dml.random())
    assert [*names_of(drawn)] in (expected, expected[:1])  # merged, or beside its filter
    assert len(names_of(table.shuffle().batch(3))) == 1


def test_written_otherwise_is_the_same(table: dml.Dataset) -> None:
    one = table.filter(col("a") > 3).filter(col("b") < 50).select("a", "b")
    two = table.filter((col("b") < 50) & (col("a") > 3)).select("a", "b").batch(2)
    assert [*names_of(one)] == [*names_of(two)][: len(names_of(one))]
    assert len(names_of(one)) == 3


def test_each_prefix_names_its_last_operator(table: dml.Dataset) -> None:
    def double(row: dict[str, int]) -> dict[str, int]:
        return {"x": row["a"] * 2}

    ds = table.filter(col("a") > 3).map(double).batch(8)
    operators = [type(node).__name__ for node in optimized(ds._node, ds._settings).plan.operators]
    assert operators == ["ParquetSource", "Segment", "LiftedMap", "Batch"]
    lasts = list(names_of(ds).values())
    assert lasts == ["0 ParquetSource", "1 Segment", "2 LiftedMap", "3 Batch"]


def test_prefixes_end_below_what_has_further_inputs(table: dml.Dataset) -> None:
    other = dml.from_dict({"a": [1, 2], "y": [3, 4]})
    assert [*names_of(table.join(other, on="a").batch(4))] == [*names_of(table)]
    assert [*names_of(table.zip(table.select(z=col("a"))))] == [*names_of(table)]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> DataPool:
    return DataPool(tmp_path_factory.mktemp("pool"))


CACHED = (Rows.KEPT, Rows.STORED)  # which have no name of their own among the prefixes


def test_the_last_name_of_a_pipeline_that_draws_nothing_is_its_own(pool: DataPool) -> None:
    whole = 0

    @given(pipelines(pool))
    def law(drawn: Drawn) -> None:
        nonlocal whole
        try:
            stations = optimized(drawn.dataset._node, Settings())
        except DmlError:
            return
        names = prefix_names(stations.normalized, stations.plan)
        lasts = [int(last.split()[0]) for last in names.values()]
        assert lasts == sorted(lasts)
        assert all(last < len(stations.plan.operators) for last in lasts)
        nodes = [*stations.normalized.walk()]
        if not any(
            node.random or node.draws or len(node.inputs) > 1 or node.rows in CACHED
            for node in nodes
        ):
            whole += 1
            assert [*names][-1] == stations.plan.fingerprint

    law()
    assert whole
