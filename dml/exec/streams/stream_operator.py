"""Open one operator over the stream, above another flow or several flows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from dml.data.block import Block
from dml.errors import DmlError, InternalError, PlanError
from dml.exec.delivery.meter import Metered
from dml.exec.scheduler.baseline_policies import policy_line
from dml.exec.slicing.lanes import freed_lanes, stage_lanes, stream_lanes
from dml.exec.streams.plan_run import PlanRun
from dml.exec.tasks.row_loss import in_place
from dml.expr.flow import At, BatchFlow, Blockwise, Flow, LocalFlow, Opener, Position, settling
from dml.expr.node import Node

if TYPE_CHECKING:
    from dml.physical.plan import Plan
    from dml.settings import Settings

# Calls of the deepest operators take up to 6 of Python's 1000 frames, and the caller has some.
DEEPEST = 120


def _run(node: Any, at: At, block: Block) -> Iterator[Block]:
    """Yield the output blocks of ``node`` for one block; errors name the operator."""
    try:
        yield from in_place(node, block, at)
    except DmlError as error:
        raise error.under(node.label()) from error.__cause__


def ways_told(plan: Plan, settings: Settings, spread: str) -> str:
    """Return the lines of ``explain`` about how a plan runs, as far as it differs from defaults."""
    return policy_line(settings.scheduler_policy) + spread + _order_told(plan, settings)


def _order_told(plan: Plan, settings: Settings) -> str:
    """Return the line of ``explain`` about the order of elements; "" if the settings fix it."""
    if settings.deterministic:
        return ""
    lanes = freed_lanes(plan, stream_lanes(plan), stage_lanes(plan)[1], None)
    free = next((lane for lane in lanes.values() if lane.free), None)
    if free is None:
        return "\norder  kept: no function is followed by batches and passes alone"
    return f"\norder  free: elements of {free.title} go out as they are made"


def open_node(  # noqa: PLR0917 (an Opener, once the first four are bound)
    run: PlanRun,
    node: Node,
    open_input: Opener,
    number: int,
    epoch: int,
    position: Position | None,
) -> Flow:
    """Return the output flow of ``node``, which is stream operator ``number`` of ``run``."""
    taken = None if run.taps is None else run.taps.tap(run, number, open_input, epoch, position)
    if taken is not None:
        return Metered(taken, run.meter, number + 1)
    lost = partial(run.lost_over, number)
    at = dataclasses.replace(run.at, epoch=epoch, lost=lost, nested=run.nested)
    merged: Any = node
    if len(node.inputs) > 1:
        others = (each.opener() for each in run.beside[number])
        flow: Flow = merged.merge((open_input, *others), epoch, position, at)
    elif node.opens_flow:
        flow = merged.flow(open_input, epoch, position, at)
    elif not node.runs_blocks:
        raise InternalError(f"{node.title()} cannot be executed", why=f"operator {number}")
    elif node.inputs[0].batched:
        flow = BatchFlow(partial(_run, node, at), open_input, epoch, position)
    else:
        work = Blockwise(partial(_run, node, at), partial(settling, node, at))
        flow = LocalFlow(work, open_input, epoch, position)
    return Metered(flow, run.meter, number + 1)


def refuse_depth(node: Node) -> None:
    """Raise PlanError if more than ``DEEPEST`` stream operators lie one above the other."""
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
