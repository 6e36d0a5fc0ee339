"""Scale cost priors by the machine's speed, which is measured once per class of machine.

The measurement times a loop of plain Python and a memory copy, each a few times for half a
millisecond, and takes the best; the results are stored beside the telemetry.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from timeit import repeat
from typing import Final, NamedTuple

import numpy as np

from dml.fleet.collector import LAYOUT, replacing
from dml.profile import Speed

FOLDER: Final = "hosts"
TIMES: Final = 5
LOOP: Final = 20_000
COPIED_BYTES: Final = 4 << 20
# Limit of the ratio of the measured speed to that of the reference machine.
MOST_APART: Final = 32.0


class Measured(NamedTuple):
    """Seconds for one iteration of a Python loop, and for copying one byte."""

    step_s: float
    byte_s: float


REFERENCE: Final = Measured(3.0e-8, 2.5e-11)
"""The machine for which the priors were written."""


def measured(clock: Callable[[], float] = perf_counter) -> Measured:
    """Measure this machine and return its times; takes some 5 ms."""
    given = np.ones(COPIED_BYTES, dtype=np.uint8)
    taken = np.empty_like(given)
    loops = repeat(_loop, timer=clock, repeat=TIMES, number=1)
    copies = repeat(lambda: np.copyto(taken, given), timer=clock, repeat=TIMES, number=1)
    return Measured(min(loops) / LOOP, min(copies) / COPIED_BYTES)


def _loop() -> int:
    found = 0
    for i in range(LOOP):
        found += i & 7
    return found


def speed_of(found: Measured) -> Speed:
    """Return how many times slower than the reference ``found`` is, limited by ``MOST_APART``."""
    return Speed(
        *(
            min(MOST_APART, max(1 / MOST_APART, mine / its)) if mine > 0 else 1.0
            for mine, its in zip(found, REFERENCE, strict=True)
        )
    )


def calibrated(
    root: Path | None, host_class: str, measure: Callable[[], Measured] = measured
) -> Speed:
    """Return the speed of this class of machine, as stored; if it is not, measure and store it.

    ``root`` is the telemetry store. If it is None or not writable, the measurement is not stored.
    """
    if root is None:
        return speed_of(measure())
    path = root / LAYOUT / FOLDER / f"{host_class}.json"
    found = _load(path)
    if found is None:
        found = measure()
        with contextlib.suppress(OSError), replacing(root, path) as file:
            json.dump(found._asdict(), file)
    return speed_of(found)


def _load(path: Path) -> Measured | None:
    try:
        found = json.loads(path.read_text(encoding="ascii"))
        figures = Measured(float(found["step_s"]), float(found["byte_s"]))
    except (OSError, ArithmeticError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return figures if all(0 < each < math.inf for each in figures) else None
