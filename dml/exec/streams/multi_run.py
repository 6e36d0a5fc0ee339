"""Run several pipelines that share work, in turns, in the caller's thread.

The next turn goes to the pipeline with most waiting entries. Every pipeline has a *receiver*, which
collects its rows in memory or writes them to files. If a pipeline fails, the others continue. The
caller gets the error of the first pipeline that would fail if they ran one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from dml.errors import DmlError, UDFError
from dml.exec.delivery.tables import record_batches
from dml.exec.streams.stream import Streaming
from dml.exec.streams.tee import Taps
from dml.exec.writing.file_writer import Cuts, FolderWriter
from dml.io.files.staged_folder import located, refused
from dml.io.files.write_formats import FileFormat


class TableReceiver:
    """Receives rows as an Arrow table."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.run: Streaming | None = None

    def begin(self, run: Streaming, _ahead_bytes: int) -> None:
        """Discard the rows of earlier runs."""
        self.run, self.batches = run, []

    def add(self, batch: pa.RecordBatch) -> None:
        """Append the rows of ``batch``."""
        self.batches.append(batch)

    def end(self) -> pa.Table:
        """Return the table of all rows."""
        if self.batches or self.run is None:
            return pa.Table.from_batches(self.batches)
        return pa.Table.from_batches([], schema=self.run.plan.schema.to_arrow())

    def abandon(self) -> None:
        """Discard the rows."""
        self.batches = []


@dataclasses.dataclass(eq=False)
class FileReceiver:
    """Writes rows to files in ``folder``, for a write to ``path``; ``cuts`` returns file sizes."""

    path: str
    folder: Path
    form: FileFormat
    cuts: Callable[[int], Cuts]
    filling: FolderWriter | None = None

    def begin(self, run: Streaming, ahead_bytes: int) -> None:
        """Remove all files from the folder."""
        self.abandon()
        for each in self.folder.iterdir():
            each.unlink()
        self.filling = FolderWriter(run, self.folder, self.form, self.cuts(ahead_bytes))

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the rows of ``batch``; raise SourceError if the disk refuses them."""
        if self.filling is not None:
            try:
                self.filling.add(batch)
            except OSError as error:
                raise refused(error, self._location) from error

    def end(self) -> Any:
        """Return the result of the write; None if it was abandoned."""
        if self.filling is None:
            return None
        try:
            return self.filling.end(self.path)
        except OSError as error:
            raise refused(error, self._location) from error

    @property
    def _location(self) -> Path:
        return self.folder if "://" in self.path else located(self.path)

    def abandon(self) -> None:
        """Close the current file without finishing it."""
        if self.filling is not None:
            self.filling.abandon()
        self.filling = None


Receiver: TypeAlias = TableReceiver | FileReceiver


@dataclasses.dataclass(eq=False)
class RunMember:
    """One of several runs, number ``number`` among all, with the receiver of its rows.

    ``alone`` returns the same run without shared streams, and its ``ahead_bytes``. ``called`` is
    True if the run calls a function that is not proven pure, ``once`` if one is declared impure.
    """

    number: int
    run: Streaming
    ahead_bytes: int
    receiver: Receiver
    alone: Callable[[], tuple[Streaming, int]]
    epoch: int
    called: bool
    once: bool

    def begin(self) -> Generator[pa.RecordBatch, None, None]:
        """Prepare the receiver, and return the rows of the run."""
        self.receiver.begin(self.run, self.ahead_bytes)
        return record_batches(self.run, self.epoch)

    def by_itself(self, error: DmlError) -> Any:
        """Run again without shared streams, which may have caused ``error``; return the result.

        Raise ``error`` if the run has a function that must not be called again.
        """
        if self.once or (self.called and isinstance(error, UDFError)):
            raise error
        self.run, self.ahead_bytes = self.alone()
        for batch in self.begin():
            self.receiver.add(batch)
        return self.receiver.end()


class Lockstep:
    """The runs (``members``) that share a stream, advanced together until the last of them ends."""

    def __init__(self, members: Sequence[RunMember], taps: Taps) -> None:
        self.taps = taps
        self.live = {member.number: member for member in members}
        self.rows = {member.number: member.begin() for member in members}
        self.done: dict[int, Any] = {}
        self.failed: dict[int, DmlError] = {}
        self.last = -1

    def run(self) -> None:
        """Run until all members have ended."""
        try:
            while self.live:
                self._advance(self._next())
        finally:
            for number in list(self.live):
                self._leave(number)

    def _next(self) -> int:
        """Return the number of the member with most waiting entries; ties alternate."""
        waiting = {number: self.taps.waiting(number) for number in self.live}
        most = max(waiting.values())
        ready = [number for number in sorted(waiting) if waiting[number] == most]
        return next((number for number in ready if number > self.last), ready[0])

    def _advance(self, number: int) -> None:
        member = self.live[number]
        self.last = number
        try:
            batch = next(self.rows[number], None)
            if batch is not None:
                member.receiver.add(batch)
                return
            self.done[number] = member.receiver.end()
        except DmlError as error:
            self.failed[number] = error
        self._leave(number)

    def _leave(self, number: int) -> None:
        """End a member; from now on, shared streams keep no entries for it."""
        self.rows.pop(number).close()
        self.taps.leave(number)
        del self.live[number]


def outcomes(groups: Sequence[tuple[Sequence[RunMember], Taps]]) -> dict[int, Any]:
    """Return {number of a member: its result} for all members of ``groups``.

    A failed member runs again alone. If that fails, too, raise the error of the failed member with
    the lowest number.
    """
    done: dict[int, Any] = {}
    failed: dict[int, DmlError] = {}
    members = {member.number: member for group, _ in groups for member in group}
    try:
        for group, taps in groups:
            lockstep = Lockstep(group, taps)
            lockstep.run()
            done |= lockstep.done
            failed |= lockstep.failed
        for number in sorted(failed):
            done[number] = members[number].by_itself(failed[number])
    except BaseException:
        for member in members.values():
            member.receiver.abandon()
        raise
    return done
