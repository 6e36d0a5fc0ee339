"""Law: a fingerprint is the same in another process, and changes with any part of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col
from dml.api.dataset import Dataset
from dml.errors import DmlError
from dml.expr.columns.value import Value
from dml.expr.node import Node
from dml.testing.pipelines import NAMED
from dml.testing.strategies_data import DataPool
from tests.laws.cases import case
from tests.laws.elsewhere import name_of
from tests.laws.other_process import asked


def test_fingerprints_are_equal_in_another_process(
    pool: DataPool, data: Path, tmp_path: Path, many: Callable[[int, int], int]
) -> None:
    numbers = list(range(3_000_000, 3_000_000 + many(40, 1000)))
    there = asked("names", folder=str(data), pool=str(tmp_path / "pool"), cases=numbers)
    here = {name: name_of(named.make(data)) for name, named in NAMED.items()}
    here |= {str(n): name_of(case(n, pool).drawn.dataset) for n in numbers}
    assert here == there
    assert len({here[name] for name in NAMED}) == len(NAMED)


NUMBERS = ("seed", "n", "atom_rows")  # fields in which None stands for no number


def other(name: str, value: Any) -> list[Any]:
    """Values that differ from ``value`` and could stand in its place."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value + 100]
        case None:
            return [1] if name in NUMBERS else []
        case str():
            return [value + "x"]
        case float():
            return [value + 0.5]
    return []


def variants(node: Node) -> list[Node]:
    """``node`` with one simple field changed, in every way that is accepted."""
    found = []
    for name in node.field_names:
        for value in other(name, getattr(node, name)):
            try:
                found.append(node.replace(**{name: value}))
            except DmlError:
                continue
    return found


@pytest.mark.parametrize("name", NAMED)
def test_any_field_changed_changes_the_digest(name: str, data: Path) -> None:
    for node in NAMED[name].make(data)._node.walk():
        digests = [node.digest, *(other.digest for other in variants(node))]
        assert len(set(digests)) == len(digests), node


SOURCE = dml.from_dict({"x": [1.0, 2.0], "i": [1, 2], "s": ["a", "b"]}, atom_rows=1)
CHANGES: dict[str, list[Callable[[Dataset], Dataset]]] = {
    "filter": [
        lambda d: d.filter(col("x") > 1),
        lambda d: d.filter(col("x") >= 1),
        lambda d: d.filter(col("x") > 1.5),
        lambda d: d.filter(col("i") > 1),
        lambda d: d.filter(col("x") < 1),
    ],
    "columns": [
        lambda d: d.select("x", "i"),
        lambda d: d.select("i", "x"),
        lambda d: d.select("x"),
        lambda d: d.rename(x="y").select("y", "i"),
        lambda d: d.with_columns(y=col("x") + 1),
        lambda d: d.with_columns(y=col("x") + 2),
        lambda d: d.with_columns(y=col("x") - 1),
        lambda d: d.with_columns(z=col("x") + 1),
        lambda d: d.with_columns(y=0.0),
        lambda d: d.with_columns(y=-0.0),
        lambda d: d.cast(x="f4"),
        lambda d: d.cast(x="f4", strict=False),
        lambda d: d.fill_null(x=0.0),
        lambda d: d.fill_null(x=1.0),
    ],
    "random": [
        lambda d: d.with_columns(y=dml.random()),
        lambda d: d.with_columns(y=dml.random(seed=1)),
        lambda d: d.with_columns(y=dml.random(stream=1)),
        lambda d: d.shuffle(2).with_columns(y=dml.random()),
        lambda d: d.shuffle(2),
        lambda d: d.shuffle(3),
        lambda d: d.shuffle(2, seed=1),
        lambda d: d.shuffle(2, reshuffle_each_iteration=False),
        lambda d: d.shuffle(),
        lambda d: d.shuffle(seed=1),
        lambda d: d.shuffle(window="atoms", size=2),
        lambda d: d.shuffle(window="atoms", size=3),
        lambda d: d.random_map(lambda _, rng: {"u": rng.random()}),
        lambda d: d.random_map(lambda _, rng: {"u": rng.random()}, seed=1),
        lambda d: d.random_map(lambda _, rng: {"u": rng.normal()}),
    ],
    "order": [
        lambda d: d.take(1),
        lambda d: d.skip(1),
        lambda d: d.repeat(2),
        lambda d: d.repeat(3),
        lambda d: d.repeat(),
        lambda d: d.batch(1),
        lambda d: d.batch(2),
        lambda d: d.batch(2, drop_last=True),
        lambda d: d.shuffle(2).repeat(2),
        lambda d: d.repeat(2).shuffle(2),
    ],
    "functions": [
        lambda d: d.map(lambda row: {"y": row["x"] + 1}),
        lambda d: d.map(lambda row: {"y": row["x"] + 2}),
        lambda d: d.map(lambda row: {"z": row["x"] + 1}),
        lambda d: d.map(lambda row: {"y": str(row["s"])}),
        lambda d: d.map(lambda row: {"y": repr(row["s"])}),
        lambda d: d.map(lambda _: {"y": 1}, schema={"y": "f8"}),
        lambda d: d.map(lambda _: {"y": 1}, fingerprint="a"),
        lambda d: d.map(lambda _: {"y": 1}, fingerprint="b"),
        lambda d: d.flat_map(lambda row: [row]),
        lambda d: d.flat_map(lambda row: [row, row]),
        lambda d: d.batch(2).map(lambda batch: batch),
    ],
    "data": [
        lambda _: dml.from_dict({"x": [1.0, 2.0]}),
        lambda _: dml.from_dict({"x": [1.0, 3.0]}),
        lambda _: dml.from_dict({"x": [1.0, None]}),
        lambda _: dml.from_dict({"x": [1.0, float("nan")]}),
        lambda _: dml.from_dict({"y": [1.0, 2.0]}),
        lambda _: dml.from_dict({"x": np.array([1.0, 2.0], "f4")}),
        lambda _: dml.range(2),
        lambda _: dml.range(3),
        lambda _: dml.range(0, 4, 2),
    ],
}


@pytest.mark.parametrize("family", CHANGES)
def test_another_meaning_has_another_fingerprint(family: str) -> None:
    names = [make(SOURCE).fingerprint() for make in CHANGES[family]]
    assert len(set(names)) == len(names)


ALIKE: list[tuple[Callable[[Dataset], Dataset], Callable[[Dataset], Dataset]]] = [
    (lambda d: d.filter(col("x") > 1), lambda d: d.filter(1 < col("x"))),  # noqa: SIM300
    (lambda d: d.filter(col("x") > 1).select("x"), lambda d: d.filter(col("x") > 1).drop("i", "s")),
    (lambda d: d.skip(1).skip(1), lambda d: d.skip(2)),
    (lambda d: d.take(2).take(1), lambda d: d.take(1)),
    (lambda d: d.skip(0), lambda d: d),
    (lambda d: d.with_options(num_workers=3), lambda d: d),
    (lambda d: d.rename(x="y").rename(y="x"), lambda d: d),
]


@pytest.mark.parametrize("pair", ALIKE)
def test_equal_meaning_has_an_equal_fingerprint(pair: Any) -> None:
    one, two = pair
    assert one(SOURCE).fingerprint() == two(SOURCE).fingerprint()


def test_every_parameter_of_a_value_counts() -> None:
    values = [
        Value("col", (), ("x",)),
        Value("col", (), ("y",)),
        Value("lit", (), (1, None)),
        Value("lit", (), (1.0, None)),
        Value("lit", (), (True, None)),
        Value("lit", (), (1, pa.int64())),
        Value("random", (), (None, 0, None)),
        Value("random", (), (None, 1, None)),
        Value("random", (), (0, 0, None)),
        Value("random", (), (None, 0, (0, 1))),
    ]
    assert len({value.digest for value in values}) == len(values)


def test_a_copy_of_the_files_has_the_same_name_and_other_files_another(tmp_path: Path) -> None:
    def written(place: Path, first: int) -> Dataset:
        place.mkdir()
        pq.write_table(pa.table({"x": [first, 2]}), place / "a.parquet")
        return dml.read_parquet(place)

    one, copy, changed = (written(tmp_path / n, x) for n, x in (("a", 1), ("b", 1), ("c", 9)))
    assert one.fingerprint() == copy.fingerprint()
    assert one.fingerprint() != changed.fingerprint()
    assert one.fingerprint("fleet") == changed.fingerprint("fleet")
