"""This file measures how fast the machine is, once for its class: what priors are scaled by.

It runs a loop of plain Python and copies memory, each a few times for half a millisecond, and takes
the best; the figures are kept beside the telemetry store.
"""

from __future__ import annotations

import contextlib
import json
import math
import uuid
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from dml.fleet.collect import LAYOUT
from dml.ownership import FILE, make_folders
from dml.profile import Speed

FOLDER: Final = "hosts"
TIMES: Final = 5
LOOP: Final = 20_000
COPIED_BYTES: Final = 4 << 20
# A machine is believed to be slower or faster than the one of the table by this at most.
MOST_APART: Final = 32.0


class Measured(NamedTuple):
    """Seconds of one step of the loop, and of one byte copied."""

    step_s: float
    byte_s: float


REFERENCE: Final = Measured(3.0e-8, 2.5e-11)
"""The machine that priors were written on."""


def measured(clock: Callable[[], float] = perf_counter) -> Measured:
    """Measure this machine: some 5 ms."""
    given = np.ones(COPIED_BYTES, dtype=np.uint8)
    taken = np.empty_like(given)
    loops = [_timed(_loop, clock) for _ in range(TIMES)]
    copies = [_timed(lambda: np.copyto(taken, given), clock) for _ in range(TIMES)]
    return Measured(min(loops) / LOOP, min(copies) / COPIED_BYTES)


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return clock() - started


def _loop() -> int:
    found = 0
    for i in range(LOOP):
        found += i & 7
    return found


def speed_of(found: Measured) -> Speed:
    """How many times slower than the reference, within reason."""
    return Speed(
        *(
            min(MOST_APART, max(1 / MOST_APART, mine / its)) if mine > 0 else 1.0
            for mine, its in zip(found, REFERENCE, strict=True)
        )
    )


def calibrated(
    root: Path | None, host_class: str, measure: Callable[[], Measured] = measured
) -> Speed:
    """The speed of this class of machine: as it was kept, else measured now and kept.

    Without a store (None), or where it cannot be written, it is measured and not kept.
    """
    if root is None:
        return speed_of(measure())
    path = root / LAYOUT / FOLDER / f"{host_class}.json"
    found = _kept(path)
    if found is None:
        found = measure()
        with contextlib.suppress(OSError):
            _keep(path, found)
    return speed_of(found)


def _kept(path: Path) -> Measured | None:
    try:
        found = json.loads(path.read_text(encoding="ascii"))
        figures = Measured(float(found["step_s"]), float(found["byte_s"]))
    except (OSError, ArithmeticError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return figures if all(0 < each < math.inf for each in figures) else None


def _keep(path: Path, found: Measured) -> None:
    make_folders(path.parent)
    temporary = path.with_name(f"{uuid.uuid4().hex}.tmp")
    try:
        temporary.touch(FILE)
        temporary.write_text(json.dumps(found._asdict()), encoding="ascii")
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
