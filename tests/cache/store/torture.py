"""A process that reads, fills or clears a store until it is killed."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa

from dml.cache.eviction import janitor, pins
from dml.cache.parts import blob_digest
from dml.cache.parts.parts import PartFilling, PartSource, PartStore
from dml.cache.store.bucket import Bucket
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import StorePlace, UnusableError
from tests.cache.store import fills

ENTRIES, PARTS, ROWS = [f"{i:08x}" * 4 for i in range(4)], 6, 5000


def expected(entry: str, part: int) -> pa.Table:
    drawn = np.random.default_rng([int(entry[:8], 16), part])
    return pa.table({"x": drawn.integers(0, 1 << 40, ROWS), "w": [f"{entry[:8]} {part}"] * ROWS})


def place_of(given: dict[str, Any]) -> StorePlace:
    if "url" in given:
        return Bucket(given["url"], "v1/torture", given["options"])
    return Disk(given["root"], "v1/torture")


class Diary:
    """Lines of one process that are there whatever becomes of it."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, *more: object) -> None:
        os.write(self._file, (json.dumps([what, *more]) + "\n").encode())


def batches(entry: str, part: int) -> list[pa.RecordBatch]:
    """The same rows, in some pieces."""
    return list(expected(entry, part).to_batches(max_chunksize=600 + 200 * part))


def asking(given: dict[str, Any], drawn: random.Random, diary: Diary) -> None:
    """Ask for parts; every answer is compared with what it must be."""
    quota = given.get("quota_bytes")
    store = PartStore(place_of(given), ttl_s=given["ttl_s"], quota_bytes=quota)
    while not over(given):
        entry, part = drawn.choice(ENTRIES), drawn.randrange(PARTS)
        step = fill if given["fills"] else get
        source, version = step(given, store, (entry, part), drawn)
        diary.note(source, entry, part, *version)
        if drawn.random() < 0.02:
            store.records(entry)
    store.close()
    if not store.standing.whole:
        diary.note("UNUSABLE", str(store.standing.unusable or store.standing.unwritable))


Told = tuple[str, tuple[int, int]]
"""Where rows came from, or that they are wrong, and their version."""


def get(
    given: dict[str, Any], store: PartStore, key: tuple[str, int], drawn: random.Random
) -> Told:
    """Ask for a part as a whole."""
    table = expected(*key)

    def compute() -> pa.Table:
        time.sleep(given["work_s"])  # what a lease is for: long enough to be killed in
        return table

    got = fills.get(store, *key, compute)
    source = got.source.name if isinstance(got.source, PartSource) else got.source
    version = (0, 0) if source == fills.FOUND else got.version
    return source if got.table.equals(table) else "WRONG", version


def fill(
    given: dict[str, Any], store: PartStore, key: tuple[str, int], drawn: random.Random
) -> Told:
    """Ask for a part batch by batch; now and then whoever fills it changes their mind."""
    right, about = batches(*key), {"entry": key[0], "part": key[1]}
    rows = store.part(*key) if drawn.random() < 0.5 else None
    found = rows or store.fill(*key)
    if found is None:
        return PartSource.UNKEPT.name, (0, 0)
    if isinstance(found, PartFilling):
        for batch in right:
            time.sleep(given["work_s"] / len(right))
            found.add(batch)
            if drawn.random() < 0.004:
                found.drop()
                return "DROPPED", (0, 0)
        return found.commit(about).name, found.version
    same = found.about == about and len(found.batches) == len(right)
    same = same and all(map(pa.RecordBatch.equals, found.batches, right))
    return fills.FOUND if same else "WRONG", (0, 0)


def clearing(given: dict[str, Any], drawn: random.Random, diary: Diary) -> None:
    """Evict, remove, sweep, damage."""
    place = place_of(given)
    while not over(given):
        time.sleep(drawn.uniform(0.05, 0.2))
        entry, part = drawn.choice(ENTRIES), drawn.randrange(PARTS)
        weights = [12, 4, 3 if given["damages"] else 0, 0.3]
        step = drawn.choices(["evict", "sweep", "damage", "remove"], weights)[0]
        if step == "evict" and entry not in pins.list_pinned(place):
            diary.note("EVICTED", janitor.evict(place, entry, part))
        elif step == "remove":
            diary.note("REMOVED", janitor.remove(place, entry))
        elif step == "sweep":
            janitor.sweep(place, ttl_s=given["ttl_s"], grace_s=4 * given["ttl_s"])
            diary.note("SWEPT")
        elif step == "damage":
            damage(place, drawn, diary)


def damage(place: StorePlace, drawn: random.Random, diary: Diary) -> None:
    """A bit of some file is another one, or some file is cut short, from its next opening on."""
    folder = drawn.choice(["blobs", "blobs", "e"])
    names = [name for name in place.names(folder) if name.endswith((".arrow", ".json"))]
    name = f"{folder}/{drawn.choice(names)}" if names else ""
    data = place.get(name) if name else None
    if not data:
        return
    changed = bytearray(data)
    changed[drawn.randrange(len(changed))] ^= 1 << drawn.randrange(8)
    place.put(name, bytes(changed) if drawn.random() < 0.5 else data[: drawn.randrange(len(data))])
    diary.note("DAMAGED", name)


def begun(given: dict[str, Any]) -> None:
    """Return once all processes are there."""
    while not os.path.exists(given["go"]) and not over(given):
        time.sleep(0.01)


def over(given: dict[str, Any]) -> bool:
    """Whether enough has been done, or nobody looks on any more."""
    return os.path.exists(given["over"]) or os.getppid() != given["parent"]


def main() -> None:
    given = json.loads(sys.argv[1])
    blob_digest.PIECE_BYTES = given["piece_bytes"]
    drawn, diary = random.Random(given["seed"]), Diary(given["diaries"])
    begun(given)
    try:
        (clearing if given["clears"] else asking)(given, drawn, diary)
    except UnusableError as error:
        diary.note("UNUSABLE", str(error))


if __name__ == "__main__":
    main()
