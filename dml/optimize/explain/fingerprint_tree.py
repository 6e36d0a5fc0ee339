"""Fingerprints are described as trees of parts, so that two of them can be compared.

Every part has a digest. The first difference of two trees is found by descending from the root into
the first part whose digests differ. A tree can be stored as JSON and compared in another process:
it contains shortened texts of values, not the values.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from dml.base.encoder import UnnamedError
from dml.base.fingerprint import digest
from dml.base.library_code import library_of_globals
from dml.udfs.identity.bytecode import CONSTANT_NAMES, Instruction, code_name, program
from dml.udfs.identity.closure_walk import FunctionEncoder, named, spelled

LETTERS = 60  # most characters of a value that are shown
DEEPEST = 24  # most levels of nested parts; deeper parts are not split
SHORT = 8  # characters of a digest that are shown
# Kinds of parts whose text has names in code, types and versions, but never a user's value.
NO_VALUES = {"class", "code", "column", "columns", "library", "module", "operation", "place"}
NO_VALUES |= {"type", "version"}
HIDDEN = f"#[0-9a-f]{{{SHORT}}}"
KEYS = re.compile(rf"(?<=\[)(?!{HIDDEN}\]).*(?=\])", re.DOTALL)
FILES = re.compile(rf"(?<=file )(?!{HIDDEN}$).*", re.DOTALL)
PLAIN = (type(None), bool, int, float, complex, str, bytes)


class SpelledPart(NamedTuple):
    """A part of a fingerprint: ``kind`` and ``path`` say which part, ``shown`` is its text.

    ``name`` is a digest: two parts are equal if their names are. ``parts`` are the nested parts in
    the order of encoding; their digests need not determine ``name`` completely.
    """

    kind: str
    path: str
    shown: str
    name: str
    parts: tuple[SpelledPart, ...] = ()

    def within(self, depth: int) -> SpelledPart:
        """Return the part with at most ``depth`` levels of nested parts."""
        inside = tuple(part.within(depth - 1) for part in self.parts) if depth else ()
        return self._replace(parts=inside)

    def size(self) -> int:
        """Return the number of parts, including this one."""
        return 1 + sum(part.size() for part in self.parts)

    @property
    def place(self) -> tuple[str, str]:
        """Kind and path, with digests for keys and file names, which may be confidential."""
        pattern = FILES if self.kind in {"content", "file name"} else KEYS
        return self.kind, pattern.sub(_hidden, self.path)

    def to_json(self, *, plain: bool) -> list[Any]:
        """Return the part as JSON; unless ``plain``, texts of users' values are left out."""
        kind, path = (self.kind, self.path) if plain else self.place
        text = self.shown if plain or kind in NO_VALUES else ""
        return [kind, path, text, self.name, [part.to_json(plain=plain) for part in self.parts]]

    def keyed(self, under: Callable[[str], str]) -> SpelledPart:
        """Return the part with all digests, including those in its path, replaced by ``under``."""
        inside = tuple(part.keyed(under) for part in self.parts)
        return self._replace(path=under(self.place[1]), name=under(self.name), parts=inside)

    @staticmethod
    def read(told: object, depth: int = 2 * DEEPEST) -> SpelledPart:
        """Return the part that ``to_json`` stored; raise ValueError for anything else."""
        if not isinstance(told, list) or len(told) != len(SpelledPart._fields) or not depth:
            raise ValueError("not a part")
        kind, path, text, name, inside = told
        if not all(isinstance(each, str) for each in told[:4]) or not isinstance(inside, list):
            raise ValueError("not a part")
        text = text or f"something with digest {name[:SHORT]}"
        return SpelledPart(
            kind, path, text, name, tuple(SpelledPart.read(each, depth - 1) for each in inside)
        )


def _hidden(found: re.Match[str]) -> str:
    return f"#{digest(found[0]).hex()[:SHORT]}"


def part(kind: str, path: str, value: object, parts: tuple[SpelledPart, ...] = ()) -> SpelledPart:
    """Return a part for a plain value."""
    return SpelledPart(kind, path, short_repr(value), digest(value).hex(), parts)


def short_repr(value: object) -> str:
    """Return a value as a user would write it, or a long container's type and length."""
    if isinstance(value, str | bytes) and len(value) > LETTERS:
        return f"{value[:LETTERS]!r}..., {len(value)} long"
    if isinstance(value, PLAIN) or type(value).__repr__ is not object.__repr__:
        text = _text(value)
    else:
        text = f"an instance of {type(value).__qualname__}"
    text = " ".join(text.split())
    return text if len(text) <= LETTERS else f"{text[:LETTERS]}..."


def _text(value: object) -> str:
    """Return the repr of a value; functions and modules by their names, without addresses."""
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType | type):
        return spelled(value)
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if type(value) in {list, tuple, dict, set, frozenset} and len(value) > LETTERS:  # type: ignore[arg-type]
        return f"a {type(value).__name__} of {len(value)}"  # type: ignore[arg-type]
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"an instance of {type(value).__qualname__}"


def function_parts(name: str, fn: Callable[..., Any]) -> tuple[SpelledPart, ...]:
    """Return the parts of a function's fingerprint in the order of encoding, then its libraries.

    The result is empty if the function has no fingerprint, because something that it refers to has
    none.
    """
    try:
        out = named(fn, partial(Spelling, name, fn))
    except (UnnamedError, RecursionError):
        return ()
    whole = out.whole()
    versions = (
        SpelledPart("library", f"library {library.name}", library.version, digest(*library).hex())
        for library in sorted(out.libraries)
    )
    return (whole, *versions)


@dataclasses.dataclass(eq=False)
class _Open:
    """A part whose encoding is in progress; its encoding begins with chunk ``first``."""

    kind: str
    path: str
    value: object
    first: int
    parts: list[SpelledPart] = dataclasses.field(default_factory=list)


class Spelling(FunctionEncoder):
    """Encodes like ``FunctionEncoder``, and records the value behind each part of the encoding."""

    __slots__ = ("_open",)

    def __init__(self, path: str = "", value: object = None, *, describes: bool = False) -> None:
        super().__init__(describes=describes)
        self._open = [_Open("function", path, value, 0)]

    def step(self, path: str, value: object) -> None:
        """Encode the value at ``path`` as a nested part."""
        above = self._open[-1]
        if len(self._open) >= DEEPEST:
            super().step(path, value)
            return
        here = _Open(_kind(above, path, value), above.path + path, value, len(self._chunks))
        self._open.append(here)
        try:
            super().step(path, value)
        finally:
            self._open.pop()
        above.parts.append(self._closed(here))

    def whole(self) -> SpelledPart:
        """Return the whole encoding as one part."""
        return self._closed(self._open[0])

    def beside(self, made: SpelledPart) -> None:
        """Add the part ``made``, which is not encoded by this encoder."""
        self._open[-1].parts.append(made)

    @property
    def at(self) -> str:
        """The path of the part in progress."""
        return self._open[-1].path

    def _closed(self, done: _Open) -> SpelledPart:
        name = digest(b"".join(self._chunks[done.first :])).hex()
        return SpelledPart(done.kind, done.path, short_repr(done.value), name, tuple(done.parts))

    def first_met(self, value: object) -> bool:
        """Return True if ``value`` was not visited before, without marking it as visited."""
        return id(value) not in self._seen


# The kind of a part by the end of its path.
_BY_PATH: Mapping[str, str] = {
    ".__defaults__": "default",
    ".__kwdefaults__": "default",
    ".args": "argument",
    ".keywords": "argument",
    ".__self__": "instance",
    ".func": "function",
}


def _kind(above: _Open, path: str, value: object) -> str:
    """Return the kind of a part, as seen from the part that contains it."""
    if path in _BY_PATH:
        return _BY_PATH[path]
    if isinstance(value, types.FunctionType | types.MethodType | classmethod | staticmethod):
        return "method" if isinstance(above.value, type) else "function"
    if isinstance(value, types.ModuleType):
        return "module"
    if isinstance(value, type):
        return "class"
    if not isinstance(above.value, types.FunctionType):
        return "item" if path.startswith("[") else "attribute"
    name = path[1:].partition(".")[0]
    return "closure" if name in above.value.__code__.co_freevars else "global"


def _put_function(out: Spelling, fn: types.FunctionType) -> None:
    """Encode a function's code first, so that a difference in code is reported first."""
    if out.first_met(fn) and library_of_globals(fn.__globals__) is None:
        out.beside(code_part(fn.__code__, out.at or spelled(fn)))
    FunctionEncoder.table[types.FunctionType](out, fn)


def code_part(code: types.CodeType, path: str) -> SpelledPart:
    """Return the code of a function as a part: its operations, then its constants."""
    steps = list(_steps(code))
    lines = [_line(step) for step in steps]
    constants = [step.constant for step in steps if step.name in CONSTANT_NAMES]
    values = (
        part("constant", f"{path}, constant {place}", value)
        for place, value in enumerate(constants)
        if not isinstance(value, types.CodeType)
    )
    name = code_name(code).hex()
    text = f"code with digest {name[:8]}"
    done = SpelledPart("code", path, text, digest(lines, _signature(code)).hex())
    return SpelledPart("code", path, text, name, (done, *values))


def _steps(code: types.CodeType) -> Iterator[Instruction]:
    """Yield the steps of a code object; steps of a nested code object follow where it is loaded."""
    for step in program(code).steps:
        yield step
        if isinstance(step.constant, types.CodeType):
            yield from _steps(step.constant)


def _line(step: Instruction) -> str:
    named = step.text if step.name not in {"LOAD_DEREF", "STORE_DEREF", "LOAD_CLOSURE"} else ""
    arg = 0 if named else step.arg
    return f"{step.name} {arg} {step.target} {named}"


def _signature(code: types.CodeType) -> tuple[object, ...]:
    arguments = code.co_argcount + code.co_kwonlyargcount
    return (code.co_argcount, code.co_posonlyargcount, code.co_varnames[:arguments])


Spelling.table = {**FunctionEncoder.table, types.FunctionType: _put_function}
