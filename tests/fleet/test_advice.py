"""Test advice on planted chances: what is found, what is not, and how much it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import dml
from dml.errors import PlanError
from dml.fleet.advice import KINDS
from dml.fleet.compaction import write_tables
from dml.fleet.fleet import Fleet
from dml.fleet.snapshot import commit, snapshot
from dml.fleet.tables import tables
from dml.testing.planted_fleet import DAYS, PLANTS, PlantedFleet, planted_fleet

pytest.importorskip("duckdb")
WEEKS = DAYS / 7
CACHES = ("cache-prefix", "cache-epochs")
Place = tuple[str, str]


def stored(root: Path, planted: PlantedFleet) -> Fleet:
    files = write_tables(root, "2026-02-01", tables(planted.events))
    commit(root, snapshot(root).next([*files]))
    return dml.fleet.open(root)


class Found:
    """The advice on a planted fleet beside the truth; savings as parts of the true ones."""

    def __init__(self, root: Path, planted: PlantedFleet) -> None:
        self.true = {(each.kind, each.where): each for each in planted.chances}
        rows = stored(root, planted).advise().to_pylist()
        self.rows = {(row["kind"], row["prefix"] or row["fleet_fingerprint"]): row for row in rows}
        self.right = self.true.keys() & self.rows.keys()

    def savings(self) -> Iterable[float]:
        for place in self.right:
            for name, weeks in (("cpu_s", WEEKS), ("wait_s", WEEKS), ("stored_bytes", 1.0)):
                if wanted := getattr(self.true[place], name):
                    yield self.rows[place][name] * weeks / wanted


def test_every_kind_has_a_plant_and_a_line_of_the_docs() -> None:
    kinds = {*CACHES, *(kind.name for kind in KINDS)}
    assert len(kinds) == 20
    assert kinds == PLANTS.keys()
    page = Path(__file__).parents[2] / "docs" / "fleet.md"
    listed = [line.split("`")[1] for line in page.read_text().splitlines() if line[:3] == "| `"]
    assert kinds <= {*listed}


@pytest.mark.parametrize("kind", PLANTS)
def test_a_planted_chance_is_found_with_its_savings(tmp_path: Path, kind: str) -> None:
    found = Found(tmp_path, planted_fleet(7, [kind], ordinary=10))
    assert found.rows.keys() == found.true.keys()
    parts = [*found.savings()]  # of a few noisy runs
    assert parts == pytest.approx([1.0] * len(parts), abs=0.3)


def test_of_many_fleets_most_chances_are_found_and_little_else(
    tmp_path: Path, sampled: Callable[[Iterable[int], int], list[int]]
) -> None:
    true = found = right = 0
    savings: list[float] = []
    for seed in sampled(range(100), 4):
        each = Found(tmp_path / str(seed), planted_fleet(seed))
        true, found = true + len(each.true), found + len(each.rows)
        right += len(each.right)
        savings += each.savings()
    assert right >= 0.95 * true
    assert right >= 0.9 * found
    assert sum(0.85 <= part <= 1.15 for part in savings) >= 0.95 * len(savings)


def test_prices_decide_what_is_worth_its_money(tmp_path: Path) -> None:
    fleet = stored(tmp_path, planted_fleet(3, ["cache-prefix", "failing"], ordinary=0))
    kinds = [row["kind"] for row in fleet.advise().to_pylist()]
    assert {*kinds} == {"cache-prefix", "failing"}
    dear = fleet.advise({"gb_month": 1e6}).to_pylist()
    assert [row["kind"] for row in dear] == ["failing"]
    free = fleet.advise({"core_hour": 0.0, "accelerator_hour": 0.0, "gb_month": 0.0})
    assert {*free["kind"].to_pylist()} == {*kinds}
    double = fleet.advise({"core_hour": 0.08, "gb_month": 0.0})["money"].to_pylist()
    once = fleet.advise({"gb_month": 0.0})["money"].to_pylist()
    assert double == pytest.approx([2 * each for each in once])


@pytest.mark.parametrize("wrong", [{"core_hours": 1.0}, {"core_hour": -1.0}, {"gb_month": "2"}])
def test_a_wrong_price_is_an_error(tmp_path: Path, wrong: dict[str, float]) -> None:
    fleet = stored(tmp_path, planted_fleet(3, [], ordinary=1))
    with pytest.raises(PlanError, match="core_hour, accelerator_hour, gb_month"):
        fleet.advise(wrong)


def test_a_store_without_runs_has_no_advice(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    assert dml.fleet.open(tmp_path).advise().num_rows == 0
