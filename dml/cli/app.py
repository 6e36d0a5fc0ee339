"""The command ``dml``: its subcommands, exit codes and error output.

Exit codes: 0 all went well; 1 the pipeline or the machine has a fault, described in four lines; 2
the command was not understood; 130 interrupted by the user. Data goes to standard output,
everything else to standard error, and with ``--json`` standard output is exactly one JSON value.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

import click

from dml.cli.cache import cache
from dml.cli.doctor import doctor
from dml.cli.explain import explain, fingerprint
from dml.cli.output import Output
from dml.cli.run import run
from dml.errors import DmlError

OK, FAULT, USAGE, INTERRUPTED = 0, 1, 2, 130


def _version() -> str:
    try:
        return metadata.version("dml")
    except metadata.PackageNotFoundError:
        return "not installed"


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=(
    "Exit codes: 0 done, 1 the pipeline raised an error, 2 wrong usage, 130 interrupted."
))  # fmt: skip
@click.version_option(_version(), message="dml %(version)s")
def cli() -> None:
    """Run and look into dml pipelines, written FILE.py:NAME."""


for verb in (run, explain, fingerprint, cache, doctor):
    cli.add_command(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(answer(arguments))


def answer(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code instead of ending the process."""
    output = Output()
    try:
        code = cli.main(arguments, prog_name="dml", obj=output, standalone_mode=False)
    except click.ClickException as error:
        output.fault(type(error).__name__, {"what": error.format_message()}, error.show)
        return USAGE
    except DmlError as error:
        told = f"{type(error).__name__}: {error}"
        output.fault(type(error).__name__, _parts(error), lambda: output.log(told))
        return FAULT
    except (click.Abort, KeyboardInterrupt):
        output.log("interrupted")
        return INTERRUPTED
    return code if isinstance(code, int) else OK


def _parts(error: DmlError) -> dict[str, str]:
    return {"what": error.what, "at": error.at, "why": error.why, "try": error.try_}
