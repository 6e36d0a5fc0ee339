"""The share of one rank is presented to a training loop here, as an iterable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import is_finalizing
from typing import Any, Protocol

from dml.errors import PlanError
from dml.exec.delivery.prefetch import Element


class Seated(Protocol):
    """A rank's seat in one run, here or in another process."""

    step: int

    @property
    def epoch(self) -> int:
        """The epoch of the run."""

    def draw(self) -> Element:
        """Return the next element; StopIteration at the end."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the common step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state."""

    def leave(self) -> None:
        """Note that the iterator was garbage collected; must not wait."""

    def close(self) -> None:
        """Give up the rest of the share."""


class RankElements(Iterator[Element]):
    """Iterates over one rank's elements of one epoch, resumable like the iterator of a dataset."""

    def __init__(self, seat: Seated) -> None:
        self._seat = seat

    def __iter__(self) -> RankElements:
        return self

    def __next__(self) -> Element:
        return self._seat.draw()

    @property
    def epoch(self) -> int:
        """The epoch that all ranks are in."""
        return self._seat.epoch

    @property
    def step(self) -> int:
        """The number of elements that this rank has received."""
        return self._seat.step

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after this rank's number of steps: plain JSON data."""
        return self._seat.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of any rank of a split into any number of ranks.

        Every rank must load one, all of the same step: ResumeMismatchError otherwise.
        """
        self._seat.load_state_dict(state)

    def close(self) -> None:
        """Give up the rest of this rank's share of the epoch; the other ranks go on."""
        self._seat.close()

    def __enter__(self) -> RankElements:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        if "_seat" in self.__dict__ and not ends():  # as in ``dml.exec.delivery.iterator``
            self._seat.leave()


class RankShare:
    """The share of one rank: each iteration over it is the rank's part of the next epoch.

    ``state_dict`` and ``load_state_dict`` apply to the current iteration, and before the first one
    to the next.
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
        self._next: RankElements | None = None

    def __iter__(self) -> RankElements:
        share, self._next = self._next or self._begun(), None
        return share

    def _begun(self) -> RankElements:
        self._seat = self._take()
        return RankElements(self._seat)

    def _here(self) -> Seated:
        if self._seat is None:
            self._next = self._begun()
        assert self._seat is not None  # noqa: S101 - it has just been taken
        return self._seat

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after this rank's number of steps: plain JSON data."""
        return self._here().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume the next iteration from ``state``; every rank must load one."""
        if self._next is None:
            self._next = self._begun()
        self._next.load_state_dict(state)

    def close(self) -> None:
        """Give up the rest of the current iteration, and leave the split."""
        if self._seat is not None:
            self._seat.close()
        self._finish()

    def __enter__(self) -> RankShare:
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
