"""This file decides where text goes: answers to standard output, the rest to standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click
import numpy as np


@dataclass(slots=True)
class Output:
    """How one command speaks; ``as_json`` is set by its ``--json``."""

    as_json: bool = False

    def answer(self, value: Mapping[str, Any], text: Callable[[], str]) -> None:
        """The command's result, as one JSON object or as text."""
        click.echo(json.dumps(value, default=_plain, indent=2) if self.as_json else text())

    def log(self, text: str) -> None:
        """A line for whoever watches."""
        click.echo(text, err=True)

    def fault(self, kind: str, parts: Mapping[str, str], show: Callable[[], None]) -> None:
        """An error: shown on standard error, and as the JSON answer where one is awaited."""
        show()
        if self.as_json:
            self.answer({"error": {"kind": kind, **parts}}, str)


def _remember(context: click.Context, _: click.Parameter, value: bool) -> bool:  # noqa: FBT001 click
    context.ensure_object(Output).as_json |= value
    return value


json_option = click.option(
    "--json",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="Print one JSON object.",
)


@contextlib.contextmanager
def guest_output() -> Iterator[None]:
    """While the user's code runs, what it prints goes to standard error, not among our data."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _plain(value: object) -> object:
    """What JSON has no word for: NumPy scalars as numbers, the rest as text."""
    return value.item() if isinstance(value, np.generic) else str(value)
