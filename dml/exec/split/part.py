"""This file holds what a training loop sees of a split: the share of one rank, as an iterable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import is_finalizing
from typing import Any, Protocol

from dml.errors import PlanError
from dml.exec.making import Element


class Seated(Protocol):
    """A rank's place in one run, here or in another process."""

    step: int

    @property
    def epoch(self) -> int:
        """The epoch of the run."""

    def draw(self) -> Element:
        """The next element; StopIteration at the end."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the common step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""

    def leave(self) -> None:
        """The iterator was dropped; must not wait."""

    def close(self) -> None:
        """Give up the rest."""


class Share(Iterator[Element]):
    """Iterator over one rank's elements of one epoch, resumable like that of a dataset."""

    def __init__(self, seat: Seated) -> None:
        self._seat = seat

    def __iter__(self) -> Share:
        return self

    def __next__(self) -> Element:
        return self._seat.draw()

    @property
    def epoch(self) -> int:
        """The epoch that all ranks are in."""
        return self._seat.epoch

    @property
    def step(self) -> int:
        """Elements that this rank has received."""
        return self._seat.step

    def state_dict(self) -> dict[str, Any]:
        """Where all ranks are after as many steps as this one has received: plain JSON data."""
        return self._seat.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of any rank of a split into any number of ranks.

        Every rank must load one, all of the same step: ResumeMismatchError otherwise.
        """
        self._seat.load_state_dict(state)

    def close(self) -> None:
        """Give up the rest of this rank's share of the epoch; the other ranks go on."""
        self._seat.close()

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        if "_seat" in self.__dict__ and not ends():  # as in ``dml.exec.deliver``
            self._seat.leave()


class Part:
    """The share of one rank: each iteration of it is the rank's part of the next epoch.

    ``state_dict`` and ``load_state_dict`` are about the iteration at hand, and before the first one
    about that which comes next.
    """

    def __init__(
        self,
        rank: int,
        n: int,
        take: Callable[[], Seated],
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.n = rank, n
        self._take, self._finish = take, finish
        self._seat: Seated | None = None
        self._next: Share | None = None

    def __iter__(self) -> Share:
        share, self._next = self._next or self._begun(), None
        return share

    def _begun(self) -> Share:
        self._seat = self._take()
        return Share(self._seat)

    def _here(self) -> Seated:
        if self._seat is None:
            self._next = self._begun()
        assert self._seat is not None  # noqa: S101 - it has just been taken
        return self._seat

    def state_dict(self) -> dict[str, Any]:
        """Where all ranks are after as many steps as this one has received: plain JSON data."""
        return self._here().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from ``state``; every rank must load one."""
        if self._next is None:
            self._next = self._begun()
        self._next.load_state_dict(state)

    def close(self) -> None:
        """Give up what is left of the iteration at hand, and leave the split."""
        if self._seat is not None:
            self._seat.close()
        self._finish()

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise PlanError(
            "a rank of a split cannot be sent to another process",
            why="all ranks of this split draw on one run, which lives here",
            try_='ds.streaming_split(n, job_name="train") in every process',
        )

    def __repr__(self) -> str:
        return f"Part(rank={self.rank}, n={self.n})"
