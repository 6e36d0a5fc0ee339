"""Test which workers count as silent, with simulated clocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dml.cluster.worker_monitor import STEP_S, Hub, Silence

STEPS = st.lists(st.floats(0.1, STEP_S), min_size=1, max_size=30)


@given(STEPS, st.floats(-1e6, 1e6))
def test_who_speaks_is_never_silent(steps: list[float], ahead: float) -> None:
    silence, now = Silence(), 1000.0
    for step in steps:
        now += step
        silence.look({"a": now + ahead, "b": now + ahead - 0.4}, now)
        assert silence.longer_than(0.5) == set()


@given(STEPS, st.floats(-1e6, 1e6), st.booleans())
def test_silence_adds_up(steps: list[float], ahead: float, alone: bool) -> None:
    silence, now, passed = Silence(), 1000.0, 0.0
    silence.look({"a": 1000.0 + ahead}, now)
    for step in steps:
        now, passed = now + step, passed + step
        others = {} if alone else {"b": now + ahead}
        silence.look({"a": 1000.0 + ahead, **others}, now)
        assert silence.longer_than(passed + 0.01) == set()
        assert silence.longer_than(passed - 0.01) == {"a"}


def test_who_looks_may_have_slept() -> None:
    silence = Silence()
    for now in (0.0, 1.0, 3600.0):
        silence.look({"a": 5.0}, now)
    assert silence.longer_than(STEP_S + 1.01) == set()
    silence.look({"a": 6.0}, 3601.0)
    assert silence.longer_than(0.0) == set()


def test_a_late_comer_finds_out_at_once() -> None:
    silence = Silence()
    silence.look({"a": 5.0, "b": 95.0}, 7.0)
    assert silence.longer_than(89.0) == {"a"}


def test_who_is_silent_at_the_end_of_a_run_is_so_at_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, now = Hub(cast("Any", SimpleNamespace(id="none"))), 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    run: Any = type("Run", (), {"silent_s": 3.0})()

    def look(**heard: float) -> set[str]:
        hub._listen({worker: {"last_seen": at} for worker, at in heard.items()})
        return hub.silent

    hub.crews.add(run)
    look(a=0.0, b=0.0)
    now = 8.0
    assert look(a=8.0, b=0.0) == {"b"}
    hub.crews.clear()
    now = 60.0
    assert look(a=50.0, b=0.0) == {"b"}, "a was not listened to, b is as it was"
    now = 61.0
    assert look(a=61.0, b=61.0) == set()
