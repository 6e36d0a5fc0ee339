"""Test chains of tasks for ordered operators: the state that they carry, and where they end."""

from __future__ import annotations

from typing import Any

import dask as untyped_dask
import pytest

import dml
from dml.api.dataset import Dataset
from dml.cluster.graph.program import ChainLink, Played, StarvedError, Turn
from dml.exec.tasks.partition import Piece

dask: Any = untyped_dask

TASKS = 10


def source() -> Dataset:
    """A thousand rows, a hundred a task."""
    ds = dml.range(1000, atom_rows=10)
    return ds.with_options(telemetry_dir="off", target_partition_bytes=800)


def links(ds: Dataset) -> list[ChainLink]:
    """What the tasks of the chain gave."""
    graph = ds.to_dask()[0].dask.to_dict()
    return list(dask.get(graph, [key for key in graph if "-chain-" in key[0]]))


def held(link: ChainLink) -> int:
    return sum(piece.block.n for _, piece in link.pieces if piece.block is not None)


def test_a_chain_holds_a_window_and_a_task() -> None:
    found = links(source().shuffle(130).batch(9))
    assert len(found) == TASKS
    assert max(map(held, found)) <= 2 * 130 + 100, "a batch may begin in the window before"
    assert found[-1].ended
    assert not held(found[-1])
    assert sum(link.rows.num_rows for link in found) == 1000


def test_rows_are_given_as_soon_as_they_can_be() -> None:
    found = links(source().batch(30))
    assert [link.rows.num_rows for link in found] == [90, 90, 120] * 3 + [100]


def test_a_chain_that_has_ended_holds_nothing() -> None:
    found = links(source().flat_map(lambda row: [row]).batch(30).take(5))
    assert [link.rows.num_rows for link in found] == [90, 60] + [0] * 8
    assert [link.ended for link in found] == [False] + [True] * 9
    assert not any(held(link) for link in found[1:])


def test_types_settle_once_and_are_handed_on() -> None:
    ds = (
        source().shuffle(130).map(lambda row: {"s": str(row["id"])}).filter(lambda r: "7" in r["s"])
    )
    found = links(ds)
    assert len({tuple(link.schemas) for link in found if link.rows.num_rows}) == 1
    assert {tuple(link.rows.schema.names) for link in found if link.rows.num_columns} == {("s",)}


def test_passes_come_one_after_the_other() -> None:
    found = links(source().repeat(2).batch(60))
    assert len(found) == 2 * TASKS
    assert [link.rows.num_rows for link in found[8:12]] == [120, 60, 120, 120], (
        "a batch may span passes"
    )


def test_an_epoch_is_whole_when_its_last_task_is_there() -> None:
    turn = Turn(0, 3, last=False)
    assert [turn.whole(epoch) for epoch in (2, 3, 4)] == [True, False, False]
    assert Turn(0, 3, last=True).whole(3)


def test_a_feed_starves_where_more_would_come() -> None:
    feed = Played([Piece(0, 0)], whole=False)
    outcome = feed.next()
    assert outcome is not None
    assert outcome.value == [Piece(0, 0)]
    with pytest.raises(StarvedError):
        feed.next()
    assert Played([], whole=True).next() is None
