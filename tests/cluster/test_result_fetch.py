"""Test that the result of a task is fetched once, even if several threads request it."""

from __future__ import annotations

import concurrent.futures
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dml.cluster.dask_task import ResultFetcher, Ticket
from dml.exec.scheduler.messages import Run

BESIDE_S = 0.2


@pytest.mark.law
def test_two_threads_that_ask_at_once_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    both, future = threading.Barrier(2), concurrent.futures.Future

    def made() -> Any:
        with suppress(threading.BrokenBarrierError):  # nobody else is here
            both.wait(BESIDE_S)
        return future()

    hub = cast("Any", SimpleNamespace(call=begun.append))
    fetching = ResultFetcher(
        hub, begun.append, lambda _ticket, error: error, begun.append, begun.append
    )
    ticket = Ticket(0, "a", [Run((0,), 0, 0, "")])
    monkeypatch.setattr(concurrent.futures, "Future", made)
    asked = [threading.Thread(target=fetching.start, args=(ticket,)) for _ in range(2)]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join()
    assert len(begun) == 1
    assert ticket.fetched is fetching.start(ticket)
