"""The command ``dml profile``: whether a training loop waits for its pipeline, and for what."""

from __future__ import annotations

import dataclasses

import click

from dml.cli.output import Output, guest_output, json_option
from dml.cli.target import function_of, load


@click.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--train", metavar="FUNCTION", help="The training loop: a function of FILE.py.")
@click.option("--upper-bound", is_flag=True, help="Run the loop again, on one batch repeated.")
@json_option
@click.pass_obj
def profile(output: Output, *, target: str, train: str | None, upper_bound: bool) -> None:
    """Run a pipeline once and name what limits it.

    With --train, a training loop of the file consumes the batches: it is called with an iterable.
    --upper-bound then measures the same loop on copies of the first batch; a loop whose steps take
    at most 2 % longer than these is not input bound.
    """
    if upper_bound and train is None:
        raise click.UsageError("--upper-bound compares training loops: name one with --train")
    dataset = load(target)
    loop = None if train is None else function_of(target, train)
    with guest_output():
        found = dataset.profile(loop, upper_bound=upper_bound)
    value = {"target": target, "train": train, "input_bound": found.input_bound}
    output.answer(value | dataclasses.asdict(found), lambda: str(found))
