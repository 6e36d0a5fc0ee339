"""Output of commands: results go to standard output, the rest to standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import click
import numpy as np


@dataclass(slots=True)
class Output:
    """The output of one command; ``as_json`` is True if its option ``--json`` was given."""

    as_json: bool = False

    def answer(self, value: Mapping[str, Any], text: Callable[[], str]) -> None:
        """Print the command's result, as one JSON object or as text."""
        click.echo(json.dumps(value, default=_plain, indent=2) if self.as_json else text())

    def log(self, text: str) -> None:
        """Print a line for the user to standard error."""
        click.echo(text, err=True)

    def fault(self, kind: str, parts: Mapping[str, str], show: Callable[[], None]) -> None:
        """Print an error with ``show``; with ``--json``, also as the command's one JSON object."""
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


def guest_output() -> contextlib.redirect_stdout[TextIO]:
    """Send what the user's code prints to standard error, so that it does not mix with results."""
    return contextlib.redirect_stdout(sys.stderr)


def _plain(value: object) -> object:
    """Convert values that JSON lacks: NumPy scalars to numbers, the rest to text."""
    return value.item() if isinstance(value, np.generic) else str(value)
