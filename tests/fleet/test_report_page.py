"""Test the page about a fleet: what it says, and that nothing in it runs or is fetched."""

from __future__ import annotations

import re
import stat
from html.parser import HTMLParser
from pathlib import Path

import pytest

import dml
from dml.events import OperatorTotals, RunFinished, RunStarted
from dml.fleet.collector import publish
from dml.testing.synthetic_fleet import write_fleet

pytest.importorskip("duckdb")
pytest.importorskip("bokeh")
NOON = 1_770_033_600.0
HOSTILE = "<script>alert(1)</script>\"'</td>&amp;"


class Texts(HTMLParser):
    """The texts of a page outside of scripts and styles, and what its elements refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.scripts = 0
        self._quiet = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._quiet = tag in ("script", "style")
        self.scripts += tag == "script"
        self.links += [f"{name}={value}" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        self._quiet = False

    def handle_data(self, data: str) -> None:
        if not self._quiet:
            self.texts.append(data)


def parsed(path: Path) -> Texts:
    found = Texts()
    found.feed(path.read_text())
    return found


def test_the_page_says_what_is_shared_and_shows_hostile_names_as_text(tmp_path: Path) -> None:
    for n in range(3):
        name = f"r{n}{HOSTILE}"
        start = RunStarted(
            run=name, at=NOON + n, job=HOSTILE, fingerprints={"fleet": "f"}, host_class=HOSTILE,
            pipeline=f"Batch\n{HOSTILE}", capability=1.0,
            prefixes={"q" * 32: "0 Range", "p" * 32: "0 MapRows"},
        )  # fmt: skip
        did = OperatorTotals(
            run=name, at=NOON, ordinal=0, operator=HOSTILE, cpu_s=2.0, seconds=2.0, rows_out=4,
            bytes_out=10, medium="local",
        )  # fmt: skip
        end = RunFinished(run=name, at=NOON + n, rows=4, seconds=2.0, status="failed", cpu_s=2.0,
                          process_cpu_s=3.0, bytes=5, bytes_read=10)  # fmt: skip
        publish(tmp_path / "t", f"w-{n}", [start, did, end], NOON)
    path = dml.fleet.open(tmp_path / "t").report(tmp_path / "page.html")
    page = parsed(path)
    whole = "".join(page.texts)
    assert f"3 runs of 1 pipeline in 1 job took processor time: 6.00 s on {HOSTILE}." in whole
    assert "3 runs failed." in whole
    assert "3 runs of 1 pipeline compute the 10 B after MapRows" in whole
    assert "all 3 runs failed" in whole
    assert HOSTILE in page.texts[page.texts.index("host class") :] or HOSTILE in whole
    assert "<script>alert" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    write_fleet(tmp_path / "t", runs=500, pipelines=100, days=3)
    path = dml.fleet.open(tmp_path / "t").report(tmp_path / "page.html")
    page, text = parsed(path), path.read_text()
    assert page.links == []
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'")
    assert "http" not in policy[1]
    assert text.count("<figcaption>") == 7
    assert "synthetic-16c" in text
    assert len(text) < 2_500_000


def test_an_empty_fleet_has_a_page(tmp_path: Path) -> None:
    publish(tmp_path / "t", "w-0", [RunStarted(run="a", at=NOON, job="j")], NOON)
    path = dml.fleet.open(tmp_path / "t").report(tmp_path / "page.html")
    assert "1 run of 0 pipelines in 1 job took processor time: 0 s on unknown." in path.read_text()
