"""Contestants of a benchmark run in processes of their own, each with its own Python, in turns."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Epoch = Callable[[], Iterator[Any]]


def compete(
    file: str, doc: str | None, epochs: Mapping[str, Callable[..., Epoch]], rows: Mapping[str, int]
) -> None:
    """Measure the contestants that the command line names, and print a line for each.

    ``epochs[name](name, images)`` returns a function that opens an epoch of ``rows[name]``.
    Each process runs a warm epoch, and one that is timed. ``file`` is the benchmark's.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--python", nargs="*", default=[], metavar="NAME=PATH")
    parser.add_argument("--one", action="store_true", help="run as a contestant")
    arguments = parser.parse_args()
    if arguments.one:
        epoch = epochs[arguments.names[0]](arguments.names[0], arguments.images)
        _once(epoch, rows[arguments.names[0]])
        sys.stdout.write(json.dumps(_once(epoch, rows[arguments.names[0]])) + "\n")
        return
    pythons = dict(each.split("=", 1) for each in arguments.python)
    names = arguments.names or list(epochs)
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _, name in itertools.product(range(arguments.turns), names):
        python = pythons.get(name.partition("-")[0], sys.executable)
        command = [python, file, "--images", str(arguments.images), "--one", name]
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(  # noqa: S603 - itself
            command, capture_output=True, text=True, check=True, env=quiet
        )
        turns[name].append(json.loads(done.stdout.splitlines()[-1]))
    for name, found in turns.items():
        middle = {key: statistics.median(each[key] for each in found) for key in found[0]}
        figures = "  ".join(f"{key} {value:8.2f}" for key, value in middle.items())
        sys.stdout.write(f"{name:16} {figures}\n")


def _once(epoch: Epoch, rows: int) -> dict[str, float]:
    used, began, first = _cpu_s(), time.perf_counter(), 0.0
    for _ in epoch():
        first = first or time.perf_counter() - began
    seconds = time.perf_counter() - began
    return {"rows/s": rows / seconds, "cpu ms": (_cpu_s() - used) / rows * 1e3, "first s": first}


def _cpu_s() -> float:
    """Seconds of processors of this process and of its children, which may still run."""
    ticks = os.sysconf("SC_CLK_TCK")
    times = os.times()
    found = times.user + times.system
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found += (int(fields[11]) + int(fields[12])) / ticks
    return found
