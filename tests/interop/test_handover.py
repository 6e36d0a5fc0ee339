"""What all frameworks get: converted elements, epochs one after the other, positions."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

import dml
from dml.errors import PlanError
from dml.interop.handover import Handover, batched


def pipeline() -> dml.Dataset:
    made = dml.range(100, atom_rows=7).shuffle(16).batch(8)
    return made.with_options(telemetry_dir="off")


def lists(element: dict[str, Any]) -> dict[str, Any]:
    return {name: values.tolist() for name, values in element.items()}


def wanted(epoch: int) -> list[dict[str, Any]]:
    return [lists(batch) for batch in pipeline().epoch(epoch)]


def test_every_iteration_is_the_next_epoch() -> None:
    dataset = Handover(pipeline(), lists)
    assert [list(dataset) for _ in range(3)] == [wanted(epoch) for epoch in range(3)]


@pytest.mark.parametrize("taken", [0, 1, 5, 13])
def test_a_state_gives_what_was_not_received(taken: int) -> None:
    dataset = Handover(pipeline(), lists)
    list(dataset)
    run = iter(dataset)
    before = [next(run) for _ in range(taken)]
    state = json.loads(json.dumps(dataset.state_dict()))
    other = Handover(pipeline(), lists)
    other.load_state_dict(state)
    assert before + list(other) == wanted(1)
    assert list(other) == wanted(2)


def test_what_is_pickled_goes_on_where_its_next_iteration_would() -> None:
    dataset = Handover(pipeline(), lists)
    dataset.load_state_dict(dataset.state_dict())
    assert list(pickle.loads(pickle.dumps(dataset))) == wanted(0)


def test_ranks_are_not_batched_again() -> None:
    part = pipeline().streaming_split(2)[0]
    assert batched(part, None, drop_last=False) is part
    with pytest.raises(PlanError, match="of one rank of a split"):
        batched(part, 3, drop_last=False)
