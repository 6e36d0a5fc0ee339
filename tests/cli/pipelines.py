"""A replacement for ``Dataset`` with the methods that the command line uses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dml.api.run_profile import RunProfile
from dml.errors import ResumeMismatchError
from dml.events import OperatorTotals
from dml.fleet.report import RunTable, run_table


@dataclass
class FakeDataset:
    """Batches of four numbers that depend on epoch and position alone."""

    batches: int = 5
    number: int = 0
    at_batch: Callable[[int], object] = abs
    delivered: list[int] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def __iter__(self) -> FakePosition:
        return FakePosition(self)

    def epoch(self, k: int) -> FakeDataset:
        return replace(self, number=k)

    def explain(self, stage: str | None = None, *, analyze: bool = False) -> str:
        sys.stdout.write("noise of the user's code\n")
        return f"tree of {stage}, analyzed: {analyze}"

    def fingerprint(self, domain: str = "result", *, explain: bool = False) -> str:
        return f"{domain}-parts" if explain else f"{domain}-digest"

    def with_options(self, **options: Any) -> FakeDataset:
        self.options.update(options)
        return self

    def profile(
        self, train: Callable[[Any], Any] | None = None, *, upper_bound: bool = False
    ) -> RunProfile:
        if train is not None:
            train(iter(self))
        bound = 0.5 if upper_bound else None
        return RunProfile(5, 5.0, 1.0, 0.25, bound, "Map (90% of 2 cores)", train is not None)

    def stats(self) -> RunTable:
        return run_table([OperatorTotals(run="r", operator="Map", rows_out=4, seconds=1.0)])


@dataclass
class FakePosition:
    """Where an iteration stands."""

    dataset: FakeDataset
    at: int = 0
    closed: bool = False

    def __iter__(self) -> FakePosition:
        return self

    def __next__(self) -> dict[str, Any]:
        if self.at == self.dataset.batches:
            raise StopIteration
        self.dataset.at_batch(self.at)
        self.at += 1
        self.dataset.delivered.append(self.at)
        return {"x": np.arange(4) + self.at * 10 + self.dataset.number, "y": np.zeros((4, 2), "f4")}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "at" not in state:
            raise ResumeMismatchError("the state has no position", try_="another file")
        self.at = state["at"]

    def close(self) -> None:
        self.closed = True
