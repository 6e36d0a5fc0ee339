"""This file makes the rows of a bundle again by both plans, and says where they differ."""

from __future__ import annotations

import dataclasses
import io
import pickle
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dml.exec.spill import DiskSpill
from dml.exec.verify.bundle import Packed, Record, nodes_of
from dml.exec.verify.compare import difference
from dml.exec.verify.sample import both
from dml.expr.block import Block
from dml.expr.fingerprint import digest
from dml.expr.flow import At
from dml.expr.node import op
from dml.expr.schema import Schema
from dml.expr.sources.source import Source
from dml.kernels.fuse import Tiers
from dml.kernels.ids import RowIds
from dml.plan import Plan

SAME, DIFFERENT, UNKNOWN = 0, 1, 2
# Rows that a plan holds of a bundle, whatever it does with them.
HELD_BYTES = 1 << 40


@op
class Replayed(Source):
    """Stands for the source of a bundle's rows, as far as operators ask for it."""

    number: int
    record: Any

    def infer(self) -> Schema:
        """The source's."""
        found: Schema = self.record.schema
        return found

    @cached_property
    def digest(self) -> bytes:
        """A name of its own in this bundle."""
        return digest("replayed", self.number)

    @property
    def row_count(self) -> int | None:
        """The source's."""
        found: int | None = self.record.row_count
        return found

    @property
    def unit_count(self) -> int:
        """None that could be read."""
        return 0

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Where rows were in the source."""
        high, low = ids.arrays()
        keys = zip(high.tolist(), low.tolist(), strict=True)
        return np.array([self.record.positions[key] for key in keys], dtype=np.int64)

    def title(self) -> str:
        """The source's."""
        return str(self.record.title)


@dataclasses.dataclass(frozen=True, eq=False)
class Saved:
    """Atoms of a bundle: their rows, by epoch."""

    folder: Path
    number: int
    record: Record

    def read(self, epoch: int) -> list[Block]:
        """Their rows, every column."""
        ids = self.record.ids.get(epoch, ())
        found = _batches(self.folder, f"input-{self.number}-{epoch}") if ids else []
        named = (batch.select(batch.schema.names[:-2]) for batch in found)
        pairs = zip(named, ids, strict=True)
        return [Block.from_arrow(batch, each, self.record.schema) for batch, each in pairs]

    def read_chosen(self, epoch: int) -> list[Block]:
        """Their rows as the chosen plan reads them."""
        pairs = zip(self.read(epoch), self.record.matches.get(epoch, ()), strict=True)
        return [block.select(self.record.columns) for block, wanted in pairs if wanted]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, records: dict[int, Replayed]) -> None:
        super().__init__(file)
        self.records = records

    def persistent_load(self, number: Any) -> Any:
        """What stands for a source."""
        return self.records[number]


def replay(folder: Path) -> tuple[int, str]:
    """Make the rows of the bundle again; ``SAME``, ``DIFFERENT``, and what was found as text.

    ``UNKNOWN`` where they cannot be made again: then the files are compared.
    """
    lines = [f"recorded: {_recorded(folder)}"]
    path = folder / "plans.pkl"
    if not path.exists():
        return UNKNOWN, "\n".join([*lines, "the rows cannot be made again: REPORT.md says why"])
    records, packed = _opened(path)
    spans = [Saved(folder, number, record) for number, record in enumerate(records)]
    for kernels in dict.fromkeys(("numpy" if packed.kernels == "numpy" else "compiled", "numpy")):
        found = _differing(packed, spans, kernels)
        lines.append(f"made again here, with {kernels} kernels: {found or 'no difference'}")
        if found:
            return DIFFERENT, "\n".join(lines)
    return SAME, "\n".join(lines)


def _opened(path: Path) -> tuple[list[Record], Packed]:
    file = io.BytesIO(path.read_bytes())
    records: list[Record] = pickle.load(file)  # noqa: S301 (the user's own)
    places: dict[tuple[int, int], int] = {}
    for record in records:
        places |= record.positions
    known = [dataclasses.replace(record, positions=places) for record in records]
    stubs = {number: Replayed(number, record) for number, record in enumerate(known)}
    packed: Packed = _Unpickler(file, stubs).load()
    return known, packed


def _differing(packed: Packed, spans: Sequence[Saved], kernels: str) -> str:
    """Where the two plans differ, made here."""
    with tempfile.TemporaryDirectory() as folder:
        ats = [
            _at(packed, plan, schemas, Tiers(Path(folder), mode))
            for plan, schemas, mode in zip(
                packed.plans, packed.schemas, ("numpy", kernels), strict=True
            )
        ]
        one, two = both(packed.plans, (ats[0], ats[1]), spans, packed.turns, packed.epoch)
    if one.error is not None or two.error is not None:
        kinds = [type(each.error).__name__ if each.error else "rows" for each in (two, one)]
        return "{} instead of {}".format(*kinds) if kinds[0] != kinds[1] else ""
    return difference(two.blocks, one.blocks, batched=packed.plans[0].batched)


def _at(packed: Packed, plan: Plan, schemas: Sequence[Schema | None], tiers: Tiers) -> At:
    pairs = zip(nodes_of(plan), schemas, strict=True)
    known = {node.digest.hex(): schema for node, schema in pairs if schema is not None}
    return At(packed.epoch, packed.seed, tiers, known, DiskSpill, HELD_BYTES, HELD_BYTES)


def _recorded(folder: Path) -> str:
    """What the files say."""
    one, two = (_batches(folder, name) for name in ("chosen", "naive"))
    for number, (a, b) in enumerate(zip(one, two, strict=False)):
        if not a.equals(b):
            return f"record batch {number} of chosen.arrow is not that of naive.arrow"
    sizes = [sum(batch.num_rows for batch in batches) for batches in (one, two)]
    if sizes[0] != sizes[1]:
        return "{} rows in chosen.arrow, {} in naive.arrow".format(*sizes)
    return "the files are equal, or differ in signs of zeros"


def _batches(folder: Path, name: str) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    for path in sorted(folder.glob(f"{name}.arrow")) + sorted(folder.glob(f"{name}-*.arrow")):
        with pa.OSFile(str(path), "rb") as file:
            reader = pa.ipc.open_file(file)
            found += [reader.get_batch(i) for i in range(reader.num_record_batches)]
    return found
