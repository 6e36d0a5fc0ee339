"""Test the memory report: how the limit was divided, and how much each part used."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

import dml
from dml.errors import MemoryContractError
from dml.exec.memory.memory_report import Holding
from dml.exec.scheduler.concurrency import Tuning
from dml.exec.scheduler.policy import Demand, Load

LIMIT = 32 << 20
OPTIONS = {"memory_limit": LIMIT, "num_workers": 2, "telemetry_dir": "off"}


def rows(n: int) -> dml.Dataset:
    columns = {f"x{i}": dml.random(stream=i) for i in range(8)}
    return dml.range(n).with_columns(**columns)


@pytest.mark.law
def test_before_a_run_the_parts_are_known() -> None:
    report = rows(100).batch(10).with_options(**OPTIONS).memory_report()
    (parts,) = report.plans
    assert parts["stages"] + parts["operator"] + parts["ahead"] <= report.limit_bytes == LIMIT
    assert parts["partition"] < parts["stages"]
    assert (report.accounted_bytes, report.stages, report.spilled_runs) == (0, (), 0)


@pytest.mark.law
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_after_a_run_what_stages_held_is_known(executor: str) -> None:
    ds = rows(300_000).batch(1000).with_options(**OPTIONS, executor=executor)
    it = iter(ds)
    for _ in it:
        pass
    for report in (ds.memory_report(), it.memory_report()):
        (stage,) = report.stages
        assert stage.learned_bytes is not None
        assert stage.learned_bytes > 65_536 * 9 * 8
        assert stage.declared_bytes > 0
        assert stage.slices >= 5
        assert stage.held_bytes <= report.accounted_bytes <= report.plans[0]["stages"]
        assert report.forced == 0
        assert report.counted_bytes is None or report.counted_bytes > 0
    assert json.loads(json.dumps(ds.memory_report().to_dict()))["limit_bytes"] == LIMIT
    assert "a slice was promised" in str(ds.memory_report())
    assert it.stats().records[-1]["rows_out"] == 300_000


@pytest.mark.law
def test_what_goes_to_disk_is_told() -> None:
    ds = rows(300_000).sort("x1").with_options(**OPTIONS, executor="sync").batch(1000)
    for _ in ds:
        pass
    report = ds.memory_report()
    assert report.spilled_runs > 1
    assert report.spilled_bytes > 300_000 * 9 * 8 // 2
    assert "spilled" in str(report)


@pytest.mark.law
def test_every_source_has_a_part_and_every_pass_is_told_of() -> None:
    ds = rows(1000).zip(dml.from_dict({"other": [*range(1000)]})).repeat(3).batch(10)
    ds = ds.with_options(**OPTIONS, executor="sync")
    list(ds)
    report = ds.memory_report()
    assert len(report.plans) == len(report.stages) == 2
    assert sum(parts["stages"] for parts in report.plans) <= LIMIT
    assert all(stage.held_bytes for stage in report.stages)


@pytest.mark.law
def test_a_run_that_failed_is_told_of() -> None:
    ds = dml.range(100).map(lambda _row: {"b": b"1" * 30_000_000}).with_options(**OPTIONS)
    with pytest.raises(MemoryContractError):
        list(ds)
    assert len(ds.memory_report().stages) == 2  # what is read, and slices of it


@pytest.mark.law
@pytest.mark.usefixtures("unmeasured")
def test_the_disk_is_the_last_resort() -> None:
    few = dml.range(20_000).select(x=dml.random(stream=1)).sort("x").batch(1000)
    it = iter(few.with_options(memory_limit="64MiB", num_workers=2))
    assert sum(len(batch["x"]) for batch in it) == 20_000
    report = it.memory_report()
    assert (report.spilled_runs, report.spilled_bytes, report.forced) == (0, 0, 0)


def test_drivers_one_after_the_other_are_folded() -> None:
    """The most of any, slices beyond the number of all, stages of each."""

    def core(names: tuple[str, ...], peak_bytes: int, forced: int) -> Any:
        demands = [Demand(name, output_bytes=5, open_bytes=1) for name in names]
        state = SimpleNamespace(loads=[Load(each, 1.0) for each in demands])
        fields = {"peak_bytes": peak_bytes, "forced": forced, "demands": demands, "state": state}
        fields["tuning"] = Tuning()
        return SimpleNamespace(**fields)

    holding = Holding()
    for names, peak_bytes, forced in ((("a", "b"), 7, 1), (("merge",), 9, 2), (("a", "b"), 8, 4)):
        holding.begin(core(names, peak_bytes, forced))
        holding.look()
    assert [each.name for each in holding.look()] == ["a", "b", "merge"]
    assert (holding.peak_bytes, holding.forced) == (9, 7)
