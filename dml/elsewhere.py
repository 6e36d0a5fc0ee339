"""This file brings a run to a driver process, which opens it there as it would be opened here."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from dml import session
from dml.exec.aside import Aside, reached
from dml.exec.deliver import Elements
from dml.expr.node import Node
from dml.settings import AUTOTUNE, Settings

ARRAYS = "numpy"


def run(node: Node, settings: Settings, epoch: int, on_restore: Callable[[int], None]) -> Elements:
    """As ``session.run``, with all of the work in a process of its own."""
    made = session.run(node, settings, epoch, on_restore)
    return _aside(made, node, settings, ARRAYS)


def tabled(
    node: Node, settings: Settings, epoch: int, on_restore: Callable[[int], None], form: str
) -> Elements:
    """As ``session.run``, with each batch as a table in ``form``; wherever settings say."""
    tables = importlib.import_module("dml.exec.tables")
    streaming, resources = session.streamed(node, settings, epoch)
    local = any(each.calls is not None and each.calls.reason for each in node.walk())
    made: Elements = tables.FORMS[form](
        streaming,
        epoch,
        tables.Unaccounted(),
        ahead=resources.ahead,
        ahead_bytes=resources.budget.ahead_bytes,
        process=session.PROCESS if local else "",
        on_restore=on_restore,
    )
    return made if settings.driver == "here" else _aside(made, node, settings, form)


def _aside(made: Elements, node: Node, settings: Settings, form: str) -> Elements:
    """``made``, whose elements a driver process makes."""
    scheduler, config = reached(settings)
    choices: dict[str, Any] = {"prefetch": AUTOTUNE, "scheduler": scheduler}
    there = dataclasses.replace(settings.here, **choices)
    depth = None if settings.prefetch == AUTOTUNE else int(settings.prefetch)
    opened = partial(begun, there, config, form, session.PROCESS)
    return made.handed_over(Aside(node, opened, depth, made))


def begun(  # noqa: PLR0917 - the last two are the driver's to give
    settings: Settings, config: dict[str, Any], form: str, process: str, node: Node, epoch: int
) -> Elements:
    """The run, in the driver process: on behalf of the parent, whose names are its own."""
    session.PROCESS = process
    if config or "dml.exec.cluster" in sys.modules:  # which an earlier run may have configured
        importlib.import_module("dml.exec.cluster").configure(config)
    if form == ARRAYS:
        return session.run(node, settings, epoch, _restored)
    return tabled(node, settings, epoch, _restored, form)


def _restored(_epoch: int) -> None:
    """Nobody counts epochs here."""
