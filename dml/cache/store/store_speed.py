"""Measure the read and write times of a store for parts of several sizes, once per place."""

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

from dml.base.ownership import FILE, make_folders
from dml.cache.parts.part_fill import PartFilling
from dml.cache.parts.parts import PartStore
from dml.cache.store.disk import Disk
from dml.cache.store.primitives import UnusableError

SIZES = (1 << 12, 1 << 15, 1 << 17, 1 << 19, 1 << 21, 1 << 23)
TRIES = 3
COLD_SIZES = SIZES[0], SIZES[3], SIZES[5]  # once each: a busy disk writes for seconds
PROBE = "probe"  # prefix of temporary folders in which parts are measured
NAME = "00000000"
DEAD_S = 600.0  # an older probe was left by a dead process: probes take a second
FRESH_S = 7 * 86_400.0  # seconds after which measurements are repeated
# Assumed latency and bandwidth of buckets (a request, a stream of one connection), and of disks
# that cannot be written to or measured.
BUCKET, DISK = (0.03, 100e6), (1e-3, 1e9)

Samples = list[tuple[float, float]]


def measured(root: str, machine: str) -> tuple[Samples, Samples]:
    """Return (bytes, seconds) pairs of parts read from a store in ``root``, and of parts written.

    Parts were written shortly before they are read, so most reads are from memory. Results are
    stored in ``calib.json`` for machines of the class ``machine``. For a place that cannot be
    written to, times are a guess.
    """
    if "://" in root:
        return guessed(*BUCKET)
    return _measured(root, root, machine, cold=False)


def measured_cold(root: str, beside: str) -> tuple[Samples, Samples]:
    """Return times as ``measured``, of parts that the system has dropped from memory, if it can.

    The times are stored under the name of ``root`` in ``beside``, a folder on this machine.
    """
    return _measured(root, beside, cold_name(root), cold=True)


def cold_name(root: str) -> str:
    """Return a digest of ``root`` as its key in the measurements: the path may be confidential."""
    return f"cold {hashlib.blake2b(root.encode(), digest_size=16).hexdigest()}"


def _measured(root: str, beside: str, key: str, *, cold: bool) -> tuple[Samples, Samples]:
    found = _load_measurements(beside, key)
    if found is None:
        try:
            found = _probed(root, cold=cold)
        except (OSError, UnusableError):
            return guessed(*DISK)
        _remember(beside, key, found)
    return found


def guessed(latency_s: float, bytes_per_s: float) -> tuple[Samples, Samples]:
    """Return times for an assumed latency and bandwidth; writing takes twice as long."""
    read = [(float(size), latency_s + size / bytes_per_s) for size in SIZES]
    return read, [(size, 2 * seconds) for size, seconds in read]


def _probed(root: str, *, cold: bool) -> tuple[Samples, Samples]:
    """Write and read parts in a temporary folder, and return the times."""
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
            if not isinstance(filling, PartFilling):
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
    """Have the system drop recently written files from memory, where that is possible."""
    for path in folder.rglob("*.arrow") if hasattr(os, "posix_fadvise") else ():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def clear(root: str, older_s: float = DEAD_S) -> None:
    """Remove the probes in ``root`` that dead processes left, older than ``older_s`` seconds."""
    for folder in Path(root).glob(f"v1/{PROBE}-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > older_s:
                shutil.rmtree(folder, ignore_errors=True)


def _file(root: str) -> Path:
    return Path(root) / "v1" / "calib.json"


def _load_measurements(root: str, machine: str) -> tuple[Samples, Samples] | None:
    """Return recent measurements by a machine of the same class, or None."""
    try:
        found = json.loads(_file(root).read_text(encoding="ascii"))[machine]
        if not 0 <= time.time() - float(found["at"]) < FRESH_S:
            return None
        return _samples(found["read"]), _samples(found["write"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _samples(rows: object) -> Samples:
    """Return pairs of positive numbers; raise ValueError if there are none, or other values."""
    made = [(float(size), float(seconds)) for size, seconds in rows]  # type: ignore[attr-defined]
    if not made or not all(0 < each < 1e18 for pair in made for each in pair):
        raise ValueError("no figures")
    return made


def _remember(root: str, machine: str, found: tuple[Samples, Samples]) -> None:
    """Add to the file of measurements; of two concurrent writers, one may be lost."""
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
