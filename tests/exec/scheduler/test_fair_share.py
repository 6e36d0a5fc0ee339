"""Test fair turns: a turn that ends at once is not begun again at the same time."""

from __future__ import annotations

from dml.exec.scheduler.fair_share import FairTurns
from dml.exec.scheduler.policy import Demand, Load
from dml.exec.scheduler.ready_queue import Waiting

TOTAL = {"cpu": 4.0}


def test_a_turn_that_ends_at_once_is_not_begun_again_at_that_moment() -> None:
    small, large = Demand(), Demand(resources=(("cpu", 4.0),))
    loads = [Load(each, each.parallel(TOTAL)) for each in (small, large)]
    turns = FairTurns(loads, [Waiting(load.ready, load.parked) for load in loads])
    loads[1].ready.append((0, 0))
    loads[0].samples, able = 1, {1: {"cpu"}}
    for now in (1.0, 2.0):
        turns.review(able, TOTAL, now)
        turns.whose.clear()
        assert turns.idle(able, TOTAL, {"cpu": 2.0})
        turns.review({}, TOTAL, now)
        assert not turns.whose
        assert not turns.idle(able, TOTAL, {"cpu": 2.0}), "at the same time, with nothing started"
        turns.started(0)
        assert turns.idle(able, TOTAL, {"cpu": 2.0})
