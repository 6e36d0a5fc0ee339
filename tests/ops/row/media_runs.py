"""Checks of pipelines of images and of sounds: the same bytes however they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dml

Place = Callable[[dml.Dataset], dml.Dataset]
Table = Callable[..., dml.Dataset]
QUIET: dict[str, Any] = {"telemetry_dir": "off"}
BATCH = 8


def bytes_of(ds: dml.Dataset, column: str, epoch: int = 0) -> list[bytes]:
    """The bytes of each row of a column of batches."""
    return [row.tobytes() for batch in ds.epoch(epoch) for row in batch[column]]


def check_executor(place: Place, table: Table, column: str, executor: str, rows: int) -> None:
    """An executor makes the bytes that one thread makes, with other workers and atoms.

    Where the order of rows depends on the atoms, ``rows`` is 0, and these stay as they are.
    """
    plain = place(table()).batch(BATCH).with_options(**QUIET, executor="sync")
    wanted = bytes_of(plain, column)
    for atoms, workers in ((7, 2), (rows, 4)) if rows else ((7, 2), (7, 4)):
        ds = place(table(atom_rows=atoms)).batch(BATCH)
        ds = ds.with_options(**QUIET, executor=executor, num_workers=workers)
        assert bytes_of(ds, column) == wanted
    assert len(set(wanted)) > len(wanted) // 3


def check_resumed(ds: dml.Dataset, column: str, taken: int) -> None:
    """A run that is resumed after some batches gives the others."""
    ds = ds.batch(BATCH).with_options(**QUIET)
    every = [batch[column].tobytes() for batch in ds.epoch(0)]
    it = iter(ds.epoch(0))
    for _ in range(taken):
        next(it)
    again = iter(ds)
    again.load_state_dict(it.state_dict())
    assert [batch[column].tobytes() for batch in again] == every[taken:]


def check_slices(ds: dml.Dataset) -> None:
    """Its expressions are computed in slices."""
    text = str(ds.batch(BATCH).explain("physical"))
    assert [line for line in text.splitlines() if line.startswith("slices    Segment")], text
