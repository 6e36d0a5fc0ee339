"""This file decides whether an operator that needs all rows is done by the workers of a cluster.

A sort, a full shuffle, or groups that stand directly over the stages are, where the input is more
than a small part of the memory number: else the rows are brought to where they are delivered, and
sorted there. The bytes are the same.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, cast

from dml.exec.budget import SAMPLED
from dml.exec.likeness import impure
from dml.expr.node import Node
from dml.plan import Plan, Stage
from dml.settings import AUTOTUNE, Settings

if TYPE_CHECKING:
    from dml.exec.opening import Opening
    from dml.exec.stream import Streaming
    from dml.expr.flow import Flow, Position

# An input of no more than one part in so many of the memory number is sorted without the disk.
SMALL = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Spread:
    """The first operators of a run's stream, done in two rounds of tasks.

    ``sorting`` gives the order, ``groups`` makes groups of rows in that order, if there are some.
    """

    run: Streaming
    finishing: bool
    sorting: Node
    groups: Node | None

    @property
    def count(self) -> int:
        """Operators that are done."""
        return 1 if self.groups is None else 2

    def open(self, epoch: int, position: Position | None) -> Flow:
        """The rows that come out of them."""
        # Loaded here: it loads Dask, which is loaded already, as the run is on a cluster.
        made: Flow = importlib.import_module("dml.exec.rounds").opened(self, epoch, position)
        return made


def spreading(run: Streaming, settings: Settings, *, finishing: bool) -> Spread | None:
    """What of the stream of ``run``, which is on a cluster, that does; None if nothing."""
    if run.watching is not None or run.taps is not None:
        return None
    if why_not(run.plan, settings, cast("Opening", run.open).budget.limit_bytes):
        return None
    sorting, groups = _spreadable(run.plan)
    assert sorting is not None  # noqa: S101 (or there was a reason)
    return Spread(run, finishing, sorting, groups)


def told(plan: Plan, settings: Settings, limit_bytes: int) -> str:
    """The line of ``explain`` about a run on a cluster; nothing where nothing could be spread."""
    sorting, groups = _spreadable(plan)
    if sorting is None:
        return ""
    plans = sum(1 for _ in plan.all)
    names = " and ".join(each.title() for each in (sorting, groups) if each is not None)
    if why := why_not(plan, settings, limit_bytes // plans):
        return f"\nspread  {names}: not by the workers, {why}"
    return f"\nspread  {names}: by the workers, as sorted runs on their disks and ranges of all"


def why_not(plan: Plan, settings: Settings, limit_bytes: int) -> str:
    """Why no operator of ``plan`` is done by workers; "" if one is."""
    if _spreadable(plan)[0] is None:
        return "nothing to spread"
    if impure(plan.on_blocks):
        return "a function below is declared impure (pure=False)"
    if settings.spread is False:
        return "spread=False"
    if settings.autoscale is not None:
        return "as they come and go (autoscale=)"
    size = input_bytes(plan.stage)
    if settings.spread == AUTOTUNE and size is not None and size * SMALL <= limit_bytes:
        return "the input is small"
    return ""


def _spreadable(plan: Plan) -> tuple[Node | None, Node | None]:
    """What gives an order to all rows of the stages, and what makes groups of them, if it does."""
    if not plan.stream or not plan.stream[0].spreads:
        return None, None
    first, *others = plan.stream[:2]
    made = [each for each in others if each.grouped_by and each.grouped_by == first.ordered_by]
    return first, made[0] if made else None


def input_bytes(stage: Stage) -> int | None:
    """Bytes of the rows that a stage reads, judged by some units; None if nobody knows."""
    source = stage.source
    count = source.unit_count
    units = [source.unit(i) for i in range(0, count, max(1, count // SAMPLED))]
    if any(unit.is_open for unit in units):
        return None
    return sum(unit.nbytes for unit in units) * count // max(1, len(units))
