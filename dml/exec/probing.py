"""This file measures how long a store takes for parts of several sizes, once for each place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa

from dml.exec.store.disk import Disk
from dml.exec.store.filling import Filling
from dml.exec.store.parts import PartStore
from dml.exec.store.primitives import UnusableError
from dml.ownership import FILE, make_folders

SIZES = (1 << 12, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23)
TRIES = 3
COLD_SIZES = SIZES[0], SIZES[3], SIZES[5]  # once each: a disk that is busy writes for seconds
PROBE = "probe"  # beside what is kept, for as long as it takes
NAME = "00000000"
DEAD_S = 600.0  # after which a probe was left by a process that died: they take a second
FRESH_S = 7 * 86_400.0  # what was measured longer ago is measured again
# What is believed of buckets, a request and a stream of one connection; and of what is written to
# no more than it can be measured.
BUCKET, DISK = (0.03, 100e6), (1e-3, 1e9)

Samples = list[tuple[float, float]]


def measured(root: str, machine: str) -> tuple[Samples, Samples]:
    """(bytes, seconds) of parts read from a store in ``root``, and of parts written there.

    Read as those are that were written not long ago: from memory, as far as that reaches. Kept in
    ``calib.json`` for machines of the same class. Of a place that cannot be written, a guess.
    """
    if "://" in root:
        return guessed(*BUCKET)
    return _measured(root, root, machine, cold=False)


def measured_cold(root: str, beside: str) -> tuple[Samples, Samples]:
    """The same of what is in no memory of this machine, as far as the system lets go of it.

    Kept by the name of ``root`` in the folder ``beside``, which is one of this machine.
    """
    return _measured(root, beside, cold_name(root), cold=True)


def cold_name(root: str) -> str:
    """The name of a place in the file of what was measured: a path might say too much."""
    return f"cold {hashlib.blake2b(root.encode(), digest_size=16).hexdigest()}"


def _measured(root: str, beside: str, key: str, *, cold: bool) -> tuple[Samples, Samples]:
    found = _known(beside, key)
    if found is None:
        try:
            found = _probed(root, cold=cold)
        except (OSError, UnusableError):
            return guessed(*DISK)
        _remember(beside, key, found)
    return found


def guessed(latency_s: float, bytes_per_s: float) -> tuple[Samples, Samples]:
    """What is believed of a place, by a latency and a bandwidth; writing takes twice as long."""
    read = [(float(size), latency_s + size / bytes_per_s) for size in SIZES]
    return read, [(size, 2 * seconds) for size, seconds in read]


def _probed(root: str, *, cold: bool) -> tuple[Samples, Samples]:
    """Write and read parts in a folder of its own."""
    clear(root)
    folder = Path(root) / "v1" / f"{PROBE}-{uuid.uuid4().hex}"
    reads: Samples = []
    writes: Samples = []
    try:
        store = PartStore(Disk(folder, "v1/default"))
        for number, size in enumerate(COLD_SIZES if cold else SIZES * TRIES):
            batch = pa.record_batch({"x": np.zeros(size // 8, np.int64)})
            started = time.perf_counter()
            filling = store.fill(NAME, number)
            if not isinstance(filling, Filling):
                raise UnusableError("a part could not be written")
            filling.add(batch)
            filling.commit({})
            writes.append((float(size), time.perf_counter() - started))
            if cold:
                _let_go(folder)
            started = time.perf_counter()
            rows = store.part(NAME, number)
            for each in rows.batches if rows is not None else ():
                each["x"].to_numpy().sum()
            reads.append((float(size), time.perf_counter() - started))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return reads, writes


def _let_go(folder: Path) -> None:
    """Have the system forget what was just written, where it can be told to."""
    for path in folder.rglob("*.arrow") if hasattr(os, "posix_fadvise") else ():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def clear(root: str, older_s: float = DEAD_S) -> None:
    """Remove what processes left in ``root`` that died while they measured."""
    for folder in Path(root).glob(f"v1/{PROBE}-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > older_s:
                shutil.rmtree(folder, ignore_errors=True)


def _file(root: str) -> Path:
    return Path(root) / "v1" / "calib.json"


def _known(root: str, machine: str) -> tuple[Samples, Samples] | None:
    """What was measured here by a machine of the same class not long ago."""
    try:
        found = json.loads(_file(root).read_text(encoding="ascii"))[machine]
        if not 0 <= time.time() - float(found["at"]) < FRESH_S:
            return None
        return _samples(found["read"]), _samples(found["write"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _samples(rows: object) -> Samples:
    """Pairs of positive figures; ValueError for what is none, or for none at all."""
    made = [(float(size), float(seconds)) for size, seconds in rows]  # type: ignore[attr-defined]
    if not made or not all(0 < each < 1e18 for pair in made for each in pair):
        raise ValueError("no figures")
    return made


def _remember(root: str, machine: str, found: tuple[Samples, Samples]) -> None:
    """Beside what others have measured; two at once may lose one of both."""
    file = _file(root)
    with contextlib.suppress(OSError):
        make_folders(file.parent)
        try:
            known = json.loads(file.read_text(encoding="ascii"))
        except (OSError, ValueError, RecursionError):
            known = {}
        mine = {"at": time.time(), "read": found[0], "write": found[1]}
        text = json.dumps({**(known if isinstance(known, dict) else {}), machine: mine})
        aside = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
        aside.touch(FILE)
        aside.write_text(text, encoding="ascii")
        os.replace(aside, file)
