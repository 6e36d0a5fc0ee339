"""Record rows lost to errors of users' functions where they run; count them on delivery.

Losses travel with the pieces of output. So a loss counts once if work is repeated, and not at all
if its rows are not delivered. If a run has an error limit (``max_errors``), each loss travels
separately, before the rows that follow it, so the run always ends at the same row.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dml.errors import DmlError, FunctionTimeoutError, UDFError
from dml.expr.node import Node

_log = logging.getLogger("dml")
T = TypeVar("T")


class Loss(NamedTuple):
    """Losses of operator ``ordinal``: numbers of ``rows`` and ``errors``, and the first error.

    ``what`` is its text, ``at`` its place. ``ids`` is the id of the first lost row until the place
    of that row is known, then None. ``timed`` is True if a call took too long, which another run
    may not repeat.
    """

    ordinal: int
    rows: int
    errors: int
    what: str
    at: str
    ids: Any = None
    timed: bool = False

    @classmethod
    def of(cls, ordinal: int, error: DmlError, rows: int) -> Loss:
        """Return the loss of ``rows`` rows to ``error``, whose place is not known yet."""
        return cls(ordinal, rows, 1, "", "", None, isinstance(error, FunctionTimeoutError))

    def placed(self, place: Callable[[DmlError], DmlError]) -> Loss:
        """Return this loss with the place of its first row; ``place`` adds that to an error."""
        if self.ids is None:
            return self
        error = UDFError(self.what, at=self.at)
        error.row_id = self.ids  # type: ignore[attr-defined]
        return self._replace(at=place(error).at, ids=None)

    def plus(self, later: Loss) -> Loss:
        """Return the sum of this loss and ``later``, with the first error of this loss."""
        rows, errors = self.rows + later.rows, self.errors + later.errors
        return self._replace(rows=rows, errors=errors, timed=self.timed or later.timed)


class Noted:
    """Losses of the steps of one task since the last ``drain``, each with its first error.

    Losses are summed by operator; with ``each``, every error is kept separately, in order.
    """

    def __init__(self, *, each: bool = False) -> None:
        self.each, self._count = each, 0
        self._found: dict[int, tuple[Loss, DmlError | None]] = {}
        self.ordinals = set[int]()  # of all operators that have lost something, ever

    def note(self, ordinal: int, error: DmlError, rows: int) -> None:
        """Record that operator ``ordinal`` lost ``rows`` rows to ``error``."""
        self.ordinals.add(ordinal)
        self._add(Loss.of(ordinal, error, rows), error.with_traceback(None))

    def pass_on(self, losses: Sequence[Loss]) -> None:
        """Record losses of earlier stages that lie before the rows that come next."""
        for loss in losses:
            self._add(loss, None)

    def _add(self, loss: Loss, error: DmlError | None) -> None:
        self._count += 1
        key = self._count if self.each else loss.ordinal
        before = self._found.get(key)
        self._found[key] = (loss, error) if before is None else (before[0].plus(loss), before[1])

    def drain(self, placed: Callable[[DmlError], DmlError]) -> tuple[Loss, ...]:
        """Return and clear all losses; ``placed`` adds the place to each first error."""
        if not self._found:
            return ()
        found, self._found = self._found, {}
        return tuple(
            loss if error is None else _with_error(loss, placed(error))
            for loss, error in found.values()
        )


def _with_error(loss: Loss, error: DmlError) -> Loss:
    return loss._replace(what=error.what, at=error.at, ids=error.__dict__.get("row_id"))


class Untold(NamedTuple):
    """A loss that no allowance has counted yet, and the ``Losses`` of its plan."""

    losses: Losses
    loss: Loss


Hearer: TypeAlias = Callable[["Losses", Loss], UDFError | None]
"""A function that receives a loss in place of the count; it returns an error if too many come."""


def discard(_losses: Losses, _loss: Loss) -> None:
    """Ignore a loss that an earlier run has counted, since it delivered the rows after the loss."""


@dataclasses.dataclass(slots=True)
class Allowance:
    """The errors that may cost a run rows (at most ``most``; None: any number), and their count.

    While ``hearer`` is set and ``most`` is not None, ``hearer`` receives losses, and they are not
    counted. ``overran`` is called before the rows after a call that took too long are delivered.
    """

    most: int | None = None
    count: int = 0
    hearer: Hearer | None = None
    overran: Callable[[], None] = lambda: None

    def add(self, losses: Losses, loss: Loss) -> UDFError | None:
        """Count a loss; return the error to raise if the limit is exceeded, else None."""
        if loss.timed:
            self.overran()
        if self.hearer is not None and self.most is not None:
            return self.hearer(losses, loss)
        losses.sum(loss)
        self.count += loss.errors
        return self.refused(losses, loss, self.count)

    def heard(self, hearer: Hearer, work: Callable[[], T]) -> T:
        """Return ``work()``, and pass its losses to ``hearer`` instead of counting them."""
        outer, self.hearer = self.hearer, hearer
        try:
            return work()
        finally:
            self.hearer = outer

    def refused(self, losses: Losses, last: Loss, count: int) -> UDFError | None:
        """Return an error if ``count`` errors are too many, else None; ``last`` is the last one."""
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
    """The allowance of a run that is read ahead; it collects losses until rows are delivered."""

    untold: list[Untold] = dataclasses.field(default_factory=list)

    def add(self, losses: Losses, loss: Loss) -> None:
        """Collect a loss for the next ``drain``."""
        self.untold.append(Untold(losses, loss))

    def drain(self) -> tuple[Untold, ...]:
        """Return and clear the collected losses."""
        untold, self.untold = tuple(self.untold), []
        return untold


class DeferredLosses:
    """Losses of operators below a lane, counted when the lane delivers the rows that follow them.

    Until then a *ticket* takes the place of each loss among the rows: a ``Loss`` of 0 rows and 0
    errors, whose ordinal is the negative number of the loss.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.told: dict[int, Untold] = {}
        self.tickets: list[Loss] = []
        self.count = self.errors = 0

    def listening(self, work: Callable[[], T]) -> T:
        """Return ``work()``, which pulls from the lane's input, and collect its losses."""
        self.errors = 0
        return self.allowance.heard(self.hear, work)

    def hear(self, losses: Losses, loss: Loss) -> UDFError | None:
        """Collect a loss; return an error if the losses of one pull alone are too many."""
        self.count += 1
        self.told[self.count] = Untold(losses, loss)
        self.tickets.append(Loss(-self.count, 0, 0, "", ""))
        self.errors += loss.errors
        return self.allowance.refused(losses, loss, self.errors)

    def drain(self) -> tuple[Loss, ...]:
        """Return and clear the tickets of losses since the last call."""
        tickets, self.tickets = tuple(self.tickets), []
        return tickets


class Losses:
    """Losses of the ``operators`` of one plan in delivered rows, counted by the run's allowance."""

    def __init__(self, allowance: Allowance, operators: Sequence[Node] = ()) -> None:
        self.allowance, self.operators = allowance, operators
        self.by_operator: dict[int, Loss] = {}

    def sum(self, loss: Loss) -> None:
        """Add a loss to the sum of its operator."""
        before = self.by_operator.get(loss.ordinal)
        self.by_operator[loss.ordinal] = loss if before is None else before.plus(loss)

    def add(self, losses: Sequence[Loss]) -> UDFError | None:
        """Count ``losses``; return the error of the first one beyond the limit, or None."""
        error: UDFError | None = None
        for loss in losses:
            error = error or self.allowance.add(self, loss)
        return error

    def tell(self) -> None:
        """Log the losses of each operator, for runs without an account."""
        for loss in self.by_operator.values():
            _log.warning(
                "%d rows were lost to errors; the first: %s at %s", loss.rows, loss.what, loss.at
            )
