"""Functions whose results depend on more than their fingerprints include."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml import col
from dml.api.dataset import Dataset
from dml.cache.rows import canary
from tests.cache.rows.test_stored_rows import ROWS


def kept(ds: Dataset, tmp_path: Path, **options: Any) -> Dataset:
    options = {"executor": "sync", **options}
    return ds.with_options(cache_dir=str(tmp_path / "kept"), **options)


def values(ds: Dataset) -> list[Any]:
    return [row["y"] for row in ds]


def scaled(scale: int) -> list[int]:
    return [scale * x for x in range(ROWS)]


class Said:
    """A number that a function reads of a file, as no name can see."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder / "said.txt")
        self.say(0)

    def say(self, what: Any) -> None:
        Path(self.name).write_text(str(what))

    def reader(self) -> Callable[[], int]:
        """What functions call; whatever is said, its name is the same."""
        name = self.name

        def read() -> int:
            with open(name) as file:
                return int(file.read())

        return read


Lie = Callable[[dict[str, Any]], dict[str, Any]]
Liar = tuple[Lie, Callable[[int], Any], str | None]


def reads_a_file(said: Said, patch: pytest.MonkeyPatch) -> Liar:
    patch.setattr(canary, "BUDGET_S", 60.0)  # a first row of 0 is the same at any scale
    read = said.reader()

    def lies(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": row["x"] * read()}

    return lies, said.say, None


def looks_up_text(_: Said, patch: pytest.MonkeyPatch) -> Liar:
    def lies(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": row["x"] * getattr(statistics, "".join(["sc", "ale"]))}

    return lies, lambda scale: patch.setattr(statistics, "scale", scale, raising=False), None


def calls_what_was_patched(_: Said, patch: pytest.MonkeyPatch) -> Liar:
    def lies(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": row["x"] * statistics.fmean([1])}

    def turned(scale: int) -> None:
        patch.setattr(statistics, "fmean", lambda _: scale)

    return lies, turned, "mine, 1"


def reads_a_clock(_: Said, patch: pytest.MonkeyPatch) -> Liar:
    def lies(row: dict[str, Any]) -> dict[str, Any]:
        return {"y": row["x"] * time.process_time_ns()}

    def turned(now: int) -> None:
        patch.setattr(time, "process_time_ns", lambda: now)

    return lies, turned, "mine, 2"


LIARS = [reads_a_file, looks_up_text, calls_what_was_patched, reads_a_clock]

KINDS: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
    "a zero with a sign": (lambda _: 0.0, lambda _: -0.0),
    "the last bit": (lambda x: x + 0.1, lambda x: math.nextafter(x + 0.1, math.inf)),
    "a null": (str, lambda x: str(x) if x % 3 else None),
    "text": (lambda x: f"a{x}", lambda x: f"b{x}"),
    "bytes": (lambda x: b"%d" % x, lambda x: b"%d " % x),
    "a list": (lambda x: [x, 0.0], lambda x: [x, -0.0]),
    "a longer list": (lambda x: [x], lambda x: [x, x]),
    "what is in a struct": (lambda x: {"a": [str(x)]}, lambda x: {"a": [str(x + 1)]}),
    "a tensor": (lambda x: np.full((2, 3), x, np.float32), lambda x: np.full((2, 3), x + 1, "f4")),
    "a NaN": (float, lambda _: math.nan),
}


STEPS: dict[str, tuple[Callable[[Dataset, Callable[[], int]], Dataset], str]] = {
    "a row is gone": (
        lambda ds, k: ds.filter(lambda row: row["x"] % 5 != k(), fingerprint="f"),
        "the row is not|another row",
    ),
    "a child more": (
        lambda ds, k: ds.flat_map(
            lambda row: [{"y": row["x"]} for _ in range(2 + k())], fingerprint="f"
        ),
        "the row is not|another row",
    ),
    "other children": (
        lambda ds, k: ds.flat_map(
            lambda row: [{"y": row["x"] + k()}, {"y": row["x"]}], fingerprint="f"
        ),
        "column 'y'",
    ),
    "a batch": (
        lambda ds, k: ds.map_batches(
            lambda batch: {"y": batch["x"] + k() * (len(batch["x"]) == 10)},
            batch_size=10,
            fingerprint="f",
        ),
        "column 'y'",
    ),
    "an atom": (
        lambda ds, k: ds.filter(col("x") % 3 > 0).map_batches(
            lambda batch: {"y": batch["x"] + batch["x"].sum() * k()}, fingerprint="f"
        ),
        "column 'y'",
    ),
    "a class": (
        lambda ds, k: ds.map(Turned, fn_constructor_args=(k,), fingerprint="f"),
        "column 'y'",
    ),
}


class Turned:
    def __init__(self, k: Callable[[], int]) -> None:
        self.k = k

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"y": row["x"] + self.k()}
