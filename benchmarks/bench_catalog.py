"""This file measures how long it takes to look a pipeline up in a store of many entries.

    python benchmarks/bench_catalog.py [--entries 100000] [--times 200] [--folder FOLDER]

Entries have one part each and are made by hand: a record in a folder. What is timed is the store
asked for one name, there or not, and the whole of ``Catalog.lookup``, with the name being made of
the pipeline; then what other entries have of its rows, where entries tell of 1000 steps, each of
10 sets of rows in 10 entries, by a process that has looked before and by one that has not. The
median of some; folders are in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dml
from dml import col
from dml.cache.lookup.cache_index import Family, IndexMember, index_of
from dml.cache.parts.parts import PartStore
from dml.cache.parts.records import PartRecord, written
from dml.cache.store import layout
from dml.cache.store.disk import Disk
from dml.ops.implication import Conjunct

EACH = 10  # sets of rows of a step, and entries of each
TEXT = written(PartRecord(f"blobs/{'0' * 32}.arrow", 1000, 10, "d", "s", 0.1))


def fingerprints(count: int) -> list[str]:
    """Names as they would be."""
    return [hashlib.blake2b(str(n).encode(), digest_size=16).hexdigest() for n in range(count)]


def made(root: Path, names: list[str]) -> None:
    """A store with an entry for each name."""
    top = root / layout.namespace("default")
    for name in names:
        folder = top / layout.entry(name) / "0"
        folder.mkdir(parents=True)
        (folder / "part.0.0.json").write_bytes(TEXT)


def told(root: Path, names: list[str]) -> list[Family]:
    """What these entries say that they hold, and the rows that may be asked for."""
    store = PartStore(Disk(str(root), layout.namespace("default")))
    index, found = index_of(store), []
    for place, name in enumerate(names):
        base, rows = names[place // EACH // EACH], names[place // EACH]
        least = Conjunct(names[place // EACH], names[0], "gt", float(place // EACH % EACH))
        family = Family(base, rows, (least,))
        columns = {names[(place + n) % len(names)]: f"column {n}" for n in range(EACH)}
        index.tell(IndexMember(name, family, columns))
        found.append(family)
    return found


def looked_up(root: Path, families: list[Family], times: int) -> dict[str, float]:
    """Milliseconds of looking for who has rows."""
    store = PartStore(Disk(str(root), layout.namespace("default")))
    step = max(1, len(families) // times)

    def looked(number: int) -> None:
        assert index_of(store).members(families[number * step % len(families)], {})

    return {
        "entries with rows of a step, asked for the first time": median_ms(times, looked),
        "the same once more": median_ms(times, looked),
    }


def median_ms(times: int, run: Callable[[int], object]) -> float:
    """Milliseconds of the median."""
    found = []
    for number in range(times):
        begun = time.perf_counter()
        run(number)
        found.append(time.perf_counter() - begun)
    return 1000 * statistics.median(found)


def measured(root: Path, names: list[str], times: int) -> dict[str, float]:
    """Milliseconds of each kind of look-up."""
    catalog = dml.Catalog(root)
    kept, absent = catalog._kept, fingerprints(times + len(names))[len(names) :]  # noqa: SLF001
    step = max(1, len(names) // times)
    ds = dml.range(100).filter(col("id") > 3).with_columns(y=col("id") * 2).cache(tier="disk")
    assert catalog.lookup(ds).state == "miss"
    return {
        "an entry that is there": median_ms(
            times, lambda n: kept.counted(kept.view(names[n * step % len(names)]))
        ),
        "an entry that is not": median_ms(times, lambda n: kept.counted(kept.view(absent[n]))),
        "Catalog.lookup of a pipeline": median_ms(times, lambda _: catalog.lookup(ds)),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--entries", type=int, default=100_000)
    options.add_argument("--times", type=int, default=200)
    options.add_argument("--folder")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        names = fingerprints(asked.entries)
        made(Path(folder), names)
        print(f"{asked.entries:,} entries")
        found = measured(Path(folder), names, asked.times)
        found |= looked_up(Path(folder), told(Path(folder), names), asked.times)
        for what, value in found.items():
            print(f"{value:8.3f} ms  {what}")


def test_look_ups_are_measured(tmp_path: Path) -> None:
    names = fingerprints(30)
    made(tmp_path, names)
    assert set(measured(tmp_path, names, 5)) > {"an entry that is there"}
    assert len(looked_up(tmp_path, told(tmp_path, names), 5)) == 2
    assert sum(1 for _ in dml.Catalog(tmp_path)) == 30


if __name__ == "__main__":
    main()
