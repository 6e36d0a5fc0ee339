"""The commands ``dml explain`` and ``dml fingerprint``: a pipeline's plan, and its fingerprint."""

from __future__ import annotations

import click

from dml.base.fingerprint import Domain
from dml.cli.output import Output, guest_output, json_option
from dml.cli.target import load
from dml.optimize.explain.stations import STAGES

DOMAINS = tuple(each.value for each in Domain)


@click.command()
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
    output.answer(
        {"target": target, "stage": stage, "analyze": analyze, "text": text}, lambda: text
    )


@click.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--domain", type=click.Choice(DOMAINS), default="result", show_default=True)
@click.option("--explain", "parts", is_flag=True, help="Show what the fingerprint is made of.")
@json_option
@click.pass_obj
def fingerprint(output: Output, *, target: str, domain: str, parts: bool) -> None:
    """Print the name of what a pipeline computes; equal names give equal bytes."""
    dataset = load(target)
    with guest_output():
        digest = dataset.fingerprint(domain=domain)
        text = dataset.fingerprint(domain=domain, explain=True) if parts else digest
    value = {"target": target, "domain": domain, "fingerprint": digest}
    output.answer(value | ({"explain": text} if parts else {}), lambda: text)
