"""The command ``dml``: its subcommands, exit codes and error output.

Exit codes: 0 all went well; 1 the pipeline or the machine has a fault, described in four lines; 2
the command was not understood; 130 interrupted by the user. Results go to standard output,
everything else to standard error, and with ``--json`` standard output is exactly one JSON value.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

import click

from dml.base.fingerprint import Domain
from dml.cli.bench import bench
from dml.cli.cache import cache
from dml.cli.doctor import doctor
from dml.cli.fleet import fleet
from dml.cli.output import Output, guest_output, json_option
from dml.cli.profile import profile
from dml.cli.run import run
from dml.cli.target import load
from dml.errors import DmlError
from dml.optimize.explain.stations import STAGES

OK, FAULT, USAGE, INTERRUPTED = 0, 1, 2, 130
DOMAINS = tuple(each.value for each in Domain)


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
    """Run and inspect dml pipelines, which are given as FILE.py:NAME."""


@cli.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--stage", type=click.Choice(STAGES), help="Stop at this station of the road.")
@click.option("--analyze", is_flag=True, help="Run it, and show measured figures beside the plan.")
@json_option
@click.pass_obj
def explain(output: Output, *, target: str, stage: str | None, analyze: bool) -> None:
    """Print the plan of a pipeline as a tree."""
    dataset = load(target)
    with guest_output():
        text = dataset.explain(stage, analyze=analyze)
    value = {"target": target, "stage": stage, "analyze": analyze, "text": text}
    output.answer(value, lambda: text)


@cli.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--domain", type=click.Choice(DOMAINS), default="result", show_default=True)
@click.option("--explain", "parts", is_flag=True, help="Show what the fingerprint is made of.")
@json_option
@click.pass_obj
def fingerprint(output: Output, *, target: str, domain: str, parts: bool) -> None:
    """Print the fingerprint of what a pipeline computes; equal fingerprints mean equal bytes."""
    dataset = load(target)
    with guest_output():
        digest = dataset.fingerprint(domain=domain)
        text = dataset.fingerprint(domain=domain, explain=True) if parts else digest
    value = {"target": target, "domain": domain, "fingerprint": digest}
    output.answer(value | ({"explain": text} if parts else {}), lambda: text)


for verb in (run, bench, profile, cache, fleet, doctor):
    cli.add_command(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(answer(arguments))


def answer(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code instead of ending the process."""
    output = Output()
    try:
        code = cli.main(arguments, prog_name="dml", obj=output, standalone_mode=False)
    except click.ClickException as error:
        output.fault(type(error).__name__, {"what": error.format_message()}, error.show)
        return USAGE
    except DmlError as error:
        kind, told = type(error).__name__, f"{type(error).__name__}: {error}"
        parts = {"what": error.what, "at": error.at, "why": error.why, "try": error.try_}
        output.fault(kind, parts, lambda: output.log(told))
        return FAULT
    except (click.Abort, KeyboardInterrupt):
        output.log("interrupted")
        return INTERRUPTED
    return code if isinstance(code, int) else OK
