"""Public verbs are wrapped here: errors name the user's line, arguments are normalized."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from dml.checks import whole
from dml.errors import DmlError, PlanError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

HERE = __name__.partition(".")[0]
COMMANDS = f"{HERE}.cli."  # called by the library that parses the command line


def users_line() -> str:
    """Return the name of the line of the nearest frame outside of dml; "" if there is none.

    There is none under the command line, since no line of the user's code calls dml there.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to see one's caller
    while frame is not None and (name := frame.f_globals.get("__name__", "")).split(".")[0] == HERE:
        frame = None if name.startswith(COMMANDS) else frame.f_back
    return line_name(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def line_name(file: str, line: int) -> str:
    """Return what users call a line: ``train.py:3``, or "Cell In[18], line 3" in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    compiler = getattr(shell, "compile", None)  # IPython 7 does not name cells
    cell = getattr(compiler, "format_code_name", lambda _: None)(file)
    return f"{' '.join(cell)}, line {line}" if cell else f"{file.rsplit('/', 1)[-1]}:{line}"


def warn(text: str, category: type[Warning]) -> None:
    """Warn at the nearest line of the user's code; if there is none (in a worker), at dml's line.

    Frames of the standard library, where threads begin, are skipped.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    level = found = 2
    while frame is not None:
        room = frame.f_globals.get("__name__", "").partition(".")[0]
        if room != HERE and room not in sys.stdlib_module_names:
            found = level
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=found)


# Special methods and their names in messages.
SPOKEN = {
    "__array_ufunc__": "a function of numpy",
    "__bool__": "a truth value", "__float__": "conversion to a number",
    "__iter__": "iteration", "__len__": "len",
}  # fmt: skip


# Verbs that pass their arguments unchanged to a function of the user's.
HANDING = frozenset({"apply", "apply_op", "pipe", "reduce"})


def door(verb: Callable[P, R]) -> Callable[P, R]:
    """Wrap a public verb, so that its errors name the user's line that called it.

    NumPy integers among the arguments become equal Python ints.
    """
    handing = verb.__name__ in HANDING

    @functools.wraps(verb)
    def opened(*args: P.args, **options: P.kwargs) -> R:
        try:
            if handing:
                return verb(*args, **options)
            return verb(*map(whole, args), **{name: whole(v) for name, v in options.items()})
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # not by the call itself
            return _otherwise(opened, args, options)
        except DmlError as error:
            where = users_line()
            if where and "written in" not in error.at:
                name = SPOKEN.get(verb.__name__, verb.__name__)
                error.at = f"{error.at or name}, written in {where}"
            raise concise(error) from error.__cause__

    return opened


def concise(error: DmlError) -> DmlError:
    """Return ``error`` with a traceback for users, see ``tracebacks.concise``."""
    from dml.base import tracebacks  # noqa: PLC0415 - only where something fails

    return tracebacks.concise(error)


def _otherwise(verb: Callable[..., R], args: tuple[Any, ...], options: dict[str, Any]) -> R:
    """Call ``verb`` with its own names for ``options``; raise ArgumentError if it has none."""
    from dml.base.other_names import renamed, unbound  # noqa: PLC0415 - only where a call fails

    other = renamed(verb, options)
    if other is None:
        raise unbound(verb, args, options, users_line()) from None
    return verb(*args, **other)


def doors(kind: type[T]) -> type[T]:
    """Wrap all public methods of a class and of its bases that are not wrapped yet."""
    made: dict[Any, Any] = {}
    for base in kind.__mro__:
        for name, found in [*vars(base).items()]:
            public = isinstance(found, FunctionType) and not name.startswith("_")
            if public and not hasattr(found, "__wrapped__"):
                setattr(base, name, made.setdefault(found, door(found)))
    return kind


def missing(owner: Any, name: str, title: str, place: str = "", hint: str = "") -> Any:
    """Raise UnknownNameError for a public ``name`` that ``owner`` lacks; see ``unknown``."""
    if name.startswith("_"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    if hasattr(type(owner), name):  # a property raised AttributeError: it does so again
        return object.__getattribute__(owner, name)
    from dml.base.other_names import unknown  # noqa: PLC0415 - only where a name is wrong

    raise unknown(owner, name, title, place, users_line(), hint=hint) from None


class Answering:
    """The base of public classes whose unknown names end in an error that says what was meant.

    ``_title`` is what messages call the object; ``_place`` is the place of ``other_names.unknown``.
    """

    __slots__ = ()
    _title: ClassVar[str] = ""
    _place: ClassVar[str] = ""

    if not TYPE_CHECKING:  # a checker would take any name for a known one

        def __getattr__(self, name: str) -> Any:
            hint = "" if name.startswith("_") else self._hint(name)
            return missing(self, name, self._title, self._place, hint)

    def _hint(self, name: str) -> str:
        """Return what a ``name`` that this object lacks is here, or "" if that is not known."""
        return ""


def by_name(mapping: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Merge a dict by column and keyword arguments to one dict; raise PlanError if it is empty."""
    if not isinstance(mapping, Mapping | None):
        raise PlanError(
            f"a dict by column is needed, got {mapping!r}",
            why=f"it is of type {type(mapping).__name__}",
            try_='{"column": ...} or column=...',
        )
    given = {**(mapping or {}), **more}
    if not given:
        raise PlanError("no column is named", why="nothing was given", try_='{"column": ...}')
    return given
