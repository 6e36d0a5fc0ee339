"""This file draws pipelines: every operator, in every order that means something, over small data.

``pipeline`` needs nothing but a seeded ``random.Random``, so that thousands can be drawn; under
hypothesis the same generator shrinks (``pipelines``).
"""

from __future__ import annotations

import collections
import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from dml.dataset import Dataset
from dml.errors import DmlError
from dml.expr.column import Column, col
from dml.expr.column import random as random_column
from dml.expr.node import Node
from dml.expr.sources.source import Source
from dml.testing import row_functions
from dml.testing.oracle_sources import table_of
from dml.testing.oracle_types import code, shape, typed
from dml.testing.strategies_data import Pool
from dml.testing.strategies_expressions import Expressions

Draw = random.Random
Kinds = dict[str, pa.DataType]
STEPS = (2, 2, 3, 4, 4, 5, 5, 6, 7, 8, 10)
INF = float("inf")
LIMITS = {2**bits - less for bits in (7, 8, 15, 16, 31, 32, 63, 64) for less in (0, 1)}
# Rows may not be made more than this many times over.
GROWTH = 6


@dataclasses.dataclass
class Drawn:
    """A pipeline as far as it was drawn: what is believed of its columns, and what was used."""

    dataset: Dataset
    kinds: Kinds
    used: list[str] = dataclasses.field(default_factory=list)
    growth: int = 1
    batched: bool = False
    rough: bool = False

    @property
    def functional(self) -> bool:
        """True while ``n`` and ``f`` are what the functions take them for."""
        return bool(self.kinds.get("n") == pa.int64() and self.kinds.get("f") == pa.float64())


def pipeline(draw: Draw, pool: Pool) -> Drawn:
    """A pipeline over one of the pool's data sets, with a median of six operators."""
    dataset = pool.dataset(draw)
    drawn = Drawn(dataset, dict(dataset.schema), rough=draw.random() < 0.1)
    if "id" in drawn.kinds:
        number = dataset.with_columns(n=col("id") % 23, f=col("id") / 4)
        drawn = dataclasses.replace(drawn, dataset=number, kinds=dict(number.schema))
    for _ in range(draw.choice(STEPS)):
        step(draw, drawn)
    if draw.random() < 0.7 and not drawn.batched:
        deliverable(drawn)
        _batch(draw, drawn)
    return drawn


def pipelines(pool: Pool) -> st.SearchStrategy[Drawn]:
    """The same for hypothesis."""
    return st.randoms(use_true_random=False).map(lambda draw: pipeline(draw, pool))


def step(draw: Draw, drawn: Drawn) -> None:
    """One more operator; what is refused is tried again as something else."""
    for _ in range(8):
        name = draw.choice(BATCHED if drawn.batched else ROWS)
        before = dataclasses.replace(drawn, used=list(drawn.used))
        try:
            if VERBS[name](draw, drawn) is not False:
                drawn.used.append(name)
                return
        except DmlError:
            pass
        drawn.__dict__.update(before.__dict__)


def deliverable(drawn: Drawn) -> None:
    """Replace nulls where arrays cannot show them."""
    fills = {n: 0 for n, kind in drawn.kinds.items() if code(kind)[0] in "iub"}
    scalars = {n: False if code(drawn.kinds[n]) == "b1" else v for n, v in fills.items()}
    named = {n: v for n, v in scalars.items() if code(drawn.kinds[n]) != "arrow"}
    try:
        if named:
            drawn.dataset = drawn.dataset.fill_null(named)
    except DmlError:
        return


def _set(drawn: Drawn, dataset: Dataset, kinds: Kinds | None = None) -> None:
    """Go on with ``dataset``; its own schema counts where it is known."""
    drawn.dataset = dataset
    if kinds is not None:
        drawn.kinds = kinds
    if dataset.schema.known:
        drawn.kinds = dict(dataset.schema)


def _expressions(draw: Draw, drawn: Drawn) -> Expressions:
    return Expressions(draw, drawn.kinds)


def _with_columns(draw: Draw, drawn: Drawn) -> None:
    values: dict[str, Column] = {}
    for _ in range(draw.choice([1, 1, 2, 3])):
        spare = [name for name in drawn.kinds if name not in ("n", "f")]
        name = draw.choice([*"ghk", *spare])
        values[name] = _expressions(draw, drawn).any()
    _set(drawn, drawn.dataset.with_columns(**values), {**drawn.kinds, **_believed(values, drawn)})


def _believed(values: dict[str, Column], drawn: Drawn) -> Kinds:
    """Types by the oracle's rules where the engine will only know them when it runs."""
    return {name: typed(value.value, drawn.kinds).kind for name, value in values.items()}


def _filter(draw: Draw, drawn: Drawn) -> None:
    predicate = _expressions(draw, drawn).boolean(2)
    _believed({"p": predicate}, drawn)
    _set(drawn, drawn.dataset.filter(predicate))


def _select(draw: Draw, drawn: Drawn) -> None:
    names = [n for n in drawn.kinds if n in ("n", "f") or draw.random() < 0.6]
    draw.shuffle(names)
    names = names or list(drawn.kinds)
    _set(drawn, drawn.dataset.select(*names), {n: drawn.kinds[n] for n in names})


def _drop(draw: Draw, drawn: Drawn) -> Any:
    spare = [n for n in drawn.kinds if n not in ("n", "f") or draw.random() < 0.03]
    if not spare or len(drawn.kinds) < 2:
        return False
    name = draw.choice(spare)
    _set(drawn, drawn.dataset.drop(name), {n: k for n, k in drawn.kinds.items() if n != name})
    return None


def _rename(draw: Draw, drawn: Drawn) -> Any:
    spare = [n for n in drawn.kinds if n not in ("n", "f")]
    if not spare:
        return False
    old, new = draw.choice(spare), draw.choice("uvw")
    kinds = {new if n == old else n: kind for n, kind in drawn.kinds.items()}
    if len(kinds) < len(drawn.kinds):
        return False
    _set(drawn, drawn.dataset.rename({old: new}), kinds)
    return None


def _cast(draw: Draw, drawn: Drawn) -> Any:
    spare = [n for n, k in drawn.kinds.items() if n not in ("n", "f") and code(k) != "arrow"]
    if not spare:
        return False
    name, word = draw.choice(spare), draw.choice(["i1", "i4", "u2", "f4", "f8", "b1", "f8", "i8"])
    strict = draw.random() < (0.5 if drawn.rough else 0.03)
    kinds = _believed({name: col(name).cast(word, strict=strict)}, drawn)
    _set(drawn, drawn.dataset.cast({name: word}, strict=strict), {**drawn.kinds, **kinds})
    return None


def _fill_null(draw: Draw, drawn: Drawn) -> Any:
    spare = [n for n, k in drawn.kinds.items() if code(k) != "arrow" or pa.types.is_string(k)]
    if not spare:
        return False
    name = draw.choice(spare)
    fill: Any = "x" if pa.types.is_string(drawn.kinds[name]) else draw.choice([0, 1, 0.5])
    if code(drawn.kinds[name]) == "b1":
        fill = True
    kinds = _believed({name: col(name).fill_null(fill)}, drawn)
    _set(drawn, drawn.dataset.fill_null({name: fill}), {**drawn.kinds, **kinds})
    return None


def _map(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    rough = drawn.rough and draw.random() < 0.5
    fn, kinds = row_functions.row_function(draw, drawn.kinds, rough=rough)
    declared = kinds if draw.random() < 0.3 else None
    _set(drawn, drawn.dataset.map(fn, schema=declared), kinds)
    return None


def _random_map(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    fn, kinds = row_functions.random_function(draw, drawn.kinds)
    _set(drawn, drawn.dataset.random_map(fn, seed=draw.choice([None, 1])), kinds)
    return None


def _flat_map(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional or drawn.growth >= GROWTH:
        return False
    fn, kinds = row_functions.many_function(draw, drawn.kinds)
    drawn.growth *= 2
    _set(drawn, drawn.dataset.flat_map(fn), kinds)
    return None


def _map_batches(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    rough = drawn.rough and draw.random() < 0.5
    fn, kinds, form = row_functions.group_function(draw, drawn.kinds, rough=rough)
    size = draw.choice([None, None, 1, 2, 5, 40])
    declared = kinds if draw.random() < 0.3 else None
    made = drawn.dataset.map_batches(fn, batch_size=size, batch_format=form, schema=declared)
    _set(drawn, made, kinds)
    return None


def _filter_rows(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    _set(drawn, drawn.dataset.filter(row_functions.keeping_function(draw)))
    return None


def _take(draw: Draw, drawn: Drawn) -> None:
    _set(drawn, drawn.dataset.take(draw.choice([0, 1, 3, 10, 20, 40, 1000])))


def _skip(draw: Draw, drawn: Drawn) -> None:
    _set(drawn, drawn.dataset.skip(draw.choice([0, 1, 2, 5, 9])))


def _repeat(draw: Draw, drawn: Drawn) -> Any:
    if drawn.growth >= GROWTH:
        return False
    if draw.random() < 0.2:
        _set(drawn, drawn.dataset.repeat().take(draw.choice([5, 60])))
        return None
    n = draw.choice([0, 1, 2, 2, 3])
    drawn.growth *= max(1, n)
    _set(drawn, drawn.dataset.repeat(n))
    if draw.random() < 0.1:  # passes of passes, which nothing but ids tells from one repeat
        drawn.growth *= 2
        again = drawn.dataset.repeat(2).with_columns(g=random_column())
        _set(drawn, again, {**drawn.kinds, "g": pa.float64()})
    return None


def _options(draw: Draw) -> dict[str, Any]:
    return {
        "seed": draw.choice([None, 0, 11]),
        "reshuffle_each_iteration": draw.random() < 0.8,
    }


def _shuffle(draw: Draw, drawn: Drawn) -> None:
    _set(drawn, drawn.dataset.shuffle(**_options(draw)))


def _shuffle_window(draw: Draw, drawn: Drawn) -> None:
    _set(drawn, drawn.dataset.shuffle(draw.choice([1, 2, 5, 16, 500]), **_options(draw)))


def _shuffle_atoms(draw: Draw, drawn: Drawn) -> None:
    size = draw.choice([1, 2, 3, 20])
    _set(drawn, drawn.dataset.shuffle(window="atoms", size=size, **_options(draw)))


def _batch(draw: Draw, drawn: Drawn) -> None:
    _set(drawn, drawn.dataset.batch(draw.choice([1, 2, 3, 7, 32]), drop_last=draw.random() < 0.3))
    drawn.batched = True


def _map_batch(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    fn, kinds = row_functions.batch_function(draw, drawn.kinds)
    _set(drawn, drawn.dataset.map(fn), kinds)
    return None


VERBS: dict[str, Callable[[Draw, Drawn], Any]] = {
    "with_columns": _with_columns,
    "filter": _filter,
    "select": _select,
    "drop": _drop,
    "rename": _rename,
    "cast": _cast,
    "fill_null": _fill_null,
    "map": _map,
    "random_map": _random_map,
    "flat_map": _flat_map,
    "map_batches": _map_batches,
    "filter_rows": _filter_rows,
    "take": _take,
    "skip": _skip,
    "repeat": _repeat,
    "shuffle": _shuffle,
    "shuffle_window": _shuffle_window,
    "shuffle_atoms": _shuffle_atoms,
    "batch": _batch,
    "map_batch": _map_batch,
}
COLUMNS = ("with_columns", "with_columns", "with_columns", "filter", "filter", "select", "drop",
           "rename", "cast", "fill_null")  # fmt: skip
ORDERS = ("take", "skip", "repeat", "shuffle_window")
ROWS = (*COLUMNS, *ORDERS, "map", "map", "random_map", "flat_map", "map_batches", "filter_rows",
        "shuffle", "shuffle", "shuffle_atoms", "shuffle_atoms", "batch")  # fmt: skip
BATCHED = (*COLUMNS, *ORDERS, "map_batch", "map_batch")


class Coverage:
    """Counts what was drawn: operators, lengths, files, atoms, kinds of values."""

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
        """Count one pipeline, and how it ended."""
        node = drawn.dataset._node  # noqa: SLF001 - a handle's node is what is run
        source = node.chain()[0]
        names = [type(each).__name__ for each in node.chain()[1:]]
        self.operators.update(set(names))
        self.lengths.append(len(names))
        self.files.append(len(source.files.files) if hasattr(source, "files") else 0)
        self.atoms.append(source.atom_count if isinstance(source, Source) else 0)
        self.kinds.update({_word(kind) for kind in source.schema.values()})
        self.errors[error or "none"] += 1
        if source.digest not in self.seen:
            self.seen[source.digest] = values_of(source)
        self.values.update(self.seen[source.digest])

    def text(self) -> str:
        """Counts and medians, one line each."""
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
    """The kinds of hurtful values that a source has."""
    table = table_of(source)
    found = {word for row in table.rows for v in row.values.values() for word in _words(v)}
    files = getattr(getattr(source, "files", None), "files", ())
    empty = any(file.metadata.num_rows == 0 for file in files)
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
