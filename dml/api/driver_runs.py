"""Runs are opened in a driver process, in the same way as in the caller's process."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from dml.api import session
from dml.exec.delivery.iterator import Elements
from dml.expr.node import Node
from dml.ranks.driver.driver_handle import Aside, scheduler_address
from dml.settings import AUTOTUNE, Settings

ARRAYS = "numpy"


def run(node: Node, settings: Settings, epoch: int, on_restore: Callable[[int], None]) -> Elements:
    """Open a run as ``session.run`` does, with all of the work in a separate process."""
    made = session.run(node, settings, epoch, on_restore)
    return _aside(made, node, settings, ARRAYS)


def tabled(
    node: Node, settings: Settings, epoch: int, on_restore: Callable[[int], None], form: str
) -> Elements:
    """Open a run as ``session.run`` does, with each batch as a table in the batch format ``form``.

    ``settings`` say whether this process or a driver process runs it.
    """
    from dml.exec.delivery import tables as tables_module

    tables = tables_module
    streaming, resources = session.streamed(node, settings, epoch)
    local = any(each.calls is not None and each.calls.reason for each in node.walk())
    made: Elements = tables.FORMS[form](
        streaming,
        epoch,
        tables.Unaccounted(),
        ahead=resources.ahead,
        ahead_bytes=resources.budget.ahead_bytes,
        limit_bytes=resources.limit_bytes,
        process=session.PROCESS if local else "",
        on_restore=on_restore,
    )
    return made if settings.driver == "here" else _aside(made, node, settings, form)


def _aside(made: Elements, node: Node, settings: Settings, form: str) -> Elements:
    """Return an iterator like ``made`` whose elements are produced by a driver process."""
    scheduler, config = scheduler_address(settings)
    choices: dict[str, Any] = {"prefetch": AUTOTUNE, "scheduler": scheduler}
    there = dataclasses.replace(settings.here, **choices)
    depth = None if settings.prefetch == AUTOTUNE else int(settings.prefetch)
    opened = partial(begun, there, config, form, session.PROCESS)
    return made.handed_over(Aside(node, opened, depth, made))


def begun(  # noqa: PLR0917 - the driver process passes the last two
    settings: Settings, config: dict[str, Any], form: str, process: str, node: Node, epoch: int
) -> Elements:
    """Open the run in the driver process, under the process name ``process`` of its parent."""
    session.PROCESS = process
    if config or "dml.cluster.cluster" in sys.modules:  # an earlier run may have configured it
        from dml.cluster import cluster

        cluster.configure(config)
    if form == ARRAYS:
        return session.run(node, settings, epoch, _restored)
    return tabled(node, settings, epoch, _restored, form)


def _restored(_epoch: int) -> None:
    """Ignore a restored epoch: the driver process does not count epochs."""
