"""This file spells out what names are made of: trees of parts, so that two can be told apart.

Every part has a name of its own. Of two trees with unequal names, the first parts whose names are
unequal, followed to the bottom, are what differs first. What is spelled out can be kept as JSON and
compared with what another process spells out: values are shown there, shortened, not held.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from dml.expr.bytecode import CONSTANT_NAMES, Instruction, code_name, program
from dml.expr.encoder import UnnamedError
from dml.expr.fingerprint import digest
from dml.expr.origin import library_of_globals
from dml.expr.reach import FunctionEncoder, named, spelled

LETTERS = 60  # of a value that is shown
DEEPEST = 24  # parts within parts; what is deeper is one part
SHORT = 8  # letters of a name that stand for it
# Kinds of parts that show names in code, types and versions, and never a value.
NO_VALUES = {"class", "code", "column", "columns", "library", "module", "operation", "place"}
NO_VALUES |= {"type", "version"}
HIDDEN = f"#[0-9a-f]{{{SHORT}}}"
KEYS = re.compile(rf"(?<=\[)(?!{HIDDEN}\]).*(?=\])", re.DOTALL)
FILES = re.compile(rf"(?<=file )(?!{HIDDEN}$).*", re.DOTALL)
PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Part(NamedTuple):
    """What something is made of: ``kind`` and ``path`` say which part, ``shown`` what it is.

    ``name`` is equal for equal parts and unequal for others. ``parts`` are those inside, in the
    order in which a name is made of them; their names need not make up the whole of it.
    """

    kind: str
    path: str
    shown: str
    name: str
    parts: tuple[Part, ...] = ()

    def within(self, depth: int) -> Part:
        """The same without what is deeper inside."""
        inside = tuple(part.within(depth - 1) for part in self.parts) if depth else ()
        return self._replace(parts=inside)

    def size(self) -> int:
        """Parts in it, and itself."""
        return 1 + sum(part.size() for part in self.parts)

    @property
    def place(self) -> tuple[str, str]:
        """Kind and path, without keys and names of files: they may be what nobody should read."""
        pattern = FILES if self.kind in {"content", "file name"} else KEYS
        return self.kind, pattern.sub(_hidden, self.path)

    def told(self, *, plain: bool) -> list[Any]:
        """The same as JSON; unless ``plain``, its name stands for what a user's value shows."""
        kind, path = (self.kind, self.path) if plain else self.place
        text = self.shown if plain or kind in NO_VALUES else ""
        return [kind, path, text, self.name, [part.told(plain=plain) for part in self.parts]]

    def keyed(self, under: Callable[[str], str]) -> Part:
        """The same with other digests, which ``under`` makes of those in a text."""
        inside = tuple(part.keyed(under) for part in self.parts)
        return self._replace(path=under(self.place[1]), name=under(self.name), parts=inside)

    @staticmethod
    def read(told: object, depth: int = 2 * DEEPEST) -> Part:
        """What was told; ValueError for anything else."""
        if not isinstance(told, list) or len(told) != len(Part._fields) or not depth:
            raise ValueError("not a part")
        kind, path, text, name, inside = told
        if not all(isinstance(each, str) for each in told[:4]) or not isinstance(inside, list):
            raise ValueError("not a part")
        text = text or f"something with digest {name[:SHORT]}"
        return Part(kind, path, text, name, tuple(Part.read(each, depth - 1) for each in inside))


def _hidden(found: re.Match[str]) -> str:
    return f"#{digest(found[0]).hex()[:SHORT]}"


def part(kind: str, path: str, value: object, parts: tuple[Part, ...] = ()) -> Part:
    """A part that is a value with a name."""
    return Part(kind, path, shown(value), digest(value).hex(), parts)


def shown(value: object) -> str:
    """A value as a user would write it, shortened; of what is long to write, what it is."""
    if isinstance(value, str | bytes) and len(value) > LETTERS:
        return f"{value[:LETTERS]!r}..., {len(value)} long"
    if isinstance(value, PLAIN) or type(value).__repr__ is not object.__repr__:
        text = _text(value)
    else:
        text = f"an instance of {type(value).__qualname__}"
    text = " ".join(text.split())
    return text if len(text) <= LETTERS else f"{text[:LETTERS]}..."


def _text(value: object) -> str:
    """What a value says of itself; functions and modules by their names, without addresses."""
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


def function_parts(name: str, fn: Callable[..., Any]) -> tuple[Part, ...]:
    """What decides what a function does, in the order in which it is reached, then libraries.

    None if something that it reaches has no name: then the function has none either.
    """
    try:
        out = named(fn, partial(Spelling, name, fn))
    except (UnnamedError, RecursionError):
        return ()
    whole = out.whole()
    versions = (
        Part("library", f"library {library.name}", library.version, digest(*library).hex())
        for library in sorted(out.libraries)
    )
    return (whole, *versions)


@dataclasses.dataclass(eq=False)
class _Open:
    """A part that is being spelled out."""

    kind: str
    path: str
    value: object
    first: int
    parts: list[Part] = dataclasses.field(default_factory=list)


class Spelling(FunctionEncoder):
    """Encodes as what names functions does, and remembers which part of it came from where."""

    __slots__ = ("_open",)

    def __init__(self, path: str = "", value: object = None, *, describes: bool = False) -> None:
        super().__init__(describes=describes)
        self._open = [_Open("function", path, value, 0)]

    def step(self, path: str, value: object) -> None:
        """Encode a value that is reached by ``path``, as a part of its own."""
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

    def whole(self) -> Part:
        """All that was added, as one part."""
        return self._closed(self._open[0])

    def beside(self, made: Part) -> None:
        """Add a part that is spelled out elsewhere."""
        self._open[-1].parts.append(made)

    @property
    def at(self) -> str:
        """The path of what is being spelled out."""
        return self._open[-1].path

    def _closed(self, done: _Open) -> Part:
        name = digest(b"".join(self._chunks[done.first :])).hex()
        return Part(done.kind, done.path, shown(done.value), name, tuple(done.parts))

    def first_met(self, value: object) -> bool:
        """Whether ``value`` was not met before; it is left to be met."""
        return id(value) not in self._seen


# By the end of the path: what it leads to.
_BY_PATH: Mapping[str, str] = {
    ".__defaults__": "default",
    ".__kwdefaults__": "default",
    ".args": "argument",
    ".keywords": "argument",
    ".__self__": "instance",
    ".func": "function",
}


def _kind(above: _Open, path: str, value: object) -> str:
    """What a part is to the one above it."""
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
    """A function's code before all else, so that it is what differs where it does."""
    if out.first_met(fn) and library_of_globals(fn.__globals__) is None:
        out.beside(code_part(fn.__code__, out.at or spelled(fn)))
    FunctionEncoder.table[types.FunctionType](out, fn)


def code_part(code: types.CodeType, path: str) -> Part:
    """The code of a function: what it does with constants, then which these are."""
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
    done = Part("code", path, text, digest(lines, _signature(code)).hex())
    return Part("code", path, text, name, (done, *values))


def _steps(code: types.CodeType) -> Iterator[Instruction]:
    """Steps of a code object, and of those inside, each where it is loaded."""
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
