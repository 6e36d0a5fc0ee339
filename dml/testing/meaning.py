"""A meaning is the reference semantics of an operator, row by row, for the oracle.

A meaning shares nothing with the engine but the fields of the node. Properties that the engine
derives from the facts of an operator (makes ids, draws random numbers) are stated here again.
The uses of the operator in random pipelines are part of its meaning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from dml.expr.node import Node
from dml.testing.oracle_rows import Kinds
from dml.testing.oracle_sources import OracleRow

if TYPE_CHECKING:
    from dml.testing.draws import Draw, Drawn

Units = list[Any] | None
"""The units of the source in reading order; ``("atom", n)`` is one atom, None all units."""


@dataclasses.dataclass
class TypedRow:
    """A row with the types of its columns; a batch is a list of them."""

    row: OracleRow
    kinds: Kinds

    def made(self, values: dict[str, Any], kinds: Kinds, **changes: Any) -> TypedRow:
        """Return a descendant of this row with other values and types."""
        return TypedRow(dataclasses.replace(self.row, values=values, **changes), kinds)


class OracleRun(Protocol):
    """The methods of an oracle run that the meanings of operators use."""

    epoch: int
    seed: int
    settled: Any
    exprs: Any

    def one_source(self, node: Node) -> Any:
        """Return the source whose rows are the rows of ``node``; None if there is none."""

    def table(self, source: Node) -> Any:
        """Return all rows of a source."""

    def stream(self, node: Node, epoch: int, units: Units = None) -> Iterator[Any]:
        """Yield the elements of ``node``: rows with types, or batches of them."""

    def settle(self, node: Node, epoch: int, units: Units) -> None:
        """Infer the result types of functions below ``node`` from all their results."""

    def ordinal(self, node: Node) -> int:
        """Return the number of ``node`` among the operators that draw random numbers."""

    def level(self, node: Node) -> int:
        """Return how many operators below ``node`` make new ids."""

    def descendant(self, element: Any, key: int, number: int) -> Any:
        """Return an element of the same values whose rows have new ids."""


@dataclasses.dataclass(frozen=True)
class OperatorUse:
    """A way in which random pipelines write an operator.

    ``write`` appends the operator to the pipeline, or returns False where it does not apply.
    ``rows`` and ``batches`` are its weights among operators over rows and over batches.
    """

    name: str
    write: Callable[[Draw, Drawn], Any]
    rows: int = 1
    batches: int = 0


def never(_node: Any) -> bool:
    """Return False: no node of the operator draws random numbers."""
    return False


def always(_node: Any) -> bool:
    """Return True: every node of the operator draws random numbers."""
    return True


@dataclasses.dataclass(frozen=True)
class OperatorMeaning:
    """The semantics of ``operator``: ``stream`` yields its elements in order, errors in place.

    ``makes_ids`` is true if it may give one id of its input to several rows or to none. ``draws``
    tells whether a node takes an ordinal among the random operators.
    """

    operator: type[Node]
    stream: Callable[[OracleRun, Any, int, Units], Iterator[Any]]
    uses: tuple[OperatorUse, ...]
    makes_ids: bool = False
    draws: Callable[[Any], bool] = never
