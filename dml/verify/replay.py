"""Recompute the rows of a bundle by both plans, and compare them."""

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

from dml.base.fingerprint import digest
from dml.data.block import Block
from dml.data.comparison import difference
from dml.data.schema import Schema
from dml.exec.memory.spill import DiskSpill
from dml.expr.flow import At
from dml.expr.node import op
from dml.io.source import Source
from dml.kernels.compiled.tier_choice import KernelTiers
from dml.kernels.rows.ids import RowIds
from dml.physical.plan import Plan
from dml.verify.bundle import BundleRecord, PackedPlans, nodes_of
from dml.verify.sample import both

SAME, DIFFERENT, UNKNOWN = 0, 1, 2
# Memory limit of a plan in a replay: none in effect.
HELD_BYTES = 1 << 40


@op
class Replayed(Source):
    """A stand-in with the facts of source ``number`` of a bundle; ``Saved`` reads the rows."""

    number: int
    record: BundleRecord

    def infer(self) -> Schema:
        """Return the schema of the source."""
        return self.record.schema

    @cached_property
    def digest(self) -> bytes:
        """A digest that no other source of this bundle has."""
        return digest("replayed", self.number)

    @property
    def row_count(self) -> int | None:
        """The row count of the source."""
        return self.record.row_count

    @property
    def unit_count(self) -> int:
        """Zero, since no unit can be read."""
        return 0

    def position_of(self, ids: RowIds) -> np.ndarray:
        """Return the positions in the source of the rows ``ids``, int64."""
        high, low = ids.arrays()
        keys = zip(high.tolist(), low.tolist(), strict=True)
        return np.array([self.record.positions[key] for key in keys], dtype=np.int64)

    def title(self) -> str:
        """Return the title of the source."""
        return self.record.title


@dataclasses.dataclass(frozen=True, eq=False)
class Saved:
    """The sampled atoms of source ``number`` of a bundle, with rows that are read on demand."""

    folder: Path
    number: int
    record: BundleRecord

    def read(self, epoch: int) -> list[Block]:
        """Return the rows of ``epoch`` with all columns, a block per atom."""
        ids = self.record.ids.get(epoch, ())
        found = _batches(self.folder, f"input-{self.number}-{epoch}") if ids else []
        named = (batch.select(batch.schema.names[:-2]) for batch in found)
        pairs = zip(named, ids, strict=True)
        return [Block.from_arrow(batch, each, self.record.schema) for batch, each in pairs]

    def read_chosen(self, epoch: int) -> list[Block]:
        """Return the rows of ``epoch`` as the chosen plan reads them."""
        pairs = zip(self.read(epoch), self.record.matches.get(epoch, ()), strict=True)
        return [block.select(self.record.columns) for block, wanted in pairs if wanted]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, records: dict[int, Replayed]) -> None:
        super().__init__(file)
        self.records = records

    def persistent_load(self, number: Any) -> Any:
        """Return the stand-in for source ``number``."""
        return self.records[number]


def replay(folder: Path) -> tuple[int, str]:
    """Recompute the rows of a bundle; return ``SAME`` or ``DIFFERENT``, and a report as text.

    Return ``UNKNOWN`` instead if the rows cannot be recomputed: then only the files are compared.
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


def _opened(path: Path) -> tuple[list[BundleRecord], PackedPlans]:
    file = io.BytesIO(path.read_bytes())
    records: list[BundleRecord] = pickle.load(file)  # noqa: S301 (the user's own)
    places: dict[tuple[int, int], int] = {}
    for record in records:
        places |= record.positions
    known = [dataclasses.replace(record, positions=places) for record in records]
    stubs = {number: Replayed(number, record) for number, record in enumerate(known)}
    packed: PackedPlans = _Unpickler(file, stubs).load()
    return known, packed


def _differing(packed: PackedPlans, spans: Sequence[Saved], kernels: str) -> str:
    """Return where recomputed rows of the plans differ, or ""; the chosen one uses ``kernels``."""
    with tempfile.TemporaryDirectory() as folder:
        ats = [
            _at(packed, plan, schemas, KernelTiers(Path(folder), mode))
            for plan, schemas, mode in zip(
                packed.plans, packed.schemas, ("numpy", kernels), strict=True
            )
        ]
        one, two = both(packed.plans, (ats[0], ats[1]), spans, packed.turns, packed.epoch)
    if one.error is not None or two.error is not None:
        kinds = [type(each.error).__name__ if each.error else "rows" for each in (two, one)]
        return "{} instead of {}".format(*kinds) if kinds[0] != kinds[1] else ""
    return difference(two.blocks, one.blocks, batched=packed.plans[0].batched)


def _at(
    packed: PackedPlans, plan: Plan, schemas: Sequence[Schema | None], tiers: KernelTiers
) -> At:
    pairs = zip(nodes_of(plan), schemas, strict=True)
    known = {node.digest.hex(): schema for node, schema in pairs if schema is not None}
    return At(packed.epoch, packed.seed, tiers, known, DiskSpill, HELD_BYTES, HELD_BYTES)


def _recorded(folder: Path) -> str:
    """Return as text the first difference between the rows that both plans made in the run."""
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
