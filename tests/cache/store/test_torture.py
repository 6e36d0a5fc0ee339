"""Stress a store: kill and stop its processes, damage files, and evict parts."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dml.cache.eviction import janitor
from dml.cache.parts import blob_digest
from dml.cache.parts.parts import PartStore
from dml.cache.store import layout
from tests.cache.store import torture
from tests.cache.store.fills import get
from tests.sampling import amount

ROOT = Path(__file__).resolve().parents[3]
MAKING = ("MADE", "ADOPTED", "UNKEPT")
FOLDERS = ("e", "blobs")


class Gang:
    """Processes on one store; each that is killed is followed by another."""

    def __init__(self, given: dict[str, Any], count: int) -> None:
        self._given, self._started = given, 0
        self.seed = random.Random(20260101)
        self.done: Counter[str] = Counter()
        self.processes = [self._start(clears=not number) for number in range(count)]

    def _start(self, *, clears: bool) -> subprocess.Popen[bytes]:
        self._started += 1
        given = {**self._given, "seed": self._started, "clears": clears}
        return subprocess.Popen(
            [sys.executable, "-m", torture.__name__, json.dumps(given)], cwd=ROOT
        )

    def hurt(self, stop_s: float) -> None:
        """Kill one, or stop one for longer than a lease lasts."""
        number = self.seed.randrange(len(self.processes))
        process = self.processes[number]
        if self.seed.random() < 0.3:
            process.send_signal(signal.SIGSTOP)
            time.sleep(stop_s)
            process.send_signal(signal.SIGCONT)
            self.done["stopped"] += 1
        else:
            process.kill()
            process.wait()
            self.done["killed"] += 1
            self.processes[number] = self._start(clears=not number)

    def end(self) -> list[int]:
        """How all of them ended."""
        try:
            return [process.wait(timeout=60) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()


def some_made(counts: Counter[str]) -> bool:
    return counts["MADE"] > 0


def tortured(
    given: dict[str, Any],
    seconds: float,
    tmp_path: Path,
    watch: Callable[[], object] = int,
    enough: Callable[[Counter[str]], bool] = some_made,
) -> tuple[Counter[str], list[Any]]:
    """Torture a store; how often what happened, and every note.

    On a slow machine little may be made in so many seconds: then it goes on until that is
    ``enough``, but hurts nobody any more.
    """
    diaries, go, over = tmp_path / "diaries", tmp_path / "go", tmp_path / "over"
    diaries.mkdir()
    given = {"damages": True, **given, "parent": os.getpid(), "go": str(go), "over": str(over)}
    given |= {"diaries": str(diaries), "piece_bytes": blob_digest.PIECE_BYTES}
    count = amount(4, 6)
    gang = Gang(given, count)
    try:
        while len(list(diaries.iterdir())) < count:
            time.sleep(0.01)
        go.touch()
        end = time.monotonic() + seconds - 2 * given["ttl_s"]
        while time.monotonic() < end:
            pause_s = gang.seed.uniform(0.3, 1.5) * given["ttl_s"] ** 2  # a bucket takes longer
            watched(watch, pause_s)
            gang.hurt(1.5 * given["ttl_s"])
        watched(watch, 2 * given["ttl_s"])
        while not enough(Counter(note[0] for note in noted(diaries))):
            watched(watch, 0.1)
    finally:
        over.touch()
        ends = gang.end()
    watch()  # on a slow machine most is made after they were hurt
    assert ends == [0] * count
    notes = noted(diaries)
    return gang.done + Counter(note[0] for note in notes), notes


def noted(diaries: Path) -> list[Any]:
    """All that was written down, but for lines that were cut off."""
    return [
        json.loads(line)
        for path in diaries.iterdir()
        for line in path.read_text().splitlines()
        if line.endswith("]")
    ]


def watched(watch: Callable[[], object], seconds: float) -> None:
    """Look again and again for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watch()
        time.sleep(0.01)


def judged(given: dict[str, Any], counts: Counter[str], notes: list[Any], *, whole: bool) -> None:
    """What must hold of any run."""
    place = torture.place_of(given)
    logging.getLogger(__name__).info("%s", dict(counts))
    assert counts["WRONG"] == counts["UNUSABLE"] == 0, notes
    versions = [tuple(note[1:5]) for note in notes if note[0] == "MADE"]
    assert len(versions) == len(set(versions)), "one version was committed twice"
    assert counts["MADE"] > 0
    assert counts["FOUND"] > 0 or not whole, "a slow machine may do no more than make parts"
    made = sum(counts[each] for each in MAKING)
    twice = counts["ADOPTED"] + counts["UNKEPT"]
    # who slept beyond the ttl, or made what was removed meanwhile, has worked in vain
    assert twice <= (0.01 * made if whole else counts["stopped"] + 5 * counts["REMOVED"] + 1)
    time.sleep(given["ttl_s"])
    janitor.sweep(place, ttl_s=given["ttl_s"] / 2, grace_s=-60)
    assert place.names("tmp") == []
    store = PartStore(torture.place_of(given), ttl_s=given["ttl_s"])
    for entry in torture.ENTRIES:
        for part in range(torture.PARTS):
            rows = torture.expected(entry, part)
            got = get(store, entry, part, partial(torture.expected, entry, part))
            assert got.table.equals(rows)
    janitor.sweep(place, ttl_s=given["ttl_s"], grace_s=-60)
    named = {name for name in place.names(layout.ENTRIES) if "/part." in name}
    assert len(named) == len(place.names(layout.BLOBS)) == 24


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several for each part, so that writers are killed between them."""
    monkeypatch.setattr(blob_digest, "PIECE_BYTES", 16 << 10)


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.cluster
@pytest.mark.parametrize("fills", [False, True], ids=["get", "fill"])
def test_torture_on_a_disk(tmp_path: Path, whole: bool, fills: bool) -> None:
    given = {"root": str(tmp_path / "root"), "ttl_s": 1.0, "work_s": 0.03, "fills": fills}
    counts, notes = tortured(given, 60.0 if whole else 5.0, tmp_path)
    judged(given, counts, notes, whole=whole)


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.cluster
@pytest.mark.parametrize("fills", [False, True], ids=["get", "fill"])
def test_torture_in_a_bucket(
    tmp_path: Path, bucket_options: dict[str, Any], whole: bool, fills: bool
) -> None:
    given = {
        "url": f"s3://keeping/torture-{fills}", "options": bucket_options,
        "ttl_s": 2.0, "work_s": 0.03, "fills": fills,
    }  # fmt: skip
    counts, notes = tortured(given, 60.0 if whole else 8.0, tmp_path)
    judged(given, counts, notes, whole=False)


@pytest.mark.sample(1)
@pytest.mark.law
@pytest.mark.cluster
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fills", [False, True], ids=["get", "fill"])
def test_a_quota_holds_whatever_becomes_of_writers(
    tmp_path: Path, whole: bool, fills: bool
) -> None:
    quota, ttl_s, seen = 1_000_000, 1.0, list[int]()
    given: dict[str, Any] = {
        "root": str(tmp_path / "root"), "ttl_s": ttl_s, "work_s": 0.01, "fills": fills,
        "quota_bytes": quota, "damages": False,  # which brings back what was evicted
    }  # fmt: skip
    place, seconds = torture.place_of(given), 6.0
    if whole:
        seconds = 600.0 if fills else 60.0
    counts, notes = tortured(
        given, seconds, tmp_path,
        lambda: seen.append(sum(each.size for each in place.list_files(layout.BLOBS))),
        lambda counts: counts["MADE"] > 10 and max(seen) > quota / 2,
    )  # fmt: skip
    logging.getLogger(__name__).info("%s, at most %d bytes", dict(counts), max(seen))
    assert counts["WRONG"] == counts["UNUSABLE"] == 0, notes
    assert quota / 2 < max(seen) <= quota
    assert counts["MADE"] > 10, "parts went for others"
    time.sleep(ttl_s)
    store = PartStore(place, ttl_s=ttl_s, quota_bytes=quota)
    assert store.quota is not None
    store.quota.used_bytes()
    assert place.names("announced") == []
