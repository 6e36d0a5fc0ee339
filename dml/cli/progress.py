"""Progress of a run: a bar on a terminal, else a log line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, Self

from dml.base.amounts import bytes_text, count_text

LINE_S: Final = 10.0
DRAW_S: Final = 0.1


class DeliveryProgress(AbstractContextManager["DeliveryProgress"], Protocol):
    """Called after every batch; decides by itself when to print."""

    def update(self, batches: int, rows: int, size: int, now: float) -> None: ...


class Silent:
    """Prints nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no resource was opened."""

    def update(self, batches: int, rows: int, size: int, now: float) -> None:
        """Do nothing."""


class Lines:
    """One line per 10 seconds, or per 10 % where the end is known (but never two in a second)."""

    def __init__(self, log: Callable[[str], None], begin: float, total: int | None = None) -> None:
        self._log, self._begin, self._total = log, begin, total
        self._said_at, self._said_tenths = begin, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the closing summary is the last line."""

    def update(self, batches: int, rows: int, size: int, now: float) -> None:
        tenths = batches * 10 // self._total if self._total else 0
        quiet_s = now - self._said_at
        if quiet_s < LINE_S and not (quiet_s >= 1 and tenths > self._said_tenths):
            return
        self._said_at, self._said_tenths = now, tenths
        done = f" ({batches / self._total:.0%})" if self._total else ""
        self._log(f"{now - self._begin:.0f} s{done}  {_figures(batches, rows, size)}")


class Bar:
    """A live line on a terminal, drawn at most ten times a second."""

    def __init__(self, begin: float, total: int | None = None) -> None:
        # Imported here: rich costs 34 ms, and a run in a batch job has no terminal.
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._shown = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
        self._task = self._shown.add_task("waiting for the first batch", total=total)
        self._drawn_at = begin

    def __enter__(self) -> Self:
        self._shown.start()
        self._shown.refresh()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._shown.stop()

    def update(self, batches: int, rows: int, size: int, now: float) -> None:
        if now - self._drawn_at < DRAW_S:
            return
        self._drawn_at = now
        figures = _figures(batches, rows, size)
        self._shown.update(self._task, completed=batches, description=figures, refresh=True)


def progress(
    log: Callable[[str], None], begin: float, total: int | None, *, quiet: bool
) -> DeliveryProgress:
    """Return the progress display for standard error; ``total`` batches, if known."""
    if quiet:
        return Silent()
    return Bar(begin, total) if sys.stderr.isatty() else Lines(log, begin, total)


def _figures(batches: int, rows: int, size: int) -> str:
    return f"{count_text(batches)} batches  {count_text(rows)} rows  {bytes_text(size)}"
