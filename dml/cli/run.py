"""This file is ``dml run``: iterate a pipeline, show progress, keep its position, sum it up."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
import numpy as np

from dml.cli.options import configured, settings_options
from dml.cli.output import Output, guest_output, json_option
from dml.cli.progress import Progress, progress
from dml.cli.state import load_state, save_state
from dml.cli.target import Pipeline, Position, load
from dml.expr.amounts import bytes_text, count_text, seconds_text
from dml.fleet.report import table_lines

SAVE_EVERY_S: Final = 10.0
INTERRUPTED: Final = 130
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(slots=True)
class Sums:
    """What was delivered so far."""

    begin: float
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    first_batch_s: float | None = None

    def add(self, item: object, now: float) -> None:
        """Count one batch, or one row of a pipeline that is not batched."""
        if self.first_batch_s is None:
            self.first_batch_s = now - self.begin
        rows, size = measured(item)
        self.batches += 1
        self.rows += rows
        self.bytes += size


@dataclass(slots=True)
class Stop:
    """Whether the user asked to stop; a batch in the making is finished first, so none is lost."""

    output: Output
    asked: bool = False
    _before: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Stop:
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
    """A checkpoint that could never be written is refused before the run, not after an hour."""
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise click.BadParameter(f"the folder of {str(path)!r} cannot be written")
    return path


WRITABLE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--epoch", type=click.IntRange(min=0), help="Deliver this epoch.")
@click.option("--take", type=click.IntRange(min=0), help="Stop after so many batches.")
@click.option(
    "--checkpoint",
    type=WRITABLE,
    callback=_may_be_made,
    help="Keep the position here while running.",
)
@click.option("--resume", type=EXISTING, help="Go on from a position that was kept.")
@click.option("--hash", "hashed", is_flag=True, help="Also print the hash of what was delivered.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@settings_options
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

    Batches are made and dropped. The position is kept every 10 seconds and at the end, so that
    --resume delivers exactly the rest; --take N ends early without changing the pipeline.
    --executor, --scheduler, --num-workers and --memory-limit go before what the file sets.
    """
    dataset = configured(load(target), asked)
    dataset = dataset if epoch is None else dataset.epoch(epoch)
    sums = Sums(time.monotonic())
    shown = progress(output.log, sums.begin, take, quiet=quiet)
    with Stop(output) as stop, guest_output():
        position = iter(dataset)
        if resume is not None:
            position.load_state_dict(load_state(resume))
        loop = Loop(position, sums, shown, stop, checkpoint)
        with closing(loop), shown:
            digest = consume(loop.batches(take), hashed=hashed)
            loop.save()
        records = operator_records(dataset)
    answer = summary(sums, target, status="interrupted" if stop.asked else loop.status)
    answer |= {"epoch": epoch, "stream_hash": digest, "operators": records}
    answer |= {"checkpoint": None if checkpoint is None else str(checkpoint)}
    output.answer(answer, lambda: text(answer))
    return INTERRUPTED if stop.asked else 0


@dataclass(slots=True)
class Loop:
    """One pass over an iterator, with progress and saved positions."""

    position: Position
    sums: Sums
    shown: Progress
    stop: Stop
    checkpoint: Path | None
    status: str = "finished"
    _saved_at: float = 0.0

    def batches(self, take: int | None) -> Iterator[Any]:
        """What the pipeline delivers, until its end, ``take``, or the user's wish."""
        self._saved_at = self.sums.begin
        for count in itertools.count():
            if self.stop.asked or count == take:
                self.status = "stopped"
                return
            try:
                item = next(self.position)
            except StopIteration:
                return
            now = time.monotonic()
            self.sums.add(item, now)
            self.shown.update(self.sums.batches, self.sums.rows, self.sums.bytes, now)
            if now - self._saved_at >= SAVE_EVERY_S:
                self._saved_at = now
                self.save()
            yield item

    def save(self) -> None:
        """Keep the position of everything counted so far."""
        if self.checkpoint is not None:
            save_state(self.checkpoint, self.position.state_dict())

    def close(self) -> None:
        """Tell the pipeline that nobody will ask for more."""
        close = getattr(self.position, "close", None)
        if close is not None:
            close()


def consume(batches: Iterable[Any], *, hashed: bool) -> str | None:
    """Go through all batches; their stream hash where it is wanted."""
    if not hashed:
        deque(batches, maxlen=0)
        return None
    # Imported here: what ships for tests is not part of a run that nobody hashes.
    from dml.testing.stream_hash import stream_hash  # noqa: PLC0415

    return str(stream_hash(batches))


def measured(item: object) -> tuple[int, int]:
    """(rows, bytes) of what an iterator gave: a dict of arrays with one length, or one row.

    One row whose values are all arrays of one length is taken for a batch: nothing tells them
    apart from outside, and only the counts shown here depend on it.
    """
    if not isinstance(item, Mapping):
        return 1, _bytes(item)
    lengths = {
        len(each) if isinstance(each, np.ndarray) and each.ndim else None for each in item.values()
    }
    rows = lengths.pop() if len(lengths) == 1 else None
    return (1 if rows is None else rows), sum(map(_bytes, item.values()))


def _bytes(value: object) -> int:
    """Bytes of a value's payload; what is not an array, text or bytes counts as one number."""
    if isinstance(value, np.ndarray):
        return sum(map(_bytes, value.flat)) if value.dtype == object else value.nbytes
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes | bytearray) else 8


def operator_records(dataset: Pipeline) -> list[dict[str, Any]]:
    """What the run recorded of each operator."""
    records: Sequence[Mapping[str, Any]] = dataset.stats().records
    return [dict(each) for each in records]


def summary(sums: Sums, target: str, status: str) -> dict[str, Any]:
    """Figures of the whole run; rates are per second of the whole run, start included."""
    seconds = time.monotonic() - sums.begin
    return {
        "target": target,
        "status": status,
        "batches": sums.batches,
        "rows": sums.rows,
        "bytes": sums.bytes,
        "seconds": seconds,
        "first_batch_s": sums.first_batch_s,
        "rows_per_s": sums.rows / seconds if seconds else None,
        "bytes_per_s": sums.bytes / seconds if seconds else None,
    }


def text(answer: Mapping[str, Any]) -> str:
    """The closing summary for people."""
    figures = [
        answer["status"],
        f"{count_text(answer['batches'])} batches",
        f"{count_text(answer['rows'])} rows",
        bytes_text(answer["bytes"]),
        seconds_text(answer["seconds"]),
        f"{count_text(answer['rows_per_s'])} rows/s",
        f"{bytes_text(answer['bytes_per_s'])}/s",
    ]
    lines = ["  ".join(figures)]
    lines += table_lines(answer["operators"])
    for name in ("checkpoint", "stream_hash"):
        if answer[name] is not None:
            lines.append(f"{name.replace('_', ' ')}  {answer[name]}")
    return "\n".join(lines)
