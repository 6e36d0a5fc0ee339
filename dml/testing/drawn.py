"""This file holds a pipeline while it is drawn: what is believed of its columns and its length."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import pyarrow as pa

from dml.dataset import Dataset
from dml.expr.column import Column
from dml.testing.oracle_types import typed
from dml.testing.strategies_expressions import Expressions

Draw = random.Random
Kinds = dict[str, pa.DataType]
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

    def then(self, dataset: Dataset, kinds: Kinds | None = None) -> None:
        """Go on with ``dataset``; its own schema counts where it is known."""
        self.dataset = dataset
        if kinds is not None:
            self.kinds = kinds
        if dataset.schema.known:
            self.kinds = dict(dataset.schema)

    def expressions(self, draw: Draw) -> Expressions:
        """Expressions over the present columns."""
        return Expressions(draw, self.kinds)

    def believed(self, values: Mapping[str, Column]) -> Kinds:
        """Types by the oracle's rules where the engine will only know them when it runs."""
        return {name: typed(value.value, self.kinds).kind for name, value in values.items()}
