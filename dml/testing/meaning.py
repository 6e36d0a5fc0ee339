"""This file says what a meaning is: one operator, row by row, and how random pipelines use it.

A meaning shares nothing with the engine but the fields of the node. What the engine derives from
the facts of an operator (whether it makes ids, draws) is stated here a second time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dml.expr.node import Node
from dml.testing.oracle_rows import Kinds
from dml.testing.oracle_sources import Row

if TYPE_CHECKING:
    from dml.testing.drawn import Draw, Drawn
    from dml.testing.oracle import Oracle

Units = list[Any] | None
"""The source's units to read, in that order, or ``("atom", n)`` for one atom; None for all."""


@dataclasses.dataclass
class Typed:
    """A row with the types of its columns; a batch is a list of them."""

    row: Row
    kinds: Kinds

    def made(self, values: dict[str, Any], kinds: Kinds, **changes: Any) -> Typed:
        """A row that descends from this one."""
        return Typed(dataclasses.replace(self.row, values=values, **changes), kinds)


@dataclasses.dataclass(frozen=True)
class Use:
    """A way in which random pipelines write an operator.

    ``write`` adds it to what was drawn and returns False where it would mean nothing. ``rows`` and
    ``batches`` say how often it is drawn, among operators over rows and over batches.
    """

    name: str
    write: Callable[[Draw, Drawn], Any]
    rows: int = 1
    batches: int = 0


def never(_node: Any) -> bool:
    """No operator of the kind draws."""
    return False


def always(_node: Any) -> bool:
    """Every operator of the kind draws."""
    return True


@dataclasses.dataclass(frozen=True)
class Meaning:
    """What ``operator`` means: ``stream`` gives its elements in order, errors at their place.

    ``makes_ids`` says that it may give one id of its input to several rows or none,
    ``draws`` whether a node takes an ordinal among the random operators.
    """

    operator: type[Node]
    stream: Callable[[Oracle, Any, int, Units], Iterator[Any]]
    uses: tuple[Use, ...]
    makes_ids: bool = False
    draws: Callable[[Any], bool] = never
