"""Test which tasks are resubmitted after workers became silent or were lost."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cluster.dask_task import Ticket, touched
from dml.exec.process.task_runner import SliceOrder
from dml.exec.scheduler.messages import Run
from dml.exec.tasks.slices import NotSent

STATES = ("pending", "finished", "lost")


class Future(NamedTuple):
    key: int
    status: str


@st.composite
def tickets(draw: st.DrawFn) -> list[Ticket]:
    """Some on which others work, in the order of their numbers; seats have keys below zero."""
    made: list[Ticket] = []
    for number in range(draw(st.integers(1, 12))):
        ticket = Ticket(number, "a", [Run((number,), 0, 0, "")])
        given_back = draw(st.integers(0, 5)) == 0
        ticket.future = None if given_back else Future(number, draw(st.sampled_from(STATES)))
        ticket.seat = draw(st.integers(-3, -1))
        ticket.sources = draw(st.lists(st.sampled_from(made), max_size=3)) if made else []
        made.append(ticket)
    return made


def needs(ticket: Ticket, lost: set[Any]) -> bool:
    """By the law, from its end: what is lost, or under way and needs what is lost."""
    if ticket.future is None:
        return False
    if ticket.future.key in lost:
        return True
    waits = ticket.seat in lost or any(needs(each, lost) for each in ticket.sources)
    return ticket.future.status in ("pending", "lost") and waits


@pytest.mark.law
@given(tickets(), st.data())
def test_all_that_needs_what_is_lost_is_done_again_in_order(
    made: list[Ticket], data: st.DataObject
) -> None:
    keys = st.sets(st.integers(-3, len(made)))
    doing, having = data.draw(keys), data.draw(keys)
    found = [ticket.number for ticket in touched(reversed(made), doing, having)]
    assert found == sorted(found)
    assert found == [each.number for each in made if needs(each, doing | having)]


def test_what_is_given_back_meanwhile_is_left_alone() -> None:
    first, second = (Ticket(number, "a", [Run((number,), 0, 0, "")]) for number in range(2))
    first.future, second.future = Future(0, "pending"), Future(1, "pending")
    looked = touched([first, second], {0, 1}, set())
    assert next(looked) is first
    second.future = None
    assert not list(looked)


def test_the_argument_of_a_parked_generator_is_sent_once_and_again_where_it_was_lost() -> None:
    ticket = Ticket(0, "a", [Run((0,), 0, 1, ""), Run((1,), 0, 0, "")])
    ticket.orders = [SliceOrder("run", run, bytes(1000), {}) for run in ticket.runs]
    ticket.parked = {(0,)}
    ticket.tries = 1
    orders = pickle.loads(ticket.written())
    assert [type(each.argument) for each in orders] == [NotSent, bytes]
    ticket.tries = 2
    assert [each.argument for each in pickle.loads(ticket.written())] == [bytes(1000)] * 2
