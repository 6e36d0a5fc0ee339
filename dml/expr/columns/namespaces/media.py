"""Functions of images and of sounds follow each other without naming the namespace again."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, Self

from dml.base.fingerprint import digest
from dml.expr.columns.literal import plain, whole
from dml.expr.columns.namespaces.image_arguments import probability
from dml.expr.columns.namespaces.namespace import Namespace
from dml.expr.columns.value import MEDIA, C, Value, lit, walk

# Draws of images and sounds are numbered from here, beyond those that users number.
OWN_STREAMS = 1 << 19
# The parameters that decide what is decoded; the others say what is refused.
DECIDING = {"image.decode": (0, 3), "audio.decode": (0, 1, 2, 3)}


class MediaFunctions(Generic[C]):
    """Functions that return a column with the same functions, or a plain column."""

    __slots__ = ()
    # The column, and the class of columns that are neither images nor sounds.
    _given: Any
    _kind: Any

    if TYPE_CHECKING:  # columns of images are columns, too

        def __getattr__(self, name: str) -> Any: ...

    def _value(self, op: str, params: tuple[Any, ...], others: tuple[Any, ...]) -> Value:
        args = tuple(o.value if isinstance(o, self._kind) else lit(plain(o)) for o in others)
        return Value(op, (self._given.value, *args), params)

    def _made(self, op: str, *params: Any, others: tuple[Any, ...] = ()) -> Self:
        """Return function ``op`` of this column and ``others``: a column with these functions."""
        functions = next(base for base in type(self).__mro__ if MediaFunctions in base.__bases__)
        made: Self = media_class(functions, self._kind)(self._value(op, params, others))
        return made

    def _plain(self, op: str, *params: Any, others: tuple[Any, ...] = ()) -> C:
        """Return function ``op`` of this column and ``others``: a column of other values."""
        made: C = self._kind(self._value(op, params, others))
        return made

    def _draw(self, name: str, seed: int | None) -> Any:
        """Return a draw of function ``name`` of this column, which no other function has.

        The number of a draw follows from the expression before it, without the libraries' versions.
        """
        written = [(v.op, _written(v)) for v in walk((self._given.value,))]
        stream = OWN_STREAMS + int.from_bytes(digest(name, *written)[:8]) % OWN_STREAMS
        given = None if seed is None else whole("seed", seed)
        return self._kind(Value("random", (), (given, stream, None)))

    def _chance(self, name: str, p: float, seed: int | None) -> Any:
        return self._draw(f"{name} or not", seed) < probability(p)

    def _between(self, name: str, low: float, high: float, seed: int | None) -> Any:
        return self._draw(name, seed) * (high - low) + low


class MediaNamespace(Namespace[C]):
    """The base of the namespaces ``.image`` and ``.audio`` of a column."""

    __slots__ = ()

    @property
    def _given(self) -> Any:
        return self._column

    @property
    def _kind(self) -> Any:
        given = self._column
        return given._kind if isinstance(given, MediaFunctions) else type(given)  # noqa: SLF001


def _written(value: Value) -> tuple[Any, ...]:
    """Return the parameters of ``value`` that count where its draws are numbered."""
    if value.op in DECIDING:
        return tuple(value.params[place] for place in DECIDING[value.op])
    return value.params if value.op == "col" or value.op.startswith(MEDIA) else ()


@functools.cache
def media_class(functions: Any, kind: Any) -> Any:
    """Return the class of columns ``kind`` that have ``functions``."""
    members = {
        "__slots__": (),
        "__doc__": "A column whose functions follow each other without naming their namespace.",
        "_title": functions._title,  # noqa: SLF001
        "_place": functions._place,  # noqa: SLF001
        "_given": property(lambda self: self),
        "_kind": kind,
    }
    return type(f"{functions._place.title()}Column", (functions, kind), members)  # noqa: SLF001
