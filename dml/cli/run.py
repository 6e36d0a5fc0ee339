"""The command ``dml run``: iterate a pipeline, show progress, save positions, summarize."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import click
import numpy as np

from dml.base.amounts import bytes_text, count_text, seconds_text
from dml.cli.output import Output, guest_output, json_option
from dml.cli.target import Pipeline, Position, load
from dml.errors import DmlError, PlanError, ResumeMismatchError
from dml.fleet.report import operator_grid
from dml.settings import AUTOTUNE, EXECUTORS, parse_bytes

MAX_BYTES: Final = 64 << 20
"""A state is a few kilobytes; a larger file is no state, and is not read into memory."""


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Replace the file ``path`` by ``state``; a crash leaves either the old state or the new one.

    Raise DmlError if the file cannot be written; the old state then remains.
    """
    text = json.dumps(state, allow_nan=False)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DmlError(
            "the position of the run could not be kept",
            at=str(path),
            why=str(error),
            try_="--checkpoint on a disk with room; the last position that was kept is still valid",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def load_state(path: Path) -> dict[str, Any]:
    """Load a state from ``path``. Raise ResumeMismatchError if the file is no state."""
    size = path.stat().st_size
    try:
        state = json.loads(path.read_text(encoding="utf-8")) if size <= MAX_BYTES else None
    except (ValueError, RecursionError) as error:
        raise _no_state(path, size, f"it is not JSON: {error}") from error
    if not isinstance(state, dict):
        raise _no_state(path, size, "it is not a JSON object")
    return state


def _no_state(path: Path, size: int, why: str) -> ResumeMismatchError:
    return ResumeMismatchError(
        f"{path.name} is not a saved position",
        at=f"{path}, {size} bytes",
        why=why,
        try_="pass a file that --checkpoint wrote, or json.dump(iterator.state_dict(), file)",
    )


def _workers(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == AUTOTUNE:
        return value
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is not a number of at least 1, nor 'auto'")
    return int(value)


def _size(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == AUTOTUNE:
        return value
    try:
        return parse_bytes(int(value) if value.isdecimal() else value)
    except PlanError:
        raise click.BadParameter(f"{value!r} is not a size such as 512MiB, nor 'auto'") from None


def configured(dataset: Pipeline, asked: Mapping[str, Any]) -> Pipeline:
    """Return ``dataset`` with the options in ``asked`` that are not None; other options stay."""
    given = {name: value for name, value in asked.items() if value is not None}
    if "scheduler" in given and given.get("executor", "distributed") != "distributed":
        raise click.UsageError(
            f"--scheduler means --executor distributed, not {given['executor']!r}"
        )
    return dataset.with_options(**given) if given else dataset


SAVE_EVERY_S: Final = 10.0
LINE_S: Final = 10.0
DRAW_S: Final = 0.1
INTERRUPTED: Final = 130
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


class DeliveryProgress(AbstractContextManager["DeliveryProgress"]):
    """A progress display, which is updated after every batch and prints from time to time.

    This base class prints nothing.
    """

    def __exit__(self, *_: object) -> None:
        """Do nothing: nothing was opened, and the closing summary is the last line."""

    def update(self, batches: int, rows: int, size: int, now: float) -> None:
        """Do nothing."""


class Lines(DeliveryProgress):
    """Prints one line per 10 s, or per 10 % of a known total, but never two lines in one second."""

    def __init__(self, log: Callable[[str], None], begin: float, total: int | None = None) -> None:
        self._log, self._begin, self._total = log, begin, total
        self._said_at, self._said_tenths = begin, 0

    def update(self, batches: int, rows: int, size: int, now: float) -> None:
        tenths = batches * 10 // self._total if self._total else 0
        quiet_s = now - self._said_at
        if quiet_s < LINE_S and not (quiet_s >= 1 and tenths > self._said_tenths):
            return
        self._said_at, self._said_tenths = now, tenths
        done = f" ({batches / self._total:.0%})" if self._total else ""
        self._log(f"{now - self._begin:.0f} s{done}  {_figures(batches, rows, size)}")


class Bar(DeliveryProgress):
    """A line on a terminal that is redrawn in place, at most ten times a second."""

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

    def __exit__(self, *_: object) -> None:
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
    """Return the progress display for standard error; ``total`` batches, None if unknown."""
    if quiet:
        return DeliveryProgress()
    return Bar(begin, total) if sys.stderr.isatty() else Lines(log, begin, total)


def _figures(batches: int, rows: int, size: int) -> str:
    return f"{count_text(batches)} batches  {count_text(rows)} rows  {bytes_text(size)}"


@dataclass(slots=True)
class StopSignal:
    """A request to stop, by SIGINT or SIGTERM; the current batch is finished, so none is lost."""

    output: Output
    asked: bool = False
    _before: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.output.log("stopping after this batch; once more to stop at once")


def _may_be_made(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Return ``path``. Raise BadParameter, before the run begins, if its folder is not writable."""
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise click.BadParameter(f"the folder of {str(path)!r} cannot be written")
    return path


@click.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--epoch", type=click.IntRange(min=0), help="Deliver this epoch.")
@click.option("--take", type=click.IntRange(min=0), help="Stop after so many batches.")
@click.option(
    "--checkpoint",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_may_be_made,
    help="Keep the position here while running.",
)
@click.option("--resume", type=EXISTING, help="Go on from a position that was kept.")
@click.option("--hash", "hashed", is_flag=True, help="Also print the hash of what was delivered.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option("--executor", type=click.Choice(EXECUTORS), help="Where the work is done.")
@click.option("--scheduler", metavar="ADDRESS", help="Work on this Dask cluster.")
@click.option(
    "--num-workers", callback=_workers, metavar="N", help='Threads or processes, or "auto".'
)
@click.option(
    "--memory-limit", callback=_size, metavar="SIZE", help='For the whole run, or "auto".'
)
@json_option
@click.pass_obj
def run(
    output: Output,
    /,
    *,
    target: str,
    epoch: int | None,
    take: int | None,
    checkpoint: Path | None,
    resume: Path | None,
    hashed: bool,
    quiet: bool,
    **asked: Any,
) -> int:
    """Iterate over a pipeline and print what it did.

    Batches are made and dropped. The position is saved every 10 seconds and at the end, so that
    --resume delivers exactly the rest; --take N ends early without changing the pipeline.
    --executor, --scheduler, --num-workers and --memory-limit take precedence over the file's
    options.
    """
    dataset = configured(load(target), asked)
    dataset = dataset if epoch is None else dataset.epoch(epoch)
    begin = time.monotonic()
    shown = progress(output.log, begin, take, quiet=quiet)
    with StopSignal(output) as stop, guest_output():
        position = iter(dataset)
        if resume is not None:
            position.load_state_dict(load_state(resume))
        loop = RunLoop(position, begin, shown, stop, checkpoint)
        with closing(loop), shown:
            digest = consume(loop.elements(take), hashed=hashed)
            loop.save()
        records = [dict(each) for each in dataset.stats().records]
    answer = summary(loop, target, status="interrupted" if stop.asked else loop.status)
    answer |= {"epoch": epoch, "stream_hash": digest, "operators": records}
    answer |= {"checkpoint": None if checkpoint is None else str(checkpoint)}
    output.answer(answer, lambda: text(answer))
    return INTERRUPTED if stop.asked else 0


@dataclass(slots=True)
class RunLoop:
    """One pass over an iterator, with progress and saved positions.

    ``batches``, ``rows`` and ``bytes`` were delivered so far, since the clock showed ``begin``;
    ``first_batch_s`` is the seconds until the first batch, None before it.
    """

    position: Position
    begin: float
    shown: DeliveryProgress
    stop: StopSignal
    checkpoint: Path | None
    status: str = "finished"
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    first_batch_s: float | None = None

    def elements(self, take: int | None) -> Iterator[Any]:
        """Yield the pipeline's batches, until its end, ``take`` batches, or a request to stop."""
        saved_at = self.begin
        for count in itertools.count():
            if self.stop.asked or count == take:
                self.status = "stopped"
                return
            try:
                item = next(self.position)
            except StopIteration:
                return
            now = time.monotonic()
            if self.first_batch_s is None:
                self.first_batch_s = now - self.begin
            rows, size = measured(item)
            self.batches, self.rows, self.bytes = count + 1, self.rows + rows, self.bytes + size
            self.shown.update(self.batches, self.rows, self.bytes, now)
            if now - saved_at >= SAVE_EVERY_S:
                saved_at = now
                self.save()
            yield item

    def save(self) -> None:
        """Save the position after the last counted batch, if a file was given for it."""
        if self.checkpoint is not None:
            save_state(self.checkpoint, self.position.state_dict())

    def close(self) -> None:
        """Close the pipeline's iterator, if it can be closed."""
        close = getattr(self.position, "close", None)
        if close is not None:
            close()


def consume(batches: Iterable[Any], *, hashed: bool) -> str | None:
    """Consume all batches; return their stream hash if ``hashed``, else None."""
    if not hashed:
        deque(batches, maxlen=0)
        return None
    # Imported here: only a run with --hash needs it.
    from dml.data.stream_hash import stream_hash  # noqa: PLC0415

    return str(stream_hash(batches))


def measured(item: object) -> tuple[int, int]:
    """Return (rows, bytes) of an element: a batch (dict of arrays of one length), or a row.

    A row whose values are all arrays of one length is taken for a batch, since it looks the same;
    only the counts shown here depend on that.
    """
    if not isinstance(item, Mapping):
        return 1, _bytes(item)
    lengths = {
        len(each) if isinstance(each, np.ndarray) and each.ndim else None for each in item.values()
    }
    rows = lengths.pop() if len(lengths) == 1 else None
    return (1 if rows is None else rows), sum(map(_bytes, item.values()))


def _bytes(value: object) -> int:
    """Return the payload bytes of ``value``; anything but arrays, text and bytes counts as 8."""
    if isinstance(value, np.ndarray):
        return sum(map(_bytes, value.flat)) if value.dtype == object else value.nbytes
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes | bytearray) else 8


def summary(loop: RunLoop, target: str, status: str) -> dict[str, Any]:
    """Return the figures of the whole run; rates are per second of the run, start included."""
    seconds = time.monotonic() - loop.begin
    return {
        "target": target,
        "status": status,
        "batches": loop.batches,
        "rows": loop.rows,
        "bytes": loop.bytes,
        "seconds": seconds,
        "first_batch_s": loop.first_batch_s,
        "rows_per_s": loop.rows / seconds if seconds else None,
        "bytes_per_s": loop.bytes / seconds if seconds else None,
    }


def text(answer: Mapping[str, Any]) -> str:
    """Format the closing summary for people."""
    figures = [
        answer["status"],
        _figures(answer["batches"], answer["rows"], answer["bytes"]),
        seconds_text(answer["seconds"]),
        f"{count_text(answer['rows_per_s'])} rows/s",
        f"{bytes_text(answer['bytes_per_s'])}/s",
    ]
    lines = ["  ".join(figures)]
    lines += operator_grid(answer["operators"]).lines()
    for name in ("checkpoint", "stream_hash"):
        if answer[name] is not None:
            lines.append(f"{name.replace('_', ' ')}  {answer[name]}")
    return "\n".join(lines)
