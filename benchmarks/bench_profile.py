"""Plant a bottleneck into pipelines, and see whether ``profile`` names it.

    python benchmarks/bench_profile.py

Each pipeline has one operator, or one training step, that takes most of the time. Under pytest a
few of them run, as a check that the benchmark works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest

import dml
from dml import Dataset
from dml.api.run_profile import RunProfile

ROWS, WAIT_S, TURNS = 400, 0.004, 20_000
Row = dict[str, Any]


class Planted(NamedTuple):
    """A pipeline, the operator that limits it, and the seconds of a training step."""

    ds: Dataset
    name: str
    step_s: float = 0.0


def waits(row: Row) -> Row:
    time.sleep(WAIT_S)
    return row


def computes(row: Row) -> Row:
    total = 0
    for i in range(TURNS):
        total += i * i
    return row | {"total": total}


def quick(row: Row) -> Row:
    return row | {"text": str(row["id"])}


def keeps(row: Row) -> bool:
    return bool(waits(row))


def twice(row: Row) -> list[Row]:
    return [waits(row), row]


def waits_for_batch(batch: Row) -> Row:
    time.sleep(8 * WAIT_S)
    return batch


def added(total: int, row: Row) -> tuple[int, Row]:
    time.sleep(WAIT_S / 4)
    return total + 1, row


def jitters(row: Row, rng: Any) -> Row:
    return waits(row) | {"draw": float(rng.random())}


def counted(group: Row) -> Row:
    time.sleep(40 * WAIT_S)
    return {"rows": len(group["id"])}


def slow_rows() -> Iterator[Row]:
    for i in range(ROWS):
        time.sleep(WAIT_S)
        yield {"id": i}


class Model:
    """A class whose instances are called for each row."""

    def __call__(self, row: Row) -> Row:
        return waits(row)


def planted() -> dict[str, Planted]:
    """The cases, by what is slow."""
    rows = dml.range(ROWS).with_options(telemetry_dir="off")
    return {**functions(rows), **places(rows), **others(rows)}


def functions(rows: Dataset) -> dict[str, Planted]:
    return {
        "a function that waits": Planted(rows.map(waits).batch(8), "MapRows(waits)"),
        "a function that computes": Planted(rows.map(computes).batch(8), "MapRows(computes)"),
        "a filter": Planted(rows.filter(keeps).batch(8), "FilterRows(keeps)"),
        "several rows of one": Planted(rows.flat_map(twice).batch(8), "FlatMap(twice)"),
        "groups of rows": Planted(
            rows.map_batches(waits_for_batch, batch_size=8).batch(8), "MapBatches(waits_for_batch"
        ),
        "batches": Planted(rows.batch(8).map(waits_for_batch), "MapBatch(waits_for_batch)"),
    }


def places(rows: Dataset) -> dict[str, Planted]:
    return {
        "one at a time": Planted(
            rows.map(quick).map(waits, concurrency=1).batch(8), "MapRows(waits"
        ),
        "random augmentation": Planted(rows.random_map(jitters).batch(8), "RandomMap(jitters)"),
        "in order": Planted(rows.map(quick).scan(0, added).batch(8), "Scan("),
        "until a row": Planted(rows.map(quick).take_while(keeps).batch(8), "TakeWhile(keeps)"),
        "the source": Planted(
            dml.from_generator(slow_rows).map(quick).batch(8).with_options(telemetry_dir="off"),
            "slow_rows",
        ),
        "the second of three": Planted(
            rows.map(quick).map(waits).map(quick).batch(8), "MapRows(waits)"
        ),
        "the other input": Planted(
            rows.map(quick).zip(rows.map(waits).rename({"id": "n"})).batch(8), "MapRows(waits)"
        ),
        "below a shuffle": Planted(
            rows.map(waits).shuffle(100).map(quick).batch(8), "MapRows(waits)"
        ),
        "above a sort": Planted(rows.map(quick).sort("id").map(waits).batch(8), "MapRows(waits)"),
    }


def others(rows: Dataset) -> dict[str, Planted]:
    keyed = rows.with_columns(k=dml.col("id") % 4)
    large = dml.range(1_000_000).with_options(telemetry_dir="off")
    return {
        "a group": Planted(keyed.group_by("k").map_groups(counted), "MapGroup(counted)"),
        "a class": Planted(rows.map(Model).batch(8), "MapRows(Model"),
        "on processes": Planted(
            rows.map(quick).map(computes).batch(8).with_options(executor="processes"),
            "MapRows(computes)",
        ),
        "a full sort": Planted(large.shuffle(seed=1).sort("id").batch(4096), "Sort('id')"),
        "the training step": Planted(rows.map(quick).batch(8), "", step_s=0.01),
    }


def loop(step_s: float) -> Callable[[Iterable[Any]], None]:
    def train(batches: Iterable[Any]) -> None:
        for _ in batches:
            time.sleep(step_s)

    return train


def named(case: Planted) -> tuple[RunProfile, bool]:
    """The profile of a case, and whether it names what was planted."""
    for _ in case.ds:  # kernels are compiled, and the number of slices at once is found
        pass
    if case.step_s:
        found = case.ds.profile(loop(case.step_s), upper_bound=True)
        return found, not found.input_bound
    found = case.ds.profile()
    return found, case.name in found.bottleneck


@pytest.mark.parametrize("what", ["a function that waits", "in order"])
def test_a_bottleneck_is_profiled(what: str) -> None:
    found, _ = named(planted()[what])  # timings decide no test
    assert found.steps
    assert found.bottleneck


def main() -> None:
    right = 0
    cases = planted()
    for what, case in cases.items():
        found, good = named(case)
        right += good
        limit = found.bottleneck if not case.step_s else f"input bound: {found.input_bound}"
        print(f"{'named ' if good else 'MISSED'}  {what:26s}  {limit}")
    print(f"{right} of {len(cases)} named")


if __name__ == "__main__":
    main()
