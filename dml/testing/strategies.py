"""Random pipelines are drawn here: every operator, in every valid order, over small data.

``pipeline`` needs only a seeded ``random.Random``, so that thousands can be drawn; under hypothesis
the same generator shrinks (``pipelines``).
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dml.errors import DmlError
from dml.expr.columns.column import col
from dml.expr.node import Node
from dml.io.source import Source, read_of
from dml.testing.draws import Draw, Drawn
from dml.testing.meanings import MEANINGS
from dml.testing.oracle_sources import table_of
from dml.testing.oracle_types import code, shape
from dml.testing.strategies_data import DataPool

STEPS = (2, 2, 3, 4, 4, 5, 5, 6, 7, 8, 10)
INF = float("inf")
LIMITS = {2**bits - less for bits in (7, 8, 15, 16, 31, 32, 63, 64) for less in (0, 1)}


def pipeline(draw: Draw, pool: DataPool) -> Drawn:
    """Draw a pipeline over one of the pool's data sets, with a median of six operators."""
    dataset = pool.dataset(draw)
    drawn = Drawn(dataset, dict(dataset.schema), rough=draw.random() < 0.1)
    if "id" in drawn.kinds:
        number = dataset.with_columns(n=col("id") % 23, f=col("id") / 4)
        drawn = dataclasses.replace(drawn, dataset=number, kinds=dict(number.schema))
    for _ in range(draw.choice(STEPS)):
        step(draw, drawn)
    if draw.random() < 0.7 and not drawn.batched:
        deliverable(drawn)
        USES["batch"].write(draw, drawn)
    return drawn


def pipelines(pool: DataPool) -> st.SearchStrategy[Drawn]:
    """Return a hypothesis strategy that draws from ``pipeline``."""
    return st.randoms(use_true_random=False).map(lambda draw: pipeline(draw, pool))


def step(draw: Draw, drawn: Drawn) -> None:
    """Append one more operator; if it is refused, another operator is drawn."""
    for _ in range(8):
        name = draw.choice(BATCHED if drawn.batched else ROWS)
        before = dataclasses.replace(drawn, used=list(drawn.used))
        try:
            if USES[name].write(draw, drawn) is not False:
                drawn.used.append(name)
                return
        except DmlError:
            pass
        drawn.__dict__.update(before.__dict__)


def deliverable(drawn: Drawn) -> None:
    """Replace nulls that NumPy arrays cannot represent."""
    fills = {n: 0 for n, kind in drawn.kinds.items() if code(kind)[0] in "iub"}
    scalars = {n: False if code(drawn.kinds[n]) == "b1" else v for n, v in fills.items()}
    named = {n: v for n, v in scalars.items() if code(drawn.kinds[n]) != "arrow"}
    try:
        if named:
            drawn.dataset = drawn.dataset.fill_null(named)
    except DmlError:
        return


USES = {use.name: use for meaning in MEANINGS for use in meaning.uses}
ROWS = [name for name, use in USES.items() for _ in range(use.rows)]
BATCHED = [name for name, use in USES.items() for _ in range(use.batches)]


class Coverage:
    """Counts over drawn pipelines: operators, lengths, files, atoms, kinds of values."""

    def __init__(self) -> None:
        self.operators: collections.Counter[str] = collections.Counter()
        self.kinds: collections.Counter[str] = collections.Counter()
        self.lengths: list[int] = []
        self.files: list[int] = []
        self.atoms: list[int] = []
        self.errors: collections.Counter[str] = collections.Counter()
        self.values: collections.Counter[str] = collections.Counter()
        self.seen: dict[bytes, set[str]] = {}

    def add(self, drawn: Drawn, error: str) -> None:
        """Count one pipeline and its final error."""
        node = drawn.dataset._node  # noqa: SLF001 - a handle's node is what is run
        source = node.chain()[0]
        names = [type(each).__name__ for each in node.chain()[1:]]
        self.operators.update(set(names))
        self.lengths.append(len(names))
        files = getattr(read_of(source), "files", None) if isinstance(source, Source) else None
        self.files.append(0 if files is None else len(files.files))
        self.atoms.append((source.atom_count or 0) if isinstance(source, Source) else 0)
        self.kinds.update({_word(kind) for kind in source.schema.values()})
        self.errors[error or "none"] += 1
        if source.digest not in self.seen:
            self.seen[source.digest] = values_of(source)
        self.values.update(self.seen[source.digest])

    def text(self) -> str:
        """Return counts and medians, one line each."""
        medians = [sorted(n)[len(n) // 2] for n in (self.lengths, self.files, self.atoms)]
        counts = f"{medians[0]} operators, {medians[1]} files, {medians[2]} atoms"
        return "\n".join(
            (
                f"{len(self.lengths)} pipelines; medians: {counts}",
                f"operators: {dict(self.operators.most_common())}",
                f"types of source columns: {dict(self.kinds.most_common())}",
                f"values in the source: {dict(self.values.most_common())}",
                f"errors: {dict(self.errors.most_common())}",
            )
        )


def values_of(source: Node) -> set[str]:
    """Return the kinds of edge-case values in a source."""
    table = table_of(source)
    found = {word for row in table.rows for v in row.values.values() for word in _words(v)}
    files = getattr(getattr(source, "files", None), "files", ())
    empty = len({row.id[0] for row in table.rows}) < len(files)  # a file has ids of its own
    return found | ({"empty file"} if empty else set()) | (set() if table.rows else {"no rows"})


def _words(value: Any) -> list[str]:
    if isinstance(value, float):
        tests = {"NaN": math.isnan(value), "-0.0": str(value) == "-0.0", "inf": abs(value) == INF}
        return [word for word, holds in tests.items() if holds]
    if isinstance(value, int) and abs(value) in LIMITS:
        return ["integer limit"]
    if value is None:
        return ["null"]
    return ["empty text"] if isinstance(value, str) and not value else []


def _word(kind: pa.DataType) -> str:
    return f"{code(kind)}{list(shape(kind))}" if shape(kind) else str(kind)
