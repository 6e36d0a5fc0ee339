"""The command ``dml bench``: how fast a pipeline is, and what each feature of dml adds to that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from dml.base.amounts import count_text, seconds_text
from dml.cli.output import Output, guest_output, json_option
from dml.cli.target import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dml.api.ablation import MeasuredRun
    from dml.api.dataset import Dataset


@click.command()
@click.argument("target", metavar="FILE.py:NAME")
@click.option("--ablate", is_flag=True, help="Also run it with each feature off in turn.")
@click.option("--turns", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--take", type=click.IntRange(min=1), help="End each run after so many elements.")
@json_option
@click.pass_obj
def bench(output: Output, *, target: str, ablate: bool, turns: int, take: int | None) -> None:
    """Run epoch 0 of a pipeline in turns and print elements per second and processor seconds.

    --ablate also runs it without parallel compute, pipelining, free order, caches and
    optimizations, one at a time, then without all of them. Each way runs once to warm up, then all
    take turns in one process; the best turn of each is printed. Features that cannot be switched
    off are listed with the reason.
    """
    # Imported here: other commands start without the whole library.
    from dml.api.ablation import WRITTEN, ablation  # noqa: PLC0415

    dataset = cast("Dataset", load(target)).epoch(0)
    with guest_output():
        best, kept = ablation(dataset, turns, take, each_off=ablate)
    rows = table_of(best)
    value = {"target": target, "turns": turns, "elements": best[WRITTEN].elements, "ways": rows}
    output.answer(value | {"not_switched_off": kept}, lambda: text(rows, kept))


def table_of(best: Mapping[str, MeasuredRun]) -> dict[str, dict[str, float]]:
    """Return the figures of each run by the name of what is off."""
    return {
        name: {"elements_per_s": run.elements / run.seconds, "processor_s": run.cpu_s}
        for name, run in best.items()
    }


def text(rows: dict[str, Any], kept: dict[str, str]) -> str:
    """Return the table for people; figures are also multiples of those of the pipeline as it is."""
    written = next(iter(rows.values()))
    shown = [["off", "elements/s", "", "processor", ""]]
    for name, row in rows.items():
        each, cpu_s = row["elements_per_s"], row["processor_s"]
        times = [_times(row, written, figure) for figure in ("elements_per_s", "processor_s")]
        shown.append([name, f"{count_text(each)}/s", times[0], seconds_text(cpu_s), times[1]])
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [
        f"{name:<{widths[0]}}  " + "  ".join(map(str.rjust, cells, widths[1:]))
        for name, *cells in shown
    ]
    lines += [f"not switched off: {name}, because {why}" for name, why in kept.items()]
    return "\n".join(line.rstrip() for line in lines)


def _times(row: dict[str, float], written: dict[str, float], figure: str) -> str:
    return f"{row[figure] / written[figure]:.2f}x" if written[figure] else ""
