"""``map_batches`` calls a user's function on groups of rows, each within one atom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from dml.checks import element_count
from dml.data.block import Block, concat
from dml.data.object_values import shown_bytes
from dml.data.schema import Schema
from dml.errors import InternalError, PlanError, UDFError
from dml.expr.facts import Needs, ResumeCost, Rows
from dml.expr.flow import GatherQuota, LocalFlow
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, blamed
from dml.ops.unary import require_rows
from dml.udfs.calling.array_results import all_called, fitted, views
from dml.udfs.calling.batch_arrays import arrays_of
from dml.udfs.calling.data_frames import TABULAR, framed
from dml.udfs.calling.error_policy import RAISE, Skipping

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

MAP_BATCHES = 0x6D61705F67726F75
FORMATS = ("numpy", *TABULAR)
# Rows of a group if ``batch_size`` is None.
GROUP_ROWS = 1024


def atoms_are_gone(below: Node) -> bool:
    """Return True if an operator over ``below`` reads a stream that has no atoms any more.

    Operators that process one row or atom at a time keep the atoms; others do not.
    """
    return not all(step.rows.local for step in below.chain()[1:])


@op
class MapBatches(Skipping):
    """Replaces each group of rows by the dict of arrays, or Arrow table, that ``fn`` returns.

    A group has ``batch_size`` rows (default 1024) of an atom; the last group of an atom may be
    shorter. With ``counted``, if the stream has no atoms, groups are counted from the start of the
    epoch. If the input raises an error at a row of a group, ``fn`` is not called for the group, and
    that error is raised. Rows keep their ids if ``fn`` returns as many rows as the group has;
    otherwise, and if ``fn`` returns an iterator of batches, ids are derived from that of the
    group's first row. Inputs are read-only unless ``writable``. With ``on_error="skip"`` a group
    for which ``fn`` raises is dropped, except for batches that ``fn`` yielded before.
    """

    input: Node
    fn: UserFunction
    batch_size: int | None
    batch_format: str
    writable: bool
    counted: bool
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    states_reads: ClassVar[bool] = True
    gathers: ClassVar[int] = 1
    by_atom = True  # a group may extend over several blocks
    version: ClassVar[int] = 3

    def check(self) -> None:
        """Raise PlanError for a batched input, an invalid size, and an unknown format."""
        super().check()
        try_ = ".map(f) of each batch, or map_batches before .batch()"
        require_rows(self.input, "map_batches", "groups", try_)
        if self.batch_size is not None:
            element_count("map_batches batch_size", self.batch_size, least=1)
        if self.batch_format not in FORMATS:
            raise PlanError(
                f"map_batches has no batch_format {self.batch_format!r}",
                why=f"formats are {', '.join(FORMATS)}",
                try_='batch_format="numpy"',
            )
        if self.writable and self.batch_format != "numpy":
            raise PlanError(
                f"map_batches with writable=True and batch_format={self.batch_format!r}",
                why="tables and data frames are given as they are",
                try_='batch_format="numpy", or leave writable= out',
            )

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """Return ATOMS for groups within atoms, RUNS for groups of the stream."""
        return Rows.RUNS if self.counted else Rows.ATOMS

    @property
    def within_atoms(self) -> bool:  # type: ignore[override]
        """True if groups end where an atom of the source ends."""
        return not self.counted

    @property
    def group_rows(self) -> int:  # type: ignore[override]
        """Return the number of rows of a group, into which the rows of an atom are divided."""
        return self.batch_size or GROUP_ROWS

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming in a stream: a position is saved, one group is repeated."""
        if not self.counted:
            return ResumeCost()
        return ResumeCost(state_bytes=32, work_rows=self.group_rows, work="one run of rows")

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the mapped groups of an atom that is one block."""
        return self.run_atom((block,), at)

    def run_atom(self, blocks: Iterable[Block], at: At) -> Iterator[Block]:
        """Yield the mapped groups of one atom's rows, which may come in several blocks."""
        room = GatherQuota(self, at.hold_bytes)
        gathering = _Gathering(self.group_rows, room)
        for group in gathering.groups(blocks):
            if self.batch_format == "numpy" and (shown := shown_bytes(group)) > room.most_bytes:
                raise room.refused(group.n, shown, "to show as arrays")
            try:
                key, given = MAP_BATCHES + self.level, self._argument(group)
                for made in all_called(self, given, group.ids, key, at):
                    if made.n:
                        yield fitted(self, made, at)
            except UDFError as error:
                raise blamed(error, group.ids, 0) from error.__cause__

    def _argument(self, group: Block) -> Any:
        """Return the rows of ``group`` as the argument of ``fn``, in the format ``batch_format``.

        Changes to the argument never reach the input rows, although Arrow tables, which are
        immutable, and polars frames share memory with these rows.
        """
        if self.batch_format in TABULAR:
            return framed(pa.Table.from_batches([group.to_arrow()]), self.batch_format)
        if not self.writable:
            return views(group)
        own = {id(getattr(column, "values", column)) for column in group.columns}
        arrays = arrays_of(group, nulls="keep")
        return {n: a.copy() if id(a) in own else a for n, a in arrays.items()}

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that maps the stream by groups; raise InternalError unless ``counted``."""
        if not self.counted:
            raise InternalError(f"{self.title()} is given a stream instead of atoms")
        return LocalFlow(partial(self._next_run, at), open_input, epoch, position)

    def _next_run(self, at: At, input_: Flow) -> Iterator[Block] | None:
        """Return the mapped rows of the next group of ``input_``; None at the end of the input."""
        first = input_.pull(self.group_rows)
        return None if first is None else self.run_atom(self._run_of(first, input_), at)

    def _run_of(self, first: Block, input_: Flow) -> Iterator[Block]:
        """Yield the blocks of the group that begins with ``first``."""
        yield first
        missing = self.group_rows - first.n
        while missing and (block := input_.pull(missing)) is not None:
            missing -= block.n
            yield block

    def parameters_text(self) -> str:
        """Return the function's name, the groups, and the resources that it needs as text."""
        size = "" if self.batch_size is None else f", batch_size={self.batch_size}"
        kind = "" if self.batch_format == "numpy" else f", batch_format={self.batch_format!r}"
        runs = f", in runs of {self.group_rows}" if self.counted and self.batch_size is None else ""
        return f"{self.fn.name}{size}{kind}{runs}{self.skipping}{self.needs.parameters_text()}"


class _Gathering:
    """Gathers the rows of one atom into groups of ``size``."""

    def __init__(self, size: int, room: GatherQuota) -> None:
        self.size, self.room = size, room
        self.parts: list[Block] = []
        self.rows = 0

    def groups(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the rows of ``blocks``, group by group; the last group may be shorter."""
        for block in blocks:
            start = 0
            while start < block.n:
                stop = start + self.size - self.rows
                self._add(block.slice(start, stop).bare())
                start = stop
                if self.rows == self.size:
                    yield self._whole()
        if self.parts:
            yield self._whole()

    def _add(self, part: Block) -> None:
        self.parts.append(part)
        self.rows += part.n
        if len(self.parts) > 1:  # a group that is one block is not gathered
            for new in self.parts if self.room.rows == 0 else (part,):
                self.room.take(new)

    def _whole(self) -> Block:
        parts, self.parts, self.rows = self.parts, [], 0
        self.room.empty()
        return concat(parts)
