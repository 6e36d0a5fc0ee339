"""Test sending a job to workers that lack the user's modules, while other workers are lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dml.cluster import job_broadcast as cargo_file
from dml.cluster.job_broadcast import Cargo
from dml.cluster.worker_state import digest


@pytest.fixture
def cargo(monkeypatch: pytest.MonkeyPatch) -> Cargo:
    """One that is written in another way by value."""
    monkeypatch.setattr(cargo_file, "written", lambda _: (b"by name", list[Any]()))
    monkeypatch.setattr(cargo_file, "written_by_value", lambda _: (b"by value", list[Any]()))
    hub: Any = SimpleNamespace(client=None, members={}, direct=True)
    job: Any = np.zeros(1)
    return Cargo(hub, "run", job)


def test_what_a_worker_refused_is_sent_by_value_once(cargo: Cargo) -> None:
    assert asyncio.run(cargo.again(0, refused=digest(b"by name")))
    assert (cargo.load.job, cargo.generation) == (b"by value", 1)
    assert asyncio.run(cargo.again(0, refused=digest(b"by name"))), "as another has seen before"
    assert cargo.generation == 1
    assert not asyncio.run(cargo.again(1, refused=digest(b"by value"))), "it cannot be helped"


def test_a_refusal_of_what_was_sent_before_says_nothing_of_what_is_sent_now(cargo: Cargo) -> None:
    """Dask does old tasks again, elsewhere, when the worker dies that has what they made."""
    asyncio.run(cargo.again(0, refused=digest(b"by name")))
    assert asyncio.run(cargo.again(1, refused=digest(b"by name")))
    assert (cargo.load.job, cargo.generation) == (b"by value", 1)
