"""Test states of a split: they are of one step of all ranks, and others raise an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dml.errors import PlanError, ResumeMismatchError
from dml.exec.delivery.checkpoint import sealed
from dml.ranks.streaming_split import RankShare
from tests.ranks.test_streaming_split import ids, numbers, saved, shares


def test_a_rank_that_never_began_has_the_state_of_the_beginning() -> None:
    parts = numbers(40).epoch(0).streaming_split(2)
    share = iter(parts[1])
    share.close()
    ids(next(parts) for parts in [iter(parts[0])] for _ in range(5))
    state = saved(share)
    assert (state["at"], state["skip"]) == (0, 0)
    again = shares(numbers(40).epoch(0), 1, state)
    assert ids(again[0]) == ids(numbers(40).epoch(0))


def test_a_state_is_small_and_needs_no_waiting() -> None:
    its = shares(numbers(1000, 4), 3)
    next(its[2])
    for share in its:
        assert len(json.dumps(share.state_dict())) < 4096
    assert its[2].state_dict()["skip"] == 0
    assert shares(numbers(1000, 4), 3)[0].state_dict()["at"] == 0


def test_states_of_different_steps_are_refused() -> None:
    ds = numbers(100).epoch(0)
    its = shares(ds, 2)
    next(its[0])
    early = saved(its[0])
    next(its[0])
    late = saved(its[0])
    fresh = [iter(part) for part in ds.streaming_split(2)]
    fresh[0].load_state_dict(early)
    with pytest.raises(ResumeMismatchError, match="another step"):
        fresh[1].load_state_dict(late)
    other = shares(ds.epoch(1), 2)[0]
    next(other)
    with pytest.raises(ResumeMismatchError, match="another epoch"):
        fresh[1].load_state_dict(saved(other))
    same_step = shares(numbers(100).map(dict, fingerprint="x").epoch(0), 2)[0]
    next(same_step)
    with pytest.raises(ResumeMismatchError, match="another pipeline"):
        fresh[1].load_state_dict(saved(same_step))
    with pytest.raises(ResumeMismatchError, match="begins at the start"):
        next(fresh[1])
    assert next(fresh[0])


def test_what_is_no_state_of_this_split_is_refused() -> None:
    ds = numbers(100)
    good = saved(shares(ds, 2)[0])
    for wrong in (None, {}, {**good, "at": 3}, iter(ds).state_dict(), {**good, "split": 2}):
        with pytest.raises(ResumeMismatchError):
            shares(ds, 2, wrong if wrong is not None else {"x": 1})
    with pytest.raises(ResumeMismatchError, match="another pipeline"):
        shares(numbers(99), 2, good)
    started = shares(ds, 2)
    next(started[0])
    with pytest.raises(PlanError, match="cannot go on from a state now"):
        started[1].load_state_dict(saved(shares(ds.epoch(7), 2)[0]))


NOTHING: tuple[Any, ...] = (None, True, -1, -2, 1.5, "1", [1], {}, 10**30)


@pytest.mark.parametrize("field", ["split", "epoch", "at", "skip", "run"])
@pytest.mark.parametrize("value", NOTHING, ids=repr)
def test_a_changed_state_with_a_right_seal_is_refused(field: str, value: Any) -> None:
    """Or it is of the place that it names: the elements taken do not tell where a run stands."""
    ds = numbers(40).epoch(0)
    its = shares(ds, 2)
    next(its[0])
    changed = {**saved(its[0]), field: value}
    del changed["check"]
    state = sealed(changed)
    if (field, value) in [("split", True), ("at", 10**30)]:
        assert [ids(each) for each in shares(ds, 2, state)] == [ids(ds)[2::2], ids(ds)[3::2]]
        return
    with pytest.raises(ResumeMismatchError):
        shares(ds, 2, state)


@pytest.mark.law
def test_a_part_has_the_state_of_its_iteration() -> None:
    ds = numbers(100, 4)
    parts: list[RankShare] = ds.streaming_split(2)
    assert parts[0].state_dict()["at"] == 0
    for part in parts:
        for _ in zip(range(3), part, strict=False):
            pass
    state = saved(parts[1])
    assert (state["at"], state["epoch"]) == (6, 0)
    others: list[RankShare] = numbers(100, 4).streaming_split(2)
    for part in others:
        part.load_state_dict(state)
    whole = ids(ds.epoch(0))
    assert [ids(part) for part in others] == [whole[6::2], whole[7::2]]
    assert [ids(part) for part in others] == [ids(ds.epoch(1))[r::2] for r in range(2)]
