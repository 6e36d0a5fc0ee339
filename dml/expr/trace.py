"""This file stands in for a row while a function runs once per path, and writes down what it asks.

A truth value is a question; the tracer answers it as it was told to, so that running the function
again with other answers visits the other paths. A check is what would make Python's result another
one than the expressions' (``dml.expr.traced``), or raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import pyarrow as pa

from dml.expr.value import Value, col

NODES, QUESTIONS = 2000, 40


class UnliftableError(Exception):
    """What the function does has no expression that is proven to give the same."""


class Tracer:
    """One run: answers questions as told, then with yes, and notes questions and checks in order.

    ``events`` are (value, answer): an answer of None marks a check.
    """

    def __init__(self, answers: tuple[bool, ...], *, tests_none: bool) -> None:
        self.answers, self.tests_none = answers, tests_none
        self.events: list[tuple[Value, bool | None]] = []
        self.given: list[bool] = []
        self.known: dict[bytes, bool] = {}
        self.nodes = 0

    def ask(self, question: Value) -> bool:
        """Whether ``question`` holds on this path; the same question has the same answer."""
        known = self.known.get(question.digest)
        if known is not None:
            return known
        place = len(self.given)
        if place >= QUESTIONS:
            raise UnliftableError(f"it decides more than {QUESTIONS} times on one path")
        answer = self.answers[place] if place < len(self.answers) else True
        self.given.append(answer)
        self.known[question.digest] = answer
        self.events.append((question, answer))
        return answer

    def check(self, outside: Value) -> None:
        """Rows on this path where ``outside`` is true must be computed by Python."""
        if self.known.get(outside.digest) is not False:
            self.known[outside.digest] = False
            self.events.append((outside, None))

    def count(self) -> None:
        """One more expression; refuses programs that grow without end."""
        self.nodes += 1
        if self.nodes > NODES:
            raise UnliftableError(f"it computes more than {NODES} intermediate values")


class Row(dict[str, Any]):
    """The row that is traced: a dict of traced values that asks whether a value is null when read.

    It asks only if the function tests for None somewhere; what is copied as a whole is checked.
    """

    def __init__(self, tracer: Tracer, columns: Mapping[str, object]) -> None:
        super().__init__(columns)
        self.tracer = tracer

    def __getitem__(self, name: str) -> Any:
        value = dict.__getitem__(self, name)
        if self.tracer.tests_none and self.tracer.ask(Value("is_null", (col(name),))):
            return None
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - this is get

    def __iter__(self) -> Iterator[str]:
        return iter(dict.keys(self))

    def keys(self) -> Any:
        """Names; whoever asks is about to copy the row, so nulls are checked for all at once."""
        if self.tracer.tests_none:
            for name in dict.keys(self):
                null = Value("is_null", (col(name),))
                if not self.tracer.known.get(null.digest):
                    self.tracer.check(null)
        return dict.keys(self)

    def __or__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return {**self, **other}

    def __ror__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return {**other, **self}

    def _refuse(self, *_: object) -> NoReturn:
        raise UnliftableError("it changes the row in place, or compares it as a whole")

    __eq__ = __ne__ = __ior__ = __setitem__ = __delitem__ = _refuse
    __hash__ = None


class Unreadable:
    """A column of a type that is not lifted; any use of it refuses."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.__dict__["why"] = f"it uses column {name!r} of type {kind}"

    def _refuse(self, *_: object) -> NoReturn:
        raise UnliftableError(self.why)  # type: ignore[attr-defined]

    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __abs__ = __neg__ = __pos__ = _refuse
    __and__ = __or__ = __xor__ = __rand__ = __ror__ = __rxor__ = __invert__ = _refuse
    __len__ = __iter__ = __getitem__ = __contains__ = __call__ = __getattr__ = _refuse
    __int__ = __float__ = __index__ = __str__ = __repr__ = __format__ = __round__ = _refuse
    __eq__ = __ne__ = __hash__ = _refuse
