"""This file counts the rows that users' functions cost: noted where they run, told on delivery.

What is noted travels with the pieces of output, so that work which is thrown away and done again
counts once, and work that nobody receives not at all.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dml.errors import DmlError, UDFError
from dml.expr.node import Node

_log = logging.getLogger("dml")


class Loss(NamedTuple):
    """What operator number ``ordinal`` lost: rows, errors, and the text and place of the first.

    ``ids`` is the id of that row where its place is not known yet.
    """

    ordinal: int
    rows: int
    errors: int
    what: str
    at: str
    ids: Any = None

    def placed(self, place: Callable[[DmlError], DmlError]) -> Loss:
        """The same with the place of the first row, as ``place`` knows it of an error."""
        if self.ids is None:
            return self
        error = UDFError(self.what, at=self.at)
        error.row_id = self.ids  # type: ignore[attr-defined]
        return self._replace(at=place(error).at, ids=None)

    def plus(self, later: Loss) -> Loss:
        """Both together; the first error stays the first."""
        return self._replace(rows=self.rows + later.rows, errors=self.errors + later.errors)


class Noted:
    """What the steps of one task lost since it was last asked, each with its first error."""

    def __init__(self) -> None:
        self._firsts: dict[int, DmlError] = {}
        self._sums: dict[int, Loss] = {}
        self.ordinals = set[int]()  # of all operators that have lost something, ever

    def note(self, ordinal: int, error: DmlError, rows: int) -> None:
        """An error cost ``rows`` rows."""
        self.ordinals.add(ordinal)
        loss = Loss(ordinal, rows, 1, "", "")
        before = self._sums.get(ordinal)
        self._sums[ordinal] = loss if before is None else before.plus(loss)
        if before is None:
            self._firsts[ordinal] = error.with_traceback(None)

    def taken(self, placed: Callable[[DmlError], DmlError]) -> tuple[Loss, ...]:
        """All of it, the first errors as ``placed`` by it; nothing is noted any more."""
        if not self._sums:
            return ()
        sums, firsts = self._sums, self._firsts
        self._sums, self._firsts = {}, {}
        errors = {ordinal: placed(error) for ordinal, error in firsts.items()}
        return tuple(
            loss._replace(what=error.what, at=error.at, ids=error.__dict__.get("row_id"))
            for loss, error in ((loss, errors[ordinal]) for ordinal, loss in sums.items())
        )


def merged(losses: Sequence[Loss]) -> dict[int, Loss]:
    """Sums by operator."""
    found: dict[int, Loss] = {}
    for loss in losses:
        before = found.get(loss.ordinal)
        found[loss.ordinal] = loss if before is None else before.plus(loss)
    return found


@dataclasses.dataclass(slots=True)
class Allowance:
    """How many errors a run may lose rows to (None: any number), and how many there were."""

    most: int | None = None
    count: int = 0

    def add(self, losses: Sequence[Loss], operators: Sequence[Node]) -> UDFError | None:
        """Count losses; the error that they are, if that is more than the run may have."""
        self.count += sum(loss.errors for loss in losses)
        if self.most is None or self.count <= self.most:
            return None
        last = losses[-1]
        return UDFError(
            f"functions raised {self.count} errors, and max_errors={self.most}",
            at=last.at or operators[last.ordinal].label(),
            why=f"one of the last is: {last.what}",
            try_="a larger max_errors=, or a function that does not raise for these rows",
        )


class Untold(NamedTuple):
    """Losses of some operators that no allowance has counted."""

    losses: Sequence[Loss]
    operators: Sequence[Node]

    def told(self, allowance: Allowance) -> UDFError | None:
        """Count them; the error that they are."""
        return allowance.add(self.losses, self.operators)


@dataclasses.dataclass(slots=True)
class Later(Allowance):
    """The allowance of a run that is read ahead: keeps what is lost until somebody has the rows."""

    untold: list[Untold] = dataclasses.field(default_factory=list)

    def add(self, losses: Sequence[Loss], operators: Sequence[Node]) -> None:
        """Keep it."""
        self.untold.append(Untold(losses, operators))

    def taken(self) -> tuple[Untold, ...]:
        """What was kept."""
        untold, self.untold = tuple(self.untold), []
        return untold


class Losses:
    """What the operators of one plan lost of what was delivered, within the run's allowance."""

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.by_operator: dict[int, Loss] = {}

    def add(self, losses: Sequence[Loss], operators: Sequence[Node]) -> UDFError | None:
        """Count losses; the error that they are, if that is more than the run may have."""
        if not losses:
            return None
        self.by_operator = merged([*self.by_operator.values(), *losses])
        return self.allowance.add(losses, operators)

    def tell(self) -> None:
        """A line in the log for what was lost, where nobody keeps an account of the run."""
        for loss in self.by_operator.values():
            _log.warning(
                "%d rows were lost to errors; the first: %s at %s", loss.rows, loss.what, loss.at
            )
