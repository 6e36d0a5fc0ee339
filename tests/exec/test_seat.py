"""This file tests seats: what is left behind when they go, at whatever moment that is."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from dml.exec import seat
from dml.exec.desk import Desk
from dml.exec.seat import Freight, Seat

SOON_S = 20.0  # only a hang takes so long


@pytest.mark.law
def test_a_seat_that_is_collected_while_another_is_taken_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def desk() -> Desk:
        gc.collect()  # it may begin wherever something is made
        return Desk()

    def take() -> None:
        knot: list[Any] = [Seat(Freight("first", b"job", ()))]
        knot.append(knot)
        del knot
        monkeypatch.setattr(seat, "Desk", desk)
        Seat(Freight("second", b"job", ()))

    monkeypatch.setattr(Desk, "close", lambda _self, run: closed.append(run))
    worker = threading.Thread(target=take, daemon=True)
    gc.disable()
    try:
        worker.start()
        worker.join(SOON_S)
    finally:
        gc.enable()
    assert not worker.is_alive()
    assert closed == ["first", "second"]
