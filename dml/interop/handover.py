"""A pipeline is handed over to a framework: elements are converted, positions saved and restored.

class Tensors(Handover):          # for one framework
    ...
dataset = Tensors(ds, convert)    # each iteration is the next epoch
dataset.state_dict()              # the position of the last iteration
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from dml.errors import PlanError

Element = dict[str, Any]
Convert = Callable[[Element], Element]


class Resumable(Iterator[Element], Protocol):
    """An iterator over elements, in order, whose state can be saved and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the current position."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position."""


class ConvertedElements(Iterator[Element]):
    """An iteration over a dataset that converts each element on demand."""

    def __init__(self, elements: Resumable, convert: Convert) -> None:
        self._elements, self._convert = elements, convert

    def __next__(self) -> Element:
        return self._convert(next(self._elements))

    def where(self) -> dict[str, Any]:
        """Return the state after the last element received."""
        return self._elements.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._elements.load_state_dict(state)


class Handover:
    """The elements of ``source`` after ``convert``; every iteration is the next epoch.

    ``state_dict()`` returns the position of the last iteration, as the training loop received it,
    and ``load_state_dict`` makes the next iteration continue there.
    """

    def __init__(self, source: Any, convert: Convert) -> None:
        super().__init__()
        self.source, self.convert = source, convert
        self._now: ConvertedElements | None = None
        self._next: ConvertedElements | None = None

    def __getstate__(self) -> Any:
        """Return the attributes without iterations, and the position of the next one, or None."""
        coming = None if self._next is None else self._next.where()
        return {**self.__dict__, "_now": None, "_next": None}, coming

    def __setstate__(self, saved: Any) -> None:
        kept, coming = saved
        self.__dict__.update(kept)
        if coming is not None:
            self.load_state_dict(coming)

    def __iter__(self) -> Iterator[Element]:
        self._now, self._next = self._next or self._begun(), None
        return self._now

    def _begun(self) -> ConvertedElements:
        return ConvertedElements(iter(self.source), self.convert)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the last iteration; before the first one, the start position."""
        here = self._next or self._now
        if here is None:
            here = self._next = self._begun()
        return here.where()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue from ``state``."""
        self._next = self._next or self._begun()
        self._next.load(state)


def batched(source: Any, batch_size: int | None, *, drop_last: bool) -> Any:
    """Return ``source`` in batches of ``batch_size``; unchanged for None."""
    if batch_size is None:
        return source
    if not hasattr(source, "batch"):
        raise PlanError(
            f"batch_size={batch_size!r} of one rank of a split",
            why="ranks are dealt whole elements, which are made before",
            try_=f".batch({batch_size!r}).streaming_split(...)",
        )
    return source.batch(batch_size, drop_last=drop_last)
