"""Counted memory of pipelines made to break the memory number, each in every way to run.

    python benchmarks/bench_adversarial.py
    python benchmarks/bench_adversarial.py --ways cluster "sixteen interleaved"

Writes benchmarks/results/adversarial.md, and beside it what that is drawn from: measurements that
are not made again stay. Ways "group-..." are inside a control group of exactly what is allowed,
which needs root.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.laws import groups  # noqa: E402 - found only now
from tests.laws.adversarial_more import EVERY  # noqa: E402
from tests.laws.adversarial_run import (  # noqa: E402
    GROUPED,
    LIMIT_BYTES,
    MIB,
    WAYS,
    WORKERS,
    allowed_bytes,
    say,
    watched,
)

RESULTS = ROOT / "benchmarks" / "results"
Found = dict[str, dict[str, dict[str, Any]]]
"""By way and pipeline: ``mib`` at most, ``seconds``, ``error`` and what is ``wrong``."""


def measured(name: str, way: str, folder: Path) -> dict[str, Any]:
    """One run."""
    found = watched(name, way, folder)
    error = f"{found.error[0]}: {found.error[1]}" if found.error else ""
    wrong = found.wrong(EVERY[name])
    mib = round(found.peak_bytes / MIB)
    return {"mib": mib, "seconds": round(found.seconds, 1), "error": error, "wrong": wrong}


def added(path: Path, name: str, way: str, record: dict[str, Any]) -> Found:
    """All measurements, with one more: others may add theirs at the same time."""
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known: Found = json.loads(file.read() or "{}")
        known.setdefault(way, {})[name] = record
        file.truncate(0)
        file.write(json.dumps(known, indent=0, sort_keys=True) + "\n")
    return known


def page(known: Found) -> Iterator[str]:
    """The lines of the page."""
    ways = [way for way in WAYS if way in known]
    runs = [record for way in ways for record in known[way].values()]
    wrong = sum(bool(record["wrong"]) for record in runs)
    yield "# Pipelines made to break the memory number"
    yield ""
    yield "`python benchmarks/bench_adversarial.py`"
    yield ""
    yield (
        f"{len(EVERY)} pipelines at `memory_limit={LIMIT_BYTES // MIB}MiB` with {WORKERS} workers,"
        f" {len(runs)} runs, {wrong} of which broke the contract; Python"
        f" {platform.python_version()}, {os.cpu_count()} cores, shared with other work."
    )
    yield "What is counted is private and shared memory over all processes"
    yield "([memory](../../docs/memory.md)). Ways `group-` are inside a control group of exactly"
    yield "what is allowed, whose own count has pages of files too; `limited` has an `RLIMIT_DATA`."
    yield ""
    yield "Cells: MiB counted at most; `e` a named error came instead of rows, `-` not measured,"
    yield "**bold** what broke the contract. Each is of its last run, not all of them on one day."
    yield ""
    yield f"| pipeline | {' | '.join(ways)} |"
    yield f"|---|{'---:|' * len(ways)}"
    yield f"| *allowed* | {' | '.join(str(allowed_bytes(way) // MIB) for way in ways)} |"
    for name in EVERY:
        yield f"| {name} | {' | '.join(_cell(known[way].get(name)) for way in ways)} |"
    yield from _errors(known, ways)


def _cell(record: dict[str, Any] | None) -> str:
    if record is None:
        return "-"
    text = f"{record['mib']}{' e' * bool(record['error'])}"
    return f"**{text}**" if record["wrong"] else text


def _errors(known: Found, ways: list[str]) -> Iterator[str]:
    yield from ("", "## Named errors", "", "| pipeline | error |", "|---|---|")
    for name in EVERY:
        found = (known[way].get(name, {}).get("error") for way in ways)
        for error in dict.fromkeys(filter(None, found)):
            yield f"| {name} | {error} |"
    wrong = [
        f"- {name}, {way}: {record['wrong']}"
        for way in ways
        for name, record in known[way].items()
        if record["wrong"]
    ]
    yield from ("", "## Broken", "", *(wrong or ["Nothing."]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--out", type=Path, default=RESULTS / "adversarial.md")
    parser.add_argument("--missing", action="store_true", help="only what was never measured")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    kept = asked.out.with_suffix(".json")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for way in asked.ways.split(","):
            if way.startswith(GROUPED) and groups.missing():
                say(f"{way}: {groups.missing()}")
                continue
            known: Found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
            there = known.get(way, {}) if asked.missing else {}
            for name in (each for each in asked.names or EVERY if each not in there):
                record = measured(name, way, Path(folder))
                wrong += bool(record["wrong"])
                known = added(kept, name, way, record)
                asked.out.write_text("\n".join(page(known)) + "\n", encoding="utf-8")
                say(f"{way}: {name}: {record}")
    raise SystemExit(f"{wrong} broke the contract" if wrong else 0)


if __name__ == "__main__":
    main()
