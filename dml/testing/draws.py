"""A ``Drawn`` is a random pipeline under construction, with its expected columns and growth."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import pyarrow as pa

from dml.api.dataset import Dataset
from dml.expr.columns.column import Column
from dml.testing.oracle_types import typed
from dml.testing.strategies_expressions import Expressions

Draw = random.Random
Kinds = dict[str, pa.DataType]
# Operators may multiply the number of rows by at most this factor.
GROWTH = 6


@dataclasses.dataclass
class Drawn:
    """A random pipeline under construction: its expected columns, and the operators in use."""

    dataset: Dataset
    kinds: Kinds
    used: list[str] = dataclasses.field(default_factory=list)
    growth: int = 1
    batched: bool = False
    rough: bool = False

    @property
    def functional(self) -> bool:
        """True while ``n`` and ``f`` have the types that the random functions expect."""
        return bool(self.kinds.get("n") == pa.int64() and self.kinds.get("f") == pa.float64())

    def then(self, dataset: Dataset, kinds: Kinds | None = None) -> None:
        """Continue with ``dataset``; where its schema is known, that replaces ``kinds``."""
        self.dataset = dataset
        if kinds is not None:
            self.kinds = kinds
        if dataset.schema.known:
            self.kinds = dict(dataset.schema)

    def expressions(self, draw: Draw) -> Expressions:
        """Return a generator of random expressions over the present columns."""
        return Expressions(draw, self.kinds)

    def believed(self, values: Mapping[str, Column]) -> Kinds:
        """Infer types by the oracle's rules, where the engine knows them only at run time."""
        return {name: typed(value.value, self.kinds).kind for name, value in values.items()}
