"""Compare ``explain`` of the named pipelines with the committed texts.

After a change of plans: ``pytest tests/plans --update-plans``, then read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dml.optimize.explain.stations import explained
from dml.optimize.phases import optimize
from dml.testing.pipelines import NAMED, write_data

HERE = Path(__file__).resolve().parent
SHOWN = ("written", "normalized", "chosen", "physical", "graph", "rules")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", NAMED)
def test_a_plan_is_the_one_that_was_read(
    name: str, data: Path, request: pytest.FixtureRequest
) -> None:
    stations = optimize(NAMED[name].make(data)._node, 0)
    parts = [f"{stage}\n{_indented(explained(stations, stage, micros=False))}" for stage in SHOWN]
    text = "\n\n".join(parts).replace(str(data), "DATA") + "\n"
    golden = HERE / f"{name}.txt"
    if request.config.getoption("--update-plans"):
        golden.write_text(text, encoding="utf-8")
    assert golden.exists(), "run pytest tests/plans --update-plans, and read what it wrote"
    assert text == golden.read_text(encoding="utf-8")


def test_every_text_has_its_pipeline() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == set(NAMED)


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))
