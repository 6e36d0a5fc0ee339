"""This file counts the rows that users' functions cost: noted where they run, told on delivery.

What is noted travels with the pieces of output, so that work which is thrown away and done again
counts once, and work that nobody receives not at all. Where a run may have so many errors
(``max_errors``) each of them travels by itself, before the rows that follow it: it ends at the
same row however rows are cut into pieces.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from dml.errors import DmlError, UDFError
from dml.expr.node import Node

_log = logging.getLogger("dml")
T = TypeVar("T")


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
    """What the steps of one task lost since it was last asked, each with its first error.

    Summed by operator, or with ``each`` every error by itself, in order.
    """

    def __init__(self, *, each: bool = False) -> None:
        self.each, self._count = each, 0
        self._found: dict[int, tuple[Loss, DmlError | None]] = {}
        self.ordinals = set[int]()  # of all operators that have lost something, ever

    def note(self, ordinal: int, error: DmlError, rows: int) -> None:
        """An error cost ``rows`` rows."""
        self.ordinals.add(ordinal)
        self._add(Loss(ordinal, rows, 1, "", ""), error.with_traceback(None))

    def pass_on(self, losses: Sequence[Loss]) -> None:
        """Others have lost something before the rows that come next."""
        for loss in losses:
            self._add(loss, None)

    def _add(self, loss: Loss, error: DmlError | None) -> None:
        self._count += 1
        key = self._count if self.each else loss.ordinal
        before = self._found.get(key)
        self._found[key] = (loss, error) if before is None else (before[0].plus(loss), before[1])

    def taken(self, placed: Callable[[DmlError], DmlError]) -> tuple[Loss, ...]:
        """All of it, the first errors as ``placed`` by it; nothing is noted any more."""
        if not self._found:
            return ()
        found, self._found = self._found, {}
        return tuple(
            loss if error is None else _told(loss, placed(error)) for loss, error in found.values()
        )


def _told(loss: Loss, error: DmlError) -> Loss:
    return loss._replace(what=error.what, at=error.at, ids=error.__dict__.get("row_id"))


class Untold(NamedTuple):
    """A loss that no allowance has counted, and the losses of its plan."""

    losses: Losses
    loss: Loss


class Hearer(Protocol):
    """Takes losses that are not to be counted, or not yet."""

    def hear(self, losses: Losses, loss: Loss) -> UDFError | None:
        """Take one; an error where there are too many."""


class Counted:
    """Forgets losses: an earlier run has counted them, and given the rows behind them."""

    def hear(self, _losses: Losses, _loss: Loss) -> None:
        """Forget it."""


@dataclasses.dataclass(slots=True)
class Allowance:
    """How many errors a run may lose rows to (None: any number), and how many there were.

    ``hearer`` takes what is lost instead of a count, while there is one.
    """

    most: int | None = None
    count: int = 0
    hearer: Hearer | None = None

    def add(self, losses: Losses, loss: Loss) -> UDFError | None:
        """Count a loss; the error that it is, if the run may not have it."""
        if self.hearer is not None and self.most is not None:
            return self.hearer.hear(losses, loss)
        losses.sum(loss)
        self.count += loss.errors
        return self.refused(losses, loss, self.count)

    def heard(self, hearer: Hearer, work: Callable[[], T]) -> T:
        """Do ``work``, of which ``hearer`` takes what is lost."""
        outer, self.hearer = self.hearer, hearer
        try:
            return work()
        finally:
            self.hearer = outer

    def refused(self, losses: Losses, last: Loss, count: int) -> UDFError | None:
        """The error that ends a run in which ``last`` is one of ``count``; None if it may be."""
        if self.most is None or count <= self.most:
            return None
        return UDFError(
            f"functions raised {count} error{'s' * (count != 1)}, and max_errors={self.most}",
            at=last.at or losses.operators[last.ordinal].label(),
            why=f"the last is: {last.what}",
            try_="a larger max_errors=, or a function that does not raise for these rows",
        )


@dataclasses.dataclass(slots=True)
class Later(Allowance):
    """The allowance of a run that is read ahead: keeps what is lost until somebody has the rows."""

    untold: list[Untold] = dataclasses.field(default_factory=list)

    def add(self, losses: Losses, loss: Loss) -> None:
        """Keep it."""
        self.untold.append(Untold(losses, loss))

    def taken(self) -> tuple[Untold, ...]:
        """What was kept."""
        untold, self.untold = tuple(self.untold), []
        return untold


class DeferredLosses:
    """What is lost below while a lane takes its input: counted when the lane hands on those rows.

    Until then a *ticket* stands for it among the rows: a loss of no errors, by a number below 0.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.told: dict[int, Untold] = {}
        self.tickets: list[Loss] = []
        self.count = self.errors = 0

    def listening(self, work: Callable[[], T]) -> T:
        """Do ``work``, and set aside what is lost meanwhile."""
        self.errors = 0
        return self.allowance.heard(self, work)

    def hear(self, losses: Losses, loss: Loss) -> UDFError | None:
        """Set a loss aside; an error where those before one row are too many already."""
        self.count += 1
        self.told[self.count] = Untold(losses, loss)
        self.tickets.append(Loss(-self.count, 0, 0, "", ""))
        self.errors += loss.errors
        return self.allowance.refused(losses, loss, self.errors)

    def taken(self) -> tuple[Loss, ...]:
        """The tickets of what was heard since it was last asked."""
        tickets, self.tickets = tuple(self.tickets), []
        return tickets


class Losses:
    """What the ``operators`` of one plan lost of what was delivered, in the run's allowance."""

    def __init__(self, allowance: Allowance, operators: Sequence[Node] = ()) -> None:
        self.allowance, self.operators = allowance, operators
        self.by_operator: dict[int, Loss] = {}

    def sum(self, loss: Loss) -> None:
        """Add a loss to those of its operator."""
        before = self.by_operator.get(loss.ordinal)
        self.by_operator[loss.ordinal] = loss if before is None else before.plus(loss)

    def add(self, losses: Sequence[Loss]) -> UDFError | None:
        """Count losses; the error that they are, at the first that the run may not have."""
        error: UDFError | None = None
        for loss in losses:
            error = error or self.allowance.add(self, loss)
        return error

    def tell(self) -> None:
        """A line in the log for what was lost, where nobody keeps an account of the run."""
        for loss in self.by_operator.values():
            _log.warning(
                "%d rows were lost to errors; the first: %s at %s", loss.rows, loss.what, loss.at
            )
