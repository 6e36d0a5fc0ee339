"""Test ``map_groups``: a function of all rows of a group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dml import col
from dml.errors import MemoryContractError, UDFError
from tests.expr.checks import TINY, agrees, holds, numbers, resumes, table


def ranked(group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"x": group["x"], "rank": np.arange(len(group["x"]))}


def summed(group: dict[str, np.ndarray]) -> dict[str, Any]:
    return {"k": group["k"][0], "name": "g", "total": group["x"].sum(), "none": None}


def uneven(group: dict[str, np.ndarray]) -> dict[str, Any]:
    return {"a": [1, 2], "b": group["x"][:1]}


@pytest.mark.law
def test_rows_of_groups() -> None:
    ds = numbers(20).with_columns(k=col("x") * 7 % 3)
    made = ds.group_by("k").map_groups(ranked)
    assert holds(made) == 20
    assert [row["rank"] for row in made][:8] == [0, 1, 2, 3, 4, 5, 6, 0]
    assert resumes(made.batch(6), TINY) == 4


@pytest.mark.law
def test_one_row_of_single_values() -> None:
    ds = numbers(20).with_columns(k=col("x") % 3)
    made = ds.group_by("k").map_groups(summed)
    assert holds(made) == 3
    assert made.to_arrow().to_pylist()[0] == {"k": 0, "name": "g", "total": 63, "none": None}


@pytest.mark.law
def test_keys_that_are_expressions_are_not_shown_to_it() -> None:
    made = numbers(9).group_by(k=col("x") % 2).map_groups(lambda g: {"n": len(g), "s": sum(g["x"])})
    assert holds(made) == 2
    assert made.to_arrow().to_pylist() == [{"n": 1, "s": 20}, {"n": 1, "s": 16}]


@pytest.mark.law
def test_errors() -> None:
    failing = numbers(6).group_by("x").map_groups(lambda g: {"y": 6 // (g["x"] - 2)})
    agrees(failing)
    with pytest.raises(UDFError, match="unequal lengths"):
        numbers(4).group_by("x").map_groups(uneven).to_arrow()
    large = (
        table({"x": pa.array(range(200_000))}, atom_rows=10_000)
        .with_options(memory_limit="2MiB")
        .group_by(k=col("x") * 0)
    )
    with pytest.raises(MemoryContractError, match="RunBatches"):
        large.map_groups(ranked).to_arrow()
