"""This file opens one operator over the stream: above another flow, or above several."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dml.errors import DmlError, InternalError, PlanError
from dml.exec.baselines import told as policy_told
from dml.exec.in_place import in_place
from dml.exec.lanes import freed_lanes, stage_lanes, stream_lanes
from dml.exec.meter import Meter, Metered
from dml.expr.block import Block
from dml.expr.flow import At, BatchFlow, Blockwise, Flow, LocalFlow, Opener, Position, settling
from dml.expr.node import Node

if TYPE_CHECKING:
    from dml.exec.spreading import Spread
    from dml.exec.stream import Streaming
    from dml.plan import Plan
    from dml.settings import Settings

# Calls of the deepest operators take up to 6 of Python's 1000 frames, and the caller has some.
DEEPEST = 120


def _run(node: Any, at: At, block: Block) -> Iterator[Block]:
    """The blocks that ``node`` makes of one; errors name it."""
    try:
        yield from in_place(node, block, at)
    except DmlError as error:
        raise error.under(node.label()) from error.__cause__


def spread_of(run: Streaming, *, finishing: bool) -> Spread | None:
    """The first operators of the stream, if workers of a cluster do them; else None."""
    settings = getattr(run.open, "settings", None)
    if settings is None or settings.executor != "distributed":
        return None
    # loaded by runs on a cluster alone
    spreading = import_module("dml.exec.spreading").spreading
    found: Spread | None = spreading(run, settings, finishing=finishing)
    return found


def ways_told(plan: Plan, settings: Settings, limit_bytes: int) -> str:
    """The lines of ``explain`` about how a run goes about its plan, where that is not as usual."""
    spread = ""
    if settings.executor == "distributed":
        spread = import_module("dml.exec.spreading").told(plan, settings, limit_bytes)
    return policy_told(settings.scheduler_policy) + spread + _order_told(plan, settings)


def _order_told(plan: Plan, settings: Settings) -> str:
    """The line of ``explain`` about an order that is left free; nothing where it is kept."""
    if settings.deterministic:
        return ""
    lanes = freed_lanes(plan, stream_lanes(plan), stage_lanes(plan)[1], None)
    free = next((lane for lane in lanes.values() if lane.free), None)
    if free is None:
        return "\norder  kept: no function is followed by batches and passes alone"
    return f"\norder  free: elements of {free.title} go out as they are made"


def open_node(  # noqa: PLR0917 (an Opener, once the first four are bound)
    run: Streaming,
    node: Node,
    open_input: Opener,
    number: int,
    epoch: int,
    position: Position | None,
) -> Flow:
    """The flow of operator ``number`` over the stream of ``run``, which is ``node``."""
    taken = None if run.taps is None else run.taps.tap(run, number, open_input, epoch, position)
    if taken is not None:
        return Metered(taken, run.meter, number + 1)
    lost = partial(run.lost_over, number)
    at = dataclasses.replace(run.at, epoch=epoch, lost=lost, nested=run.nested)
    if len(node.inputs) > 1:
        others = (each.opener() for each in run.beside[number])
        merged: Any = node
        flow: Flow = merged.merge((open_input, *others), epoch, position, at)
    elif hasattr(node, "flow"):
        flow = node.flow(open_input, epoch, position, at)
    elif not hasattr(node, "run"):
        raise InternalError(f"{node.title()} cannot be executed", why=f"operator {number}")
    elif node.inputs[0].batched:
        flow = BatchFlow(partial(_run, node, at), open_input, epoch, position)
    else:
        flow = LocalFlow(Blockwise(_Local(node, at)), open_input, epoch, position)
    return Metered(flow, run.meter, number + 1)


def metered(opener: Opener, meter: Meter, cell: int, epoch: int, position: Position | None) -> Flow:
    """What ``opener`` opens, whose rows and time are added up in one of the meter's cells."""
    return Metered(opener(epoch, position), meter, cell)


@dataclasses.dataclass(frozen=True, eq=False)
class _Local:
    """A row-local operator over the stream."""

    node: Node
    at: At

    def run(self, block: Block) -> Iterator[Block]:
        """The operator's output."""
        return _run(self.node, self.at, block)

    def settling(self) -> int:
        """Rows that settle its types together, 0 where they are settled."""
        return settling(self.node, self.at)


def refuse_depth(node: Node) -> None:
    """PlanError for more operators, one in another, than a run's stack of calls can hold."""
    depths: dict[int, int] = {}
    for each in node.walk():
        below = max((depths[id(child)] for child in each.inputs), default=0)
        depths[id(each)] = below + (bool(each.inputs) and not each.rows.local)
        if depths[id(each)] > DEEPEST:
            raise PlanError(
                f"more than {DEEPEST} operators see the stream one above the other",
                at=each.label(),
                why="each waits for the one below it, and Python bounds how deep calls may go",
                try_="ds.mix(*others) of many inputs at once, or .write_parquet(...) half way",
            )
