"""This file lets the command line choose where a run works and what it may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from dml.cli.target import Pipeline
from dml.errors import PlanError
from dml.settings import AUTOTUNE, EXECUTORS, parse_bytes

Command = TypeVar("Command", bound=Callable[..., Any])


def _workers(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == AUTOTUNE:
        return value
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is not a number of at least 1, nor 'auto'")
    return int(value)


def _bytes(_: click.Context, __: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == AUTOTUNE:
        return value
    try:
        return parse_bytes(int(value) if value.isdecimal() else value)
    except PlanError:
        raise click.BadParameter(f"{value!r} is not a size such as 512MiB, nor 'auto'") from None


OPTIONS = (
    click.option("--executor", type=click.Choice(EXECUTORS), help="Where the work is done."),
    click.option("--scheduler", metavar="ADDRESS", help="Work on this Dask cluster."),
    click.option(
        "--num-workers", callback=_workers, metavar="N", help='Threads or processes, or "auto".'
    ),
    click.option(
        "--memory-limit", callback=_bytes, metavar="SIZE", help='For the whole run, or "auto".'
    ),
)


def settings_options(command: Command) -> Command:
    """Give ``command`` the options of a run, as keywords that are None where nothing was said."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def configured(dataset: Pipeline, asked: Mapping[str, Any]) -> Pipeline:
    """``dataset`` with what was asked for; the rest stays as its file has it."""
    given = {name: value for name, value in asked.items() if value is not None}
    if "scheduler" in given and given.get("executor", "distributed") != "distributed":
        raise click.UsageError(
            f"--scheduler means --executor distributed, not {given['executor']!r}"
        )
    return dataset.with_options(**given) if given else dataset
