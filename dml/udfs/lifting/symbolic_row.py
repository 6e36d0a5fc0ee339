"""A symbolic row stands in for a row while a function is traced; its tracer records decisions.

When the function needs the truth of a traced value, it asks a *question*, which the tracer answers
as prescribed. Running the function again with other answers visits the other paths. A check is a
condition under which Python's result would differ from that of the expressions
(``dml.udfs.lifting.traced_value``), or Python would raise.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NoReturn

import pyarrow as pa

from dml.expr.columns.value import Value, col, joined, lit

# The tracer of the current run, for functions that are given constants alone.
RUNNING: ContextVar[Tracer] = ContextVar("running")
NODES, QUESTIONS, LINES = 2000, 40, 20_000


class UnliftableError(Exception):
    """A function for which no expression is proven to give the same result."""


def refusing(why: str) -> Callable[..., NoReturn]:
    """Return a function, or method, that raises UnliftableError on every call."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnliftableError(why)

    return refuse


def checked_constant(given: Any) -> Any:
    """Return ``given``, a constant that columns and kernels can hold; refuse lone surrogates."""
    for text in given if type(given) is tuple else (given,):
        if (
            type(text) is str
            and not text.isascii()
            and text.encode(errors="ignore").decode() != text
        ):
            raise UnliftableError("it uses text with a lone surrogate, which no column holds")
    return given


class Tracer:
    """One run of a function: answers its questions, and records questions and checks in order.

    The first answers are prescribed, further ones are True. ``events`` are (value, answer); an
    answer of None marks a check.
    """

    def __init__(
        self, answers: tuple[bool, ...], *, tests_none: bool, catches: bool = False
    ) -> None:
        self.answers, self.tests_none, self.catches = answers, tests_none, catches
        self.events: list[tuple[Value, bool | None]] = []
        self.given: list[bool] = []
        self.known: dict[bytes, bool] = {}
        self.checked: set[bytes] = set()
        self.nodes = 0
        # True if Python may take a path that was not traced, in a row where a check is true.
        self.leaves = catches

    def ask(self, question: Value) -> bool:
        """Return the answer to ``question`` on this path; repeated questions have one answer."""
        known = self.known.get(question.digest)
        if known is not None:
            self.leaves |= question.digest in self.checked
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
        """Record that rows on this path in which ``outside`` is true must be computed by Python."""
        if self.known.get(outside.digest) is not False:
            self.known[outside.digest] = False
            self.checked.add(outside.digest)
            self.events.append((outside, None))

    def trap(self, question: Value, error: type[Exception]) -> None:
        """In a function with ``try``, ask ``question``, and raise the trap of ``error`` if true."""
        if self.catches and self.ask(question):
            raise TRAPS[error]

    def here(self, value: Value, kind: pa.DataType) -> Value:
        """Return ``value`` for rows on this path, and null for others, where it is not used."""
        answered = [(question, answer) for question, answer in self.events if answer is not None]
        taken = [q if answer else Value("not", (q,)) for q, answer in answered]
        return Value("if_else", (joined("and", taken), value, lit(None, kind))) if taken else value

    def count(self) -> None:
        """Count an expression; refuse functions that compute more than ``NODES`` values."""
        self.nodes += 1
        if self.nodes > NODES:
            raise UnliftableError(f"it computes more than {NODES} intermediate values")


def bounded(fn: Callable[..., Any], codes: set[types.CodeType]) -> Callable[..., Any]:
    """Return ``fn`` limited to ``LINES`` lines and calls in ``codes``: UnliftableError beyond."""

    def run(row: object) -> Any:
        passed = 0

        def look(frame: types.FrameType, event: str, value: object) -> Any:
            nonlocal passed
            del event, value
            passed += 1
            if passed > LINES:
                raise UnliftableError("it has a loop that does not end soon")
            return look if frame.f_code in codes else None

        before = sys.gettrace()
        sys.settrace(look)
        try:
            return fn(row)
        finally:
            sys.settrace(before)

    return run


class Trap(BaseException):
    """The base of stand-ins for Python's exceptions, the only ones that traced ``except`` catches.

    Traced functions see the classes of ``TRAPS`` in place of Python's own. So an exception that
    tracing itself causes is never taken for one that the function would catch.
    """

    __str__ = __repr__ = __format__ = refusing("it uses what an exception says")


def _traps() -> dict[type[BaseException], type[Trap]]:
    """Return a trap class for each of Python's exceptions, with the same class hierarchy."""
    made: dict[type[BaseException], type[Trap]] = {BaseException: Trap}
    found = (each for each in vars(builtins).values() if isinstance(each, type))
    classes = [each for each in found if issubclass(each, BaseException)]
    for each in sorted(classes, key=lambda known: len(known.__mro__)):
        if each not in made:
            above = tuple(made[base] for base in each.__bases__ if base in made)
            odd = {"__init__": refusing(ODD_MADE)} if issubclass(each, ODD) else {}
            made[each] = type(each.__name__, above, odd)
    return made


# Exception classes that change on construction, by their arguments, or while they propagate.
ODD = (
    *(StopIteration, StopAsyncIteration, GeneratorExit, OSError, SyntaxError, BaseExceptionGroup),
    *(UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError),
)
ODD_MADE = "it makes an exception of a class that is not like the others"


class SymbolicRow(dict[str, Any]):
    """The traced row: a dict of traced values.

    If the function tests for None anywhere, each read asks whether the value is null, and a copy of
    the whole row adds a check instead. Values that the function has stored (``edited``) are read
    without a question.
    """

    def __init__(self, tracer: Tracer, columns: Mapping[str, object]) -> None:
        super().__init__(columns)
        self.tracer = tracer
        self.edited: set[str] = set()
        self.passing = 0  # number of iterations in progress

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise TRAPS[KeyError]
        value = dict.__getitem__(self, name)
        if name in self.edited:
            return value
        if self.tracer.tests_none and self.tracer.ask(Value("is_null", (col(name),))):
            return None
        return value

    def __setitem__(self, name: Any, value: Any) -> None:
        if type(name) is not str:
            raise UnliftableError("it sets a column whose name is not a constant text")
        dict.__setitem__(self, name, value)
        self.edited.add(name)

    def __delitem__(self, name: Any) -> None:
        if name not in self:
            raise TRAPS[KeyError]
        if self.passing:
            raise UnliftableError("it removes a column while it goes through the columns")
        dict.__delitem__(self, name)

    def pop(self, name: Any, *default: Any) -> Any:
        """Remove the column and return its value, or ``default`` if there is no such column."""
        if name not in self and default:
            return default[0]
        value = self[name]
        del self[name]
        return value

    def update(self, given: Any = (), /, **named: Any) -> None:
        """Store columns one after the other, since iterating over ``given`` may read the row."""
        if isinstance(given, dict):
            given = tuple((name, given[name]) for name in tuple(given))
        for name, value in given:
            self[name] = value
        for name, value in named.items():
            self[name] = value

    def setdefault(self, name: Any, default: Any = None) -> Any:
        """Return the value of column ``name``, after storing ``default`` if there is none."""
        if name not in self:
            self[name] = default
        return self[name]

    def copy(self) -> SymbolicRow:
        """Return a new row with the same values."""
        made = SymbolicRow(
            self.tracer, {name: dict.__getitem__(self, name) for name in dict.keys(self)}
        )
        made.edited = set(self.edited)
        return made

    def items(self) -> Any:
        """Return a view of the names and values, in order."""
        return RowView(self, lambda name: (name, self[name]))

    def values(self) -> Any:
        """Return a view of the values, in order."""
        return RowView(self, lambda name: self[name])

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 - this is get

    def __iter__(self) -> Iterator[str]:
        return self.through()

    def through(self) -> Iterator[str]:
        """Yield the names; refuse the function if a column is removed during the iteration."""
        self.passing += 1
        return self._through(iter(dict.keys(self)))

    def _through(self, names: Iterator[str]) -> Iterator[str]:
        try:
            yield from names
        finally:
            self.passing -= 1

    def keys(self) -> Any:
        """Return the names, and check all columns for null: the caller is about to copy the row."""
        if self.tracer.tests_none:
            for name in [each for each in dict.keys(self) if each not in self.edited]:
                null = Value("is_null", (col(name),))
                if not self.tracer.known.get(null.digest):
                    self.tracer.check(null)
        return Names(self, lambda name: name)

    def __or__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return {**self, **other}

    def __ror__(self, other: Any) -> dict[str, Any]:  # type: ignore[override]
        return {**other, **self}

    __eq__ = __ne__ = __ior__ = clear = popitem = refusing(
        "it compares the row as a whole, or empties it"
    )
    __hash__ = None


class RowView:
    """The result of ``items`` or ``values`` of a row: a live view, as Python's is."""

    def __init__(self, row: SymbolicRow, shown: Callable[[str], Any]) -> None:
        self.row, self.shown = row, shown

    def __iter__(self) -> Iterator[Any]:
        names = self.row.through()
        return (self.shown(name) for name in names)

    def __len__(self) -> int:
        return len(self.row)

    _refuse = refusing("it compares the columns of a row as a whole")
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __reversed__ = _refuse
    __and__ = __or__ = __sub__ = __xor__ = __rand__ = __ror__ = __rsub__ = __rxor__ = _refuse
    __str__ = __repr__ = __format__ = __getattr__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Names(RowView):
    """The result of ``keys`` of a row."""

    def __contains__(self, name: object) -> bool:
        return name in self.row


class Unreadable:
    """A column of a type that cannot be lifted; any use of the column is refused."""

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


TRAPS = _traps()
