"""This file runs several pipelines in lockstep, in the caller's thread: each goes where rows wait.

Every pipeline has a *receiver*: rows in memory, or files on their way. What fails ends by itself;
the error that the caller gets is that of the first pipeline that would fail if they ran one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from dml.errors import DmlError, UDFError
from dml.exec.formats import Format
from dml.exec.staging import located, refused
from dml.exec.stream import Streaming
from dml.exec.tables import record_batches
from dml.exec.tee import Taps
from dml.exec.write import Cuts, Filling


class Receiver(Protocol):
    """Takes the rows of one run, and makes something of them."""

    def begin(self, run: Streaming, ahead_bytes: int) -> None:
        """The rows of ``run`` will come, from the first on; forget others that came before."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Some rows."""

    def end(self) -> Any:
        """What became of them."""

    def abandon(self) -> None:
        """No more will come, and what came is not wanted."""


class Rows:
    """Rows as an Arrow table."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.run: Streaming | None = None

    def begin(self, run: Streaming, _ahead_bytes: int) -> None:
        """Forget what there is."""
        self.run, self.batches = run, []

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep them."""
        self.batches.append(batch)

    def end(self) -> pa.Table:
        """All of them."""
        if self.batches or self.run is None:
            return pa.Table.from_batches(self.batches)
        return pa.Table.from_batches([], schema=self.run.plan.schema.to_arrow())

    def abandon(self) -> None:
        """Let go of them."""
        self.batches = []


@dataclasses.dataclass(eq=False)
class Folder:
    """Rows as files in ``folder``, which is to be ``path``; ``cuts`` says when they end."""

    path: str
    folder: Path
    form: Format
    cuts: Callable[[int], Cuts]
    filling: Filling | None = None

    def begin(self, run: Streaming, ahead_bytes: int) -> None:
        """An empty folder."""
        self.abandon()
        for each in self.folder.iterdir():
            each.unlink()
        self.filling = Filling(run, self.folder, self.form, self.cuts(ahead_bytes))

    def add(self, batch: pa.RecordBatch) -> None:
        """Write them; SourceError for what the disk refuses."""
        if self.filling is not None:
            try:
                self.filling.add(batch)
            except OSError as error:
                raise refused(error, self._shown) from error

    def end(self) -> Any:
        """What was written."""
        if self.filling is None:
            return None
        try:
            return self.filling.end(self.path)
        except OSError as error:
            raise refused(error, self._shown) from error

    @property
    def _shown(self) -> Path:
        return self.folder if "://" in self.path else located(self.path)

    def abandon(self) -> None:
        """Let go of the file at hand."""
        if self.filling is not None:
            self.filling.abandon()
        self.filling = None


@dataclasses.dataclass(eq=False)
class Member:
    """One of several runs, by its number among all: what runs, and who receives its rows.

    ``alone`` makes the same run with nobody beside it. ``called`` says that it calls a function
    that is not proven pure, ``once`` that it calls one that is declared impure.
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
        """Its rows."""
        self.receiver.begin(self.run, self.ahead_bytes)
        return record_batches(self.run, self.epoch)

    def by_itself(self, error: DmlError) -> Any:
        """What comes of it when it runs alone: an error may be one of running together only.

        It is not, and raised as it is, if a function raised it that must not be called again.
        """
        if self.once or (self.called and isinstance(error, UDFError)):
            raise error
        self.run, self.ahead_bytes = self.alone()
        for batch in self.begin():
            self.receiver.add(batch)
        return self.receiver.end()


class Lockstep:
    """Members that share something, run together to the end of the last of them."""

    def __init__(self, members: Sequence[Member], taps: Taps) -> None:
        self.taps = taps
        self.live = {member.number: member for member in members}
        self.rows = {member.number: member.begin() for member in members}
        self.done: dict[int, Any] = {}
        self.failed: dict[int, DmlError] = {}
        self.last = -1

    def run(self) -> None:
        """Until nothing is left to do."""
        try:
            while self.live:
                self._advance(self._next())
        finally:
            for number in list(self.live):
                self._leave(number)

    def _next(self) -> int:
        """Where most waits; of equals, the one after the last."""
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
        """One is over: nothing is kept for it any more."""
        self.rows.pop(number).close()
        self.taps.leave(number)
        del self.live[number]


def outcomes(groups: Sequence[tuple[Sequence[Member], Taps]]) -> dict[int, Any]:
    """What came of each member of ``groups``, by its number; the error of the first that fails."""
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
