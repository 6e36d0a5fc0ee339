"""Choose whether an operator that needs all rows runs on the workers of a cluster.

Such an operator is a sort, a full shuffle, or a grouping directly after the stages. It runs on
workers if its input is more than a small part of the memory limit; otherwise the rows are sent to
the consuming process, and sorted there. The resulting bytes are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from dml.exec.memory.memory_shares import SAMPLED
from dml.exec.tasks.replay_check import impure
from dml.expr.node import Node
from dml.physical.plan import Plan, Stage
from dml.settings import AUTOTUNE, Settings

if TYPE_CHECKING:
    from dml.cluster.exchange.distributed_sort import SpreadRun
    from dml.exec.drivers.driver_choice import Opening
    from dml.exec.streams.stream import Streaming

# An input of at most the memory limit divided by SMALL is sorted without the disk.
SMALL = 10


def spreading(run: Streaming, settings: Settings, *, finishing: bool) -> SpreadRun | None:
    """Return the operators of ``run`` that run on its cluster's workers; None if none does."""
    if run.watching is not None or run.taps is not None:
        return None
    sorting, groups = _spreadable(run.plan)
    limit_bytes = cast("Opening", run.open).budget.limit_bytes
    if sorting is None or why_not(run.plan, settings, limit_bytes):
        return None
    from dml.cluster.exchange import distributed_sort  # noqa: PLC0415 (it loads Dask)

    return distributed_sort.SpreadRun(run, finishing, sorting, groups)


def describe_spreading(plan: Plan, settings: Settings, limit_bytes: int) -> str:
    """Return the line of ``explain`` on which operators run on workers; "" if none could."""
    sorting, groups = _spreadable(plan)
    if sorting is None:
        return ""
    plans = sum(1 for _ in plan.all)
    names = " and ".join(each.title() for each in (sorting, groups) if each is not None)
    if why := why_not(plan, settings, limit_bytes // plans):
        return f"\nspread  {names}: not by the workers, {why}"
    return f"\nspread  {names}: by the workers, as sorted runs on their disks and ranges of all"


def why_not(plan: Plan, settings: Settings, limit_bytes: int) -> str:
    """Return why no operator of ``plan`` runs on workers; "" if one does."""
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
    """Return the operator that orders all rows of the stages, and the grouping on it, if any."""
    if not plan.stream or not plan.stream[0].spreads:
        return None, None
    first, *others = plan.stream[:2]
    made = [each for each in others if each.grouped_by and each.grouped_by == first.ordered_by]
    return first, made[0] if made else None


def input_bytes(stage: Stage) -> int | None:
    """Estimate the bytes of a stage's input rows from a sample of units; return None if unknown."""
    source = stage.source
    count = source.unit_count
    units = [source.unit(i) for i in range(0, count, max(1, count // SAMPLED))]
    if any(unit.is_open for unit in units):
        return None
    return sum(unit.nbytes for unit in units) * count // max(1, len(units))
