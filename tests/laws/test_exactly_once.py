"""Law: a function without declarations is called exactly once for each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dml
from dml.api.dataset import Dataset
from dml.testing.executions import RunWay, elements, outcome

ROWS = 300
WAYS = [
    RunWay(rewriting=rewriting, threads=threads, target_bytes=target, prefetch=prefetch)
    for rewriting in (True, False)
    for threads, prefetch in ((0, 0), (1, 0), (2, 3), (4, 0))
    for target in (1, 700, 1 << 20)
]
Calls = Counter[int]


def mapped(source: Dataset, calls: Calls) -> Dataset:
    def fn(row: dict[str, Any]) -> dict[str, Any]:
        calls[row["id"]] += 1
        return {"id": row["id"], "x": row["id"] * 2}

    return source.map(fn)


def kept(source: Dataset, calls: Calls) -> Dataset:
    def fn(row: dict[str, Any]) -> bool:
        calls[row["id"]] += 1
        return bool(row["id"] % 3)

    return source.filter(fn)


def many(source: Dataset, calls: Calls) -> Dataset:
    def fn(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        calls[row["id"]] += 1
        yield from ({"id": row["id"], "part": part} for part in range(row["id"] % 3))

    return source.flat_map(fn)


def drawn(source: Dataset, calls: Calls) -> Dataset:
    def fn(row: dict[str, Any], rng: Any) -> dict[str, Any]:
        calls[row["id"]] += 1
        return {"id": row["id"], "u": rng.random()}

    return source.random_map(fn)


def batched(source: Dataset, calls: Calls) -> Dataset:
    def fn(batch: dict[str, Any]) -> dict[str, Any]:
        assert len(batch["id"])
        calls.update(batch["id"].tolist())
        return batch

    return source.batch(7).map(fn)


SHAPES: dict[str, Callable[[Dataset], Dataset]] = {
    "plain": lambda made: made,
    "selected": lambda made: made.select("id"),
    "shuffled": lambda made: made.shuffle(20),
}


@pytest.mark.sample(7)
@pytest.mark.parametrize("verb", [mapped, kept, many, drawn, batched])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_is_called_once(
    verb: Any, shape: str, cache: Path, sampled: Callable[[list[RunWay], int], list[RunWay]]
) -> None:
    for way in sampled(WAYS, 4):
        calls: Calls = Counter()
        made = SHAPES[shape](verb(dml.range(ROWS, atom_rows=17), calls))
        assert not outcome(elements(made._node, way, cache)).error
        assert calls == Counter(range(ROWS)), way


def test_after_a_full_shuffle_each_row_is_called_once(cache: Path) -> None:
    calls: Calls = Counter()
    made = mapped(dml.range(ROWS, atom_rows=17).shuffle(), calls).batch(9)
    assert len(outcome(elements(made._node, WAYS[0], cache)).elements) == -(-ROWS // 9)
    assert calls == Counter(range(ROWS))


def test_every_pass_calls_each_row_once(cache: Path) -> None:
    calls: Calls = Counter()
    made = mapped(dml.range(50, atom_rows=8), calls).repeat(3)
    for way in WAYS[:6]:
        calls.clear()
        outcome(elements(made._node, way, cache))
        assert calls == Counter(dict.fromkeys(range(50), 3))
