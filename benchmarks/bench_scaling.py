"""This file shows where policies of scaling settle: ours, Cachew's, and that of Kubernetes.

    python benchmarks/bench_scaling.py [SEEDS]

All of it is simulation, in windows of 100 batches. Noise is that of a window: 5 % of every single
batch makes 0.5 % of a window, 5 % of a window is ten times as much.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from dml.cluster.autoscale.scaling_policy import (
    TRAINER,
    Cachew,
    GainPolicy,
    ScalingPolicy,
    Utilisation,
)
from dml.testing.scaling_service import (
    CURVES,
    Curve,
    ObservedWindow,
    changes,
    keyed,
    served,
    settled_workers,
    within,
)

IDEALS = (4, 13, 16, 24, 32, 40, 64, 128)
NOISES = {"none": 0.0, "5 % of batches": 0.005, "5 % of windows": 0.05}
POLICIES: dict[str, Callable[[], ScalingPolicy]] = {
    "ours": GainPolicy,
    "3 % rule": Cachew,
    "80 %": Utilisation,
}
WINDOWS, LATE = 120, 60
FIRST = 1_000_000  # seeds that nothing was tuned on
STEP_NOISE = 0.05


def settled(counts: list[int], ideal: int) -> str:
    counts = sorted(counts)
    good = sum(within(each, ideal) for each in counts)
    middle = counts[len(counts) // 2]
    return f"{middle} ({counts[0]} to {counts[-1]}) {good / len(counts):.0%}"


def runs(
    make: Callable[[], ScalingPolicy], curve: Curve, noise: float, seeds: int
) -> list[list[ObservedWindow]]:
    one = range(FIRST, FIRST + seeds)
    return [served(make(), lambda _: curve, WINDOWS, noise, keyed(seed)) for seed in one]


def counts(seeds: int) -> Iterator[str]:
    """Where ours and Cachew's settle: the middle, the range, and the share within 10 %."""
    cells = [f"{name}, {noise}" for noise in NOISES for name in ("ours", "3 % rule")]
    yield "| ideal | " + " | ".join(cells) + " | changes in 100 windows |"
    yield "|" + "---|" * (len(cells) + 2)
    for ideal in IDEALS:
        row, late = [str(ideal)], 0.0
        for noise in NOISES.values():
            for name in ("ours", "3 % rule"):
                every = runs(POLICIES[name], Curve(float(ideal)), noise, seeds)
                row.append(settled([settled_workers(each) for each in every], ideal))
                if name == "ours":
                    late = sum(changes(each[-LATE:]) for each in every) / len(every) / LATE * 100
        yield "| " + " | ".join([*row, f"{late:.2f}"]) + " |"


def steps(seeds: int) -> Iterator[str]:
    """How ours follows a trainer that becomes twice as fast, or half."""
    yield "| workers | decisions, middle and most | windows, middle and most | found |"
    yield "|---|---|---|---|"
    for ideal, speed in [(n, f) for f in (2.0, 0.5) for n in (8, 16, 24, 32, 64)]:
        every = [followed(ideal, speed, FIRST + seed) for seed in range(seeds)]
        took, windows = sorted(each[0] for each in every), sorted(each[1] for each in every)
        good = sum(each[2] for each in every) / len(every)
        half = len(every) // 2
        yield (
            f"| {ideal} to {ideal * speed:g} | {took[half]}, {took[-1]} |"
            f" {windows[half]}, {windows[-1]} | {good:.0%} |"
        )


def followed(ideal: int, speed: float, seed: int) -> tuple[int, int, bool]:
    """Decisions and windows until it is where it should be, within 10 % or a worker."""

    def load(number: int) -> Curve:
        return Curve(float(ideal), 1.0 if number < LATE else 1 / speed)

    seen = served(GainPolicy(), load, WINDOWS, STEP_NOISE, keyed(seed))[LATE:]
    slack = max(0.1, 1 / (ideal * speed))
    near = [within(each.workers, ideal * speed, slack) for each in seen]
    first = near.index(True) if True in near else len(near)
    return changes(seen[:first]), first, near[-1]


def curves(seeds: int) -> Iterator[str]:
    """What nine curves cost, workers and a trainer of 30, against the least there is."""
    yield "| curve | ideal |" + "".join(f" {name}: workers, time, cost |" for name in POLICIES)
    yield "|" + "---|" * (len(POLICIES) + 2)
    for name, curve in CURVES.items():
        cheapest = min(curve.cost(n, TRAINER) for n in range(1, 200))
        row = [name, str(curve.ideal)]
        for make in POLICIES.values():
            at = sorted(settled_workers(each) for each in runs(make, curve, 0.005, seeds))[
                seeds // 2
            ]
            time = curve.batch_time_s(at) / curve.batch_time_s(4096)
            row.append(f"{at}, {time:.2f}, {curve.cost(at, TRAINER) / cheapest:.2f}")
        yield "| " + " | ".join(row) + " |"


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    for table in (counts, steps, curves):
        print(f"\n{table.__doc__}\n")
        for line in table(seeds):
            print(line, flush=True)


def test_scaling_is_measured() -> None:
    assert len(list(curves(1))) == len(CURVES) + 2


if __name__ == "__main__":
    main()
