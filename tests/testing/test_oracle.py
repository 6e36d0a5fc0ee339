"""Test the oracle against results computed by hand, in small cases of each operator family."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml import col, ops
from dml.api.dataset import Dataset
from dml.expr.node import Node
from dml.testing.executions import outcome
from dml.testing.meanings import MEANINGS
from dml.testing.oracle import Oracle
from dml.testing.scalars import ids

BASES = {"OneToOne", "JoinNode", "Merging", "OfRuns", "PlaceSlice", "RowWise", "Weaving"}
MADE_BY_RULES = {
    "Paired",
    "Shared",
    "LiftedNode",
    "LiftedMap",
    "LiftedFilter",
    "Seek",
    "Segment",
    "Sieve",
}


def rows(dataset: Dataset, epoch: int = 0) -> list[dict[str, Any]]:
    return list(Oracle(dataset._node, epoch=epoch).elements())


def values(dataset: Dataset, name: str = "id", epoch: int = 0) -> list[Any]:
    return [row[name] for row in rows(dataset, epoch)]


def test_positions_and_filters() -> None:
    numbers = dml.range(10, atom_rows=3)
    assert values(numbers.skip(2).take(3)) == [2, 3, 4]
    assert values(numbers.filter(col("id") % 3 == 1)) == [1, 4, 7]
    assert values(numbers.filter(lambda row: row["id"] > 7)) == [8, 9]
    assert values(dml.range(2).repeat(2)) == [0, 1, 0, 1]
    assert values(dml.range(0).repeat()) == []
    assert values(dml.range(5, 0, -2)) == [5, 3, 1]


def test_batches_are_arrays_and_the_last_is_shorter() -> None:
    made = [batch["id"].tolist() for batch in rows(dml.range(5).batch(2))]
    assert made == [[0, 1], [2, 3], [4]]
    assert len(rows(dml.range(5).batch(2, drop_last=True))) == 2
    batch = rows(dml.from_dict({"x": [1.0, None], "s": ["a", None]}).batch(2))[0]
    assert np.isnan(batch["x"][1])
    assert batch["s"].tolist() == ["a", None]


def test_expressions_by_hand() -> None:
    source = dml.from_dict({"a": np.array([-7, 127], "i1"), "b": [2, 0]})
    made = source.with_columns(
        wrapped=col("a") + 1, halved=col("a") / 2, floored=col("a") // col("b"), null=col("a") % 0
    )
    assert rows(made.drop("a", "b")) == [
        {"wrapped": -6, "halved": -3.5, "floored": -4, "null": None},
        {"wrapped": -128, "halved": 63.5, "floored": None, "null": None},
    ]


@pytest.mark.parametrize("atom_rows", [1, 4, 100])
def test_functions_settle_types_by_the_first_rows(atom_rows: int) -> None:
    def fn(turn: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda row: {"x": row["id"] + (0.5 if row["id"] >= turn else 0)}

    source = dml.range(70, atom_rows=atom_rows)
    first = outcome(Oracle(source.map(fn(63))._node).elements())
    assert (len(first.elements), first.error) == (70, "")
    later = outcome(Oracle(source.map(fn(64))._node).elements())
    assert [row["x"] for row in later.elements] == list(range(64))
    assert later.error == "UDFError"


def test_children_have_ids_of_their_own() -> None:
    made = dml.range(2).flat_map(lambda row: [row, row]).repeat(2)
    found = list(Oracle(made._node).ids())
    assert len(set(found)) == 8
    source = (ids.source_key("range"), 1)
    child = ids.derive(*source, int.from_bytes(b"flat_map", "big"), 1)
    assert found[3] == ids.derive(*child, int.from_bytes(b"repeat", "big") + 1, 0)


def test_shuffles_are_permutations_and_change_with_the_epoch() -> None:
    for shuffled in (
        dml.range(40, atom_rows=4).shuffle(),
        dml.range(40, atom_rows=4).shuffle(10),
        dml.range(40, atom_rows=4).shuffle(window="atoms", size=3),
    ):
        first, second = values(shuffled), values(shuffled, epoch=1)
        assert sorted(first) == sorted(second) == list(range(40))
        assert first != second
    kept = dml.range(40).shuffle(reshuffle_each_iteration=False)
    assert values(kept) == values(kept, epoch=5)


def test_a_window_keeps_to_its_rows() -> None:
    found = values(dml.range(20).shuffle(5))
    assert [sorted(found[i : i + 5]) for i in range(0, 20, 5)] == [
        list(range(i, i + 5)) for i in range(0, 20, 5)
    ]


def test_a_full_shuffle_ranks_where_rows_are_one_to_one_and_hashes_elsewhere() -> None:
    ranked = values(dml.range(30).shuffle())
    assert values(dml.range(30).filter(col("id") < 20).shuffle()) == [v for v in ranked if v < 20]
    hashed = values(dml.range(30).flat_map(lambda row: [row]).shuffle())
    assert sorted(hashed) == list(range(30))
    assert hashed != ranked


@pytest.mark.parametrize("n", [1, 3])
def test_passes_of_a_repeat_are_epochs(n: int) -> None:
    made = dml.range(12).shuffle().repeat(n)
    passes = [values(dml.range(12).shuffle(), epoch=2 * n + p) for p in range(n)]
    assert values(made, epoch=2) == [value for one in passes for value in one]


def test_draws_are_keyed_by_row_and_not_by_order() -> None:
    drawn = dml.range(9).with_columns(u=dml.random())
    kept = {row["id"]: row["u"] for row in rows(drawn.skip(4))}
    assert kept.items() <= {row["id"]: row["u"] for row in rows(drawn)}.items()
    assert rows(drawn) != rows(drawn, epoch=1)


def test_errors_come_after_the_rows_before_them() -> None:
    found = outcome(
        Oracle(dml.range(5).map(lambda row: {"x": 1 // (row["id"] - 3)})._node).elements()
    )
    assert (len(found.elements), found.error) == (3, "UDFError")
    found = outcome(
        Oracle(dml.range(3).with_columns(x=(col("id") * 200).cast("i1"))._node).elements()
    )
    assert (len(found.elements), found.error) == (1, "CastError")
    nulls = dml.from_dict({"x": [1, None]}).batch(1)
    found = outcome(Oracle(nulls._node).elements())
    assert (len(found.elements), found.error) == (1, "NullValueError")


def test_every_operator_has_a_meaning_and_is_drawn() -> None:
    folder = Path(ops.__file__).parent
    files = [path.relative_to(folder) for path in folder.glob("*/*.py")]
    names = [".".join(file.with_suffix("").parts) for file in files if file.stem != "__init__"]
    modules = [importlib.import_module(f"dml.ops.{name}") for name in names]
    written = {
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Node) and each.__module__ == module.__name__
    }
    drawn = {each.operator for each in MEANINGS if any(u.rows or u.batches for u in each.uses)}
    users = {each for each in written if each.__name__ not in MADE_BY_RULES | BASES}
    assert users == drawn
