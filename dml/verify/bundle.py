"""Write a difference between two plans to a folder, from which it can be reproduced anywhere.

The *bundle* folder holds the sampled atoms' rows and what both plans made; nothing is sent.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pyarrow as pa

from dml.base.library_code import library_of
from dml.base.ownership import make_folders
from dml.data.block import Block
from dml.data.schema import Schema
from dml.errors import worded
from dml.exec.process.references import Pickler, by_value
from dml.expr.flow import At
from dml.io.source import Source
from dml.kernels.rows.ids import RowIds
from dml.physical.plan import Plan
from dml.verify.isolated_run import AtomSpan
from dml.verify.sample import Sample
from dml.verify.scope import whole

REPRODUCE = '''"""Make the rows of this folder again by both plans, and say where they differ.

It needs dml and nothing else; environment.json says which version. Exits with 1 if they differ.
"""

import sys
from pathlib import Path

from dml.verify.replay import replay

status, text = replay(Path(__file__).resolve().parent)
print(text)
sys.exit(status)
'''
REPORT = """# Two plans of one pipeline made different rows

{what}.

**This folder holds rows of your data**: `input-*.arrow` are the sampled atoms as they were read,
`naive*.arrow` and `chosen*.arrow` what the plan as written and the optimized plan made of them.
Nothing of it was sent anywhere. Look at it before you pass it on.

- `stations/`: the pipeline as it was written, normalized, chosen, physical; the rules that fired.
- `environment.json`: versions, machine, options.
- `reproduce.py`: {again}

Rules that fired: {rules}.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class BundleRecord:
    """The sampled atoms of one source in a bundle, and the facts about the source that plans need.

    ``ids`` has the row ids of each atom, by epoch. ``matches`` states, by epoch and atom, whether
    the chosen plan reads the atom. ``positions`` has the position in the source of each row id.
    """

    title: str
    schema: Schema
    row_count: int | None
    columns: tuple[str, ...]
    ids: Mapping[int, Sequence[RowIds]]
    matches: Mapping[int, Sequence[bool]]
    positions: Mapping[tuple[int, int], int]


@dataclasses.dataclass(frozen=True)
class PackedPlans:
    """The content of ``plans.pkl``; in pairs the plan as written comes first.

    ``turns`` are the sampled passes of each ``repeat``, ``kernels`` is the setting of the run.
    """

    plans: tuple[Plan, Plan]
    schemas: tuple[Sequence[Schema | None], Sequence[Schema | None]]
    turns: tuple[tuple[int, ...], tuple[int, ...]]
    epoch: int
    seed: int
    kernels: str


@dataclasses.dataclass(frozen=True)
class Bundles:
    """Writes differences to folders in ``folder``.

    ``stations`` returns the text of each compilation step, ``rules`` the applied rules' names.
    ``kernels`` names the run's kernels; ``environment`` describes versions, host and options.
    """

    folder: Path
    kernels: str
    stations: Callable[[], Mapping[str, str]]
    rules: Callable[[], Sequence[str]]
    environment: Mapping[str, Any]

    def __call__(self, sample: Sample) -> str:
        """Write the bundle of one difference, which only the user can read, and return its path."""
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
        place = self.folder / name
        make_folders(place)
        (place / "stations").mkdir()
        for station, text in self.stations().items():
            (place / "stations" / f"{station}.txt").write_text(text + "\n", encoding="utf-8")
        found = json.dumps(self.environment, indent=2)
        (place / "environment.json").write_text(found + "\n", encoding="utf-8")
        records = [_record(place, *each) for each in enumerate(sample.spans)]
        _written(place, "naive", sample.naive.blocks)
        _written(place, "chosen", sample.chosen.blocks)
        why = _packed(place, sample, records, self.kernels)
        report = REPORT.format(
            what=f"Of a sample: {sample.what}",
            again="makes these rows again by both plans, with dml alone."
            if not why
            else f"cannot make these rows again, since {why}; it compares the files.",
            rules=", ".join(dict.fromkeys(self.rules())) or "none",
        )
        (place / "REPORT.md").write_text(report, encoding="utf-8")
        (place / "reproduce.py").write_text(REPRODUCE, encoding="utf-8")
        return str(place)


def _record(place: Path, number: int, span: AtomSpan) -> BundleRecord:
    """Write the rows of the atoms of ``span``, the ``number``-th one, and return their record."""
    source = whole(span.every.source)
    places: dict[tuple[int, int], int] = {}
    for epoch, blocks in span.blocks.items():
        _written(place, f"input-{number}-{epoch}", blocks)
        for block in blocks if source.row_count is not None else ():
            high, low = block.ids.arrays()
            keys = zip(high.tolist(), low.tolist(), strict=True)
            places |= dict(zip(keys, source.position_of(block.ids).tolist(), strict=True))
    return BundleRecord(
        source.title(),
        source.schema,
        source.row_count,
        span.columns,
        {epoch: [block.ids for block in blocks] for epoch, blocks in span.blocks.items()},
        span.matches,
        places,
    )


def _written(place: Path, name: str, blocks: Sequence[Block]) -> None:
    """Write blocks, with row ids in two columns, as record batches of a file per schema."""
    for number, (_, run) in enumerate(groupby(blocks, lambda block: block.schema)):
        path = place / (f"{name}-{number}.arrow" if number else f"{name}.arrow")
        batches = [_with_ids(block) for block in run]
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)


def _with_ids(block: Block) -> pa.RecordBatch:
    batch = block.to_arrow()
    high, low = block.ids.arrays()
    names = [*batch.schema.names, "__id_high", "__id_low"]
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(high), pa.array(low)], names)


def _packed(place: Path, sample: Sample, records: Sequence[BundleRecord], kernels: str) -> str:
    """Write the plans, from which rows can be recomputed; return "", or why that is impossible."""
    schemas = [_schemas(*each) for each in zip(sample.plans, sample.ats, strict=True)]
    packed = PackedPlans(
        sample.plans,
        (schemas[0], schemas[1]),
        sample.turns,
        sample.epoch,
        sample.ats[1].seed,
        kernels,
    )
    sink = io.BytesIO()
    try:
        with by_value(_users_modules(sample.plans)):
            cloudpickle.dump(list(records), sink)
            _Pickler(sink, sample.plans[1]).dump(packed)
    except Exception as error:  # noqa: BLE001 - a user's object may do anything when it is pickled
        return f"its functions cannot be pickled ({worded(error)})"
    (place / "plans.pkl").write_bytes(sink.getvalue())
    return ""


def nodes_of(plan: Plan) -> Iterator[Any]:
    """Yield every operator of a plan and of the plans of its other inputs, in a fixed order."""
    for each in plan.all:
        yield from each.operators


def _schemas(plan: Plan, at: At) -> list[Schema | None]:
    """Return each operator's settled schema or None, in the order of ``nodes_of``.

    They are not stored by digest, since digests change when a source is replaced.
    """
    return [at.schemas.get(node.digest.hex()) for node in nodes_of(plan)]


class _Pickler(Pickler):
    """A pickler that replaces each source by its number: a bundle has the rows that are needed."""

    def __init__(self, sink: io.BytesIO, plan: Plan) -> None:
        super().__init__(sink, protocol=5)
        self.numbers = {whole(each.stage.source).digest: n for n, each in enumerate(plan.all)}

    def persistent_id(self, obj: Any) -> Any:
        """Return the number of ``obj`` if it is a source; None for other objects."""
        return self.numbers.get(whole(obj).digest, 0) if isinstance(obj, Source) else None


def _users_modules(plans: Sequence[Plan]) -> list[ModuleType]:
    """Return the user's own modules that define functions of ``plans``."""
    found = {
        getattr(node.calls.call, "__module__", None)
        for plan in plans
        for node in nodes_of(plan)
        if node.calls is not None
    }
    own = (name for name in found if name in sys.modules and name != "__main__")
    return [sys.modules[name] for name in own if library_of(name) is None]
