"""Run the row-local operators of a stage on blocks, and measure and count each operator."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dml.base.thread_seconds import thread_seconds
from dml.data.batch_trays import Trays
from dml.data.block import Block
from dml.data.row_slicing import CALLS, NumberedRows, by_weight, in_parts
from dml.data.schema import Schema
from dml.errors import DmlError
from dml.events import Tally
from dml.exec.tasks.row_loss import in_place, returned_in_place
from dml.exec.tasks.skipped_rows import Noted
from dml.expr.flow import At
from dml.expr.node import Node, epochs_at
from dml.ops.row.lifted import LiftedNode
from dml.udfs.calling.type_inference import Recalling, Recording, Returned

if TYPE_CHECKING:
    from dml.ops.row.lifted_chain import LiftedChain

T = TypeVar("T")

# Processor time is queried for one in ``ASKED`` short blocks of a step; for longer ones, always.
ASKED, LONG_S = 64, 2e-4


class Stopwatch:
    """Measures the seconds of a step, and the share of them that it spent on a processor.

    A query of a thread's processor time takes a microsecond, more on a busy machine. If blocks are
    short, only every 64th is queried, and its share is used for the others. Threads may share it.
    """

    def __init__(self) -> None:
        self.count, self.share, self.slow_s = 0, 1.0, math.inf

    def time(self, blocks: Iterator[T], node: Node | None) -> tuple[T | None, float, float]:
        """Return the next block (None at the end), its elapsed seconds, and processor seconds.

        Errors get the label of ``node``, unless they name an operator.
        """
        begun = self.begin()
        try:
            block = next(blocks, None)
        except DmlError as error:
            if node is None:
                raise
            raise error.under(node.label()) from error.__cause__
        return block, *self.end(begun, made=block is not None)

    def begin(self) -> tuple[float, float | None]:
        """Return the time in seconds now, and the thread's processor seconds or None."""
        asking = self.slow_s > LONG_S or not self.count % ASKED
        self.count += 1
        cpu_s = thread_seconds() if asking else None
        return time.perf_counter(), cpu_s

    def end(self, begun: tuple[float, float | None], *, made: bool) -> tuple[float, float]:
        """Return the elapsed and processor seconds since ``begun``; ``made`` if a block came."""
        started, cpu_s = begun
        seconds = time.perf_counter() - started
        if cpu_s is not None and seconds:
            self.share = min(1.0, (thread_seconds() - cpu_s) / seconds)
        if made:
            self.slow_s = max(seconds, self.slow_s / 2 if self.slow_s < math.inf else 0.0)
        return seconds, seconds * self.share


class Steps:
    """Row-local operators, one after the other; ``first`` is the ordinal of the first of them.

    If operators between them are left out, ``first`` lists all ordinals instead. Operators before
    one that stores its rows in a cache run for the epoch of the stored rows.
    """

    def __init__(self, nodes: Sequence[Node], at: At, first: int | Sequence[int]) -> None:
        self.nodes, self.at = nodes, at
        ordinals = range(first, first + len(nodes)) if isinstance(first, int) else first
        epochs = epochs_at(nodes, at.epoch)
        each = {epoch: dataclasses.replace(at, epoch=epoch) for epoch in {*epochs} - {at.epoch}}
        steps: list[Any] = [
            (_ByAtom if node.by_atom else _ByBlock)(node, each.get(epoch, at), Stopwatch(), ordinal)
            for node, epoch, ordinal in zip(nodes, epochs, ordinals, strict=True)
        ]
        self.each: Sequence[Any] = steps
        self.alone: Any = steps[0] if len(steps) == 1 else None
        # how steps in one loop divide its time, by first ordinal; set once, also for copies
        self.shares: dict[int, list[float]] = {}
        self.works = _chained(steps, self.shares)
        # results of calls made to settle types, {(unit, atom): {step: results}}
        self.kept: dict[tuple[int, int], Mapping[int, deque[Any]]] = {}
        self.rehearsed = False

    def calling(self, calls: Mapping[int, Callable[..., Any]]) -> Steps:
        """Return a copy in which step ``n`` calls the function ``calls[n]`` instead of its own."""
        each = enumerate(self.each)
        return self._of(
            dataclasses.replace(step, node=_calling(step.node, calls[number]))
            if number in calls
            else step
            for number, step in each
        )

    @property
    def by_batch(self) -> bool:
        """Whether the only step calls a function of batches, not of rows."""
        return not self.alone.node.returns_rows

    def apart(self) -> Steps:
        """Return a copy whose output has the types of its own values, and settles none."""
        return self._of(dataclasses.replace(step, at=_alone(step.at)) for step in self.each)

    def placing(self, trays: Trays) -> Steps:
        """Return a copy that writes large values into ``trays``."""
        return self._of(
            dataclasses.replace(step, at=dataclasses.replace(step.at, trays=trays))
            for step in self.each
        )

    def _of(self, each: Iterable[Any]) -> Steps:
        """Return a copy with the steps ``each``."""
        made = copy.copy(self)
        made.each = list(each)
        made.alone = made.each[0] if len(made.each) == 1 else None
        made.works = _chained(made.each, self.shares)
        return made

    def at_turn(self, unit: int, atom: int) -> Steps:
        """Return the steps for an atom of a unit; recorded results replace calls made earlier."""
        kept = self.kept.pop((unit, atom), None) if self.kept else None
        if kept is None:
            return self
        calls = {n: Recalling(self.each[n].node.fn.call, results) for n, results in kept.items()}
        return self.calling(calls)

    def run(
        self, blocks: Iterable[Block], mine: Callable[[], Tally], noted: Noted
    ) -> Iterator[Block]:
        """Yield the output for the blocks of an atom; steps run one after the other on each block.

        ``mine`` returns the tally of the current thread; ``noted`` records the rows lost to errors.
        """
        for work in self.works:
            blocks = work(blocks, mine, noted)
        for block in blocks:
            yield block.bare()

    def returned(
        self, blocks: Iterable[Block], mine: Callable[[], Tally], noted: Noted
    ) -> Iterator[Returned]:
        """Yield the results of the only step's function, before types are settled."""
        step = self.alone
        node, at = step.node, step.noting(noted)
        for block in blocks:
            made = returned_in_place(node, block, at) if block.n else iter(())
            rows_in, bytes_in = block.n, block.value_bytes
            while True:
                found, seconds, cpu_s = step.watch.time(made, node)
                if found is None:
                    break
                out = len(found.out), bytes_in, found.nbytes
                mine().block(step.ordinal, rows_in, *out, seconds, cpu_s)
                rows_in = bytes_in = 0
                yield found
            mine().calls(step.ordinal, block.n)

    def whole(self, block: Block, tally: Tally) -> Block | None:
        """Return the output for ``block`` as one block; None if a step cannot make it as one.

        That is the case if functions must be called. Raise the errors of the steps. All steps must
        process rows one by one, and lose none to errors.
        """
        made: Block | None = block
        for work in self.works:
            made = None if made is None else work.whole(made, tally)
        return None if made is None else made.bare()


class _Unsettled(dict[str, Any]):
    """A copy of the settled types that ignores new ones: output has the types of its own values."""

    def setdefault(self, _key: str, default: Any = None) -> Any:
        return default


def _alone(at: At) -> At:
    return dataclasses.replace(at, schemas=_Unsettled(at.schemas))


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Step:
    """An operator with its context; its work is counted under ``ordinal``."""

    node: Any
    at: At
    watch: Stopwatch
    ordinal: int

    def noting(self, noted: Noted) -> At:
        """Return the operator's context; if errors may drop rows, ``noted`` records them."""
        if not self.node.skips:
            return self.at
        return dataclasses.replace(self.at, lost=partial(noted.note, self.ordinal))


class _ByBlock(_Step):
    """An operator that runs on each block separately."""

    __slots__ = ()

    def __call__(
        self, blocks: Iterable[Block], mine: Callable[[], Tally], noted: Noted
    ) -> Iterator[Block]:
        node, at, watch, ordinal = self.node, self.noting(noted), self.watch, self.ordinal
        for block in blocks:
            made = in_place(node, block, at)
            rows_in, bytes_in = block.n, block.value_bytes
            while True:
                out, seconds, cpu_s = watch.time(made, node)
                if out is None:
                    break
                mine().block(ordinal, rows_in, out.n, bytes_in, out.value_bytes, seconds, cpu_s)
                rows_in = bytes_in = 0
                yield out
            mine().calls(ordinal, _calls(node, block.n))

    def whole(self, block: Block, tally: Tally) -> Block | None:
        """Return the output for ``block`` if it is one block made without a call; else None."""
        node = self.node
        if isinstance(node, LiftedNode):
            made = iter(() if (found := node.quick(block, self.at)) is None else (found,))
        else:
            made = node.run(block, self.at)
        out, seconds, cpu_s = self.watch.time(made, node)
        if out is None or next(made, None) is not None:
            return None
        tally.block(
            self.ordinal, block.n, out.n, block.value_bytes, out.value_bytes, seconds, cpu_s
        )
        return out


class _ByAtom(_Step):
    """An operator that takes all blocks of an atom at once, as an iterator."""

    __slots__ = ()

    def __call__(
        self, blocks: Iterable[Block], mine: Callable[[], Tally], noted: Noted
    ) -> Iterator[Block]:
        node, watch, ordinal = self.node, self.watch, self.ordinal
        taken = _Taken(blocks)
        made, rows = node.run_atom(taken, self.noting(noted)), 0
        while True:
            out, seconds, cpu_s = watch.time(made, node)
            rows_in, bytes_in, below_s = taken.since()
            rows += rows_in
            if out is None:
                break
            own_s = max(0.0, seconds - below_s)
            own_cpu_s = own_s * (cpu_s / seconds if seconds else 1.0)
            mine().block(ordinal, rows_in, out.n, bytes_in, out.value_bytes, own_s, own_cpu_s)
            yield out
        mine().calls(ordinal, _calls(node, rows))


class _Chained:
    """A ``map`` and the ``filter`` after it, if there is one, called row by row in one loop.

    The two process the first rows separately: these times show how to divide the time of the loop.
    The output blocks are the same.
    """

    def __init__(self, steps: Sequence[_ByBlock], shares: list[float]) -> None:
        from dml.ops.row.call_chain import CallChain  # noqa: PLC0415

        mapped, *kept = (step.node for step in steps)
        self.steps, self.watch, self.at = steps, Stopwatch(), steps[0].at
        self.chain = CallChain(mapped, kept[0] if kept else None)
        self.shares = shares

    def __call__(
        self, blocks: Iterable[Block], mine: Callable[[], Tally], noted: Noted
    ) -> Iterator[Block]:
        for block in blocks:
            if block.n:
                yield from self._of(block, mine, noted)

    def _of(self, block: Block, mine: Callable[[], Tally], noted: Noted) -> Iterator[Block]:
        """Yield the output for ``block``; steps process the first rows, or all, separately."""
        known = self.chain.schema(block, self.at) is not None and bool(self.shares)
        apart, tally = 0 if known else CALLS, Tally()
        first = (
            NumberedRows(iter(())) if known else self._mapped(block.slice(0, CALLS), tally, noted)
        )

        def work(start: int, stop: int) -> Iterator[Block]:
            if start < apart:
                yield from self._filtered(first.take(min(stop, apart) - start), tally, noted)
            if stop > apart:
                rest = block.slice(max(start, apart), stop)
                if together:
                    self._divide(tally)
                    yield from self._together(rest, schema, mine)
                else:
                    yield from self._filtered(self._mapped(rest, tally, noted).blocks, tally, noted)

        try:
            first.look()  # after the first rows, types have settled
            schema, together = self._schema(), self.chain.schema(block, self.at) is not None
            desk = self.at.trays.desk(self.steps[0].node.digest, schema, block.ids, self.at.epoch)
            yield from by_weight(block.n, schema, work, desk.edge)
            first.look()  # no rows are left, which ends the count of calls
            if together:
                self._divide(tally)  # for later blocks, if this one passed the steps separately
        finally:
            mine().add(tally)

    def _schema(self) -> Schema:
        """Return the schema of the function's output, known once the function has made rows."""
        node = self.steps[0].node
        found: Schema = node.schema
        return found if found.known else self.at.schemas.get(node.digest.hex(), found)

    def _mapped(self, block: Block, tally: Tally, noted: Noted) -> NumberedRows:
        return NumberedRows(self.steps[0]((block,), lambda: tally, noted))

    def _filtered(self, made: Iterator[Block], tally: Tally, noted: Noted) -> Iterator[Block]:
        for step in self.steps[1:]:
            made = step(made, lambda: tally, noted)
        return made

    def _divide(self, tally: Tally) -> None:
        """Set each step's share of the time, once, from ``tally`` of rows processed separately."""
        if self.shares:
            return
        self.shares[:] = _shares(tally, len(self.steps))

    def _together(self, block: Block, schema: Schema, mine: Callable[[], Tally]) -> Iterator[Block]:
        made, rows_in, bytes_in = self.chain.run(block, schema, self.at), block.n, block.value_bytes
        while True:
            out, seconds, cpu_s = self.watch.time(made, None)
            if out is None:
                break
            # no block exists between the steps: count the input's rows in the output's row size
            between = (rows_in, out.value_bytes * rows_in // max(1, out.n))
            taken = [(rows_in, bytes_in), *[between] * (len(self.steps) - 1)]
            given = [*taken[1:], (out.n, out.value_bytes)]
            for step, ins, outs, share in zip(self.steps, taken, given, self.shares, strict=True):
                mine().block(
                    step.ordinal, ins[0], outs[0], ins[1], outs[1], seconds * share, cpu_s * share
                )
            rows_in = bytes_in = 0
            yield out
        for step in self.steps:
            mine().calls(step.ordinal, block.n)


class _OnePass:
    """The steps of a ``LiftedChain``, computed in one pass over a block where possible.

    The first block passes the steps separately: these times show how to divide the time of later
    blocks.
    """

    def __init__(self, steps: Sequence[_ByBlock], chain: LiftedChain) -> None:
        self.steps, self.chain = steps, chain
        self.watch, self.at = Stopwatch(), steps[0].at

    def __call__(
        self, blocks: Iterable[Block], mine: Callable[[], Tally], noted: Noted
    ) -> Iterator[Block]:
        for block in blocks:
            for part in in_parts(block, self.chain.schema, partial(self.chain.sampled, self.at)):
                made = self.whole(part, mine())
                if made is None:
                    yield from self._apart(part, mine, noted)
                else:
                    yield made

    def whole(self, block: Block, tally: Tally) -> Block | None:
        """Return the output of all steps for ``block``; None if one pass cannot compute it."""
        out, seconds, cpu_s = self.watch.time(self._together(block), None)
        if out is None:
            return None
        made, passed = out
        rows = [block.n, *[passed] * (len(self.steps) - 1), made.n]
        # no block exists between the steps: rows have the size of an output row there
        sizes = [each * made.value_bytes // max(1, made.n) for each in rows]
        sizes[0], sizes[-1] = block.value_bytes, made.value_bytes
        for n, (step, share) in enumerate(zip(self.steps, self.chain.shares, strict=True)):
            counts = rows[n], rows[n + 1], sizes[n], sizes[n + 1]
            tally.block(step.ordinal, *counts, seconds * share, cpu_s * share)
        return made

    def _together(self, block: Block) -> Iterator[tuple[Block, int]]:
        made = self.chain.run(block, self.at) if self.chain.shares else None
        if made is not None:
            yield made

    def _apart(self, block: Block, mine: Callable[[], Tally], noted: Noted) -> Iterator[Block]:
        tally, made = Tally(), iter((block,))
        for step in self.steps:
            made = step(made, lambda: tally, noted)
        try:
            yield from made
        finally:
            mine().add(tally)
        if not self.chain.shares:
            self.chain.shares = _shares(tally, len(self.steps))


def _shares(tally: Tally, count: int) -> list[float]:
    """Return the share of each of ``count`` steps in the time of rows processed separately."""
    seconds = [cell.seconds for _, cell in sorted(tally.cells())]
    if len(seconds) < count or not sum(seconds):
        seconds = [1.0] * count
    return [each / sum(seconds) for each in seconds]


def _calling(node: Any, call: Callable[..., Any]) -> Any:
    """Return a copy of ``node`` that calls ``call``, with the digest and schema of ``node``."""
    made = copy.copy(node)
    # a recorder must see each call that is given up, and not only the loop around it
    loop = None if isinstance(call, Recording) else node.fn.loop
    object.__setattr__(made, "fn", dataclasses.replace(node.fn, call=call, loop=loop))
    # derived attributes are not copied, and nothing could be proven of ``call``
    vars(made).update(digest=node.digest, schema=node.schema)
    return made


def _chained(steps: Sequence[Any], shares: dict[int, list[float]]) -> list[Any]:
    """Return the steps, joined if they can run in one loop; ``shares`` will divide its time."""
    out: list[Any] = []
    rest = list(steps)
    if all(step.node.calls is None for step in rest):
        return rest
    from dml.ops.row.call_chain import judges, starts  # noqa: PLC0415 - for functions alone
    from dml.ops.row.lifted_chain import LiftedChain  # noqa: PLC0415

    while rest:
        step = rest[0]
        chain = LiftedChain.of([each.node for each in rest])
        if chain is not None:
            out.append(_OnePass(rest[: len(chain.nodes)], chain))
            del rest[: len(chain.nodes)]
            continue
        rest.pop(0)
        behind = rest[0].node if rest else None
        if not starts(step.node):
            out.append(step)
        elif judges(behind):
            out.append(_Chained([step, rest.pop(0)], shares.setdefault(step.ordinal, [])))
        else:
            called = behind is not None and behind.calls is not None
            share = shares.setdefault(step.ordinal, [])
            out.append(step if called else _Chained([step], share))
    return out


class _Taken(Iterator[Block]):
    """Input blocks of a step, counted and timed; the step's own time excludes making them."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks = iter(blocks)
        self._sums = (0, 0, 0.0)

    def __next__(self) -> Block:
        started = time.perf_counter()
        block = next(self._blocks)
        rows, nbytes, seconds = self._sums
        seconds += time.perf_counter() - started
        self._sums = rows + block.n, nbytes + block.value_bytes, seconds
        return block

    def since(self) -> tuple[int, int, float]:
        """Return the rows, bytes and seconds of the blocks since the last call."""
        sums, self._sums = self._sums, (0, 0, 0.0)
        return sums


def _calls(node: Node, rows: int) -> int:
    """Return how often ``node`` called the user's function for ``rows`` processed rows."""
    called = node.calls is not None and (not isinstance(node, LiftedNode) or node.trust.differs)
    if not called or not rows:
        return 0
    return -(-rows // (node.batch_size or rows)) if node.by_atom else rows
