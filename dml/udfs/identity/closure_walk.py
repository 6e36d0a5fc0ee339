"""A function is encoded with all values that its results depend on, found through references.

Functions, classes, modules, instances and mutable values are encoded on the first visit, and later
as the number of that visit. So cycles end, nothing is encoded twice, and two names of one list
differ from two equal lists. Unlike in ``dml.base.encoder``, the order of a dictionary and the
memory layout of an array count, since a program can observe them. ``dml.udfs.identity.reflection``
describes what else code can observe.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import numpy as np

from dml.base.encoder import Encoder, UnnamedError, put_items
from dml.base.library_code import (
    Library,
    first_name,
    library_of,
    library_of_globals,
    library_to_import,
    to_look_at,
)
from dml.udfs.identity import object_state, program_values
from dml.udfs.identity.bytecode import code_name, put_code
from dml.udfs.identity.references import Reference, references
from dml.udfs.identity.reflection import is_plain, sight

MISSING = object()
RANDOM_HASHES = bool(sys.flags.hash_randomization)  # False with PYTHONHASHSEED=0
ATOMS = frozenset({str, bytes, int, float, bool, type(None)})
CHANGEABLE = (
    *(list, dict, set, bytearray, np.ndarray, np.memmap),
    *(collections.deque, collections.OrderedDict, collections.defaultdict),
)


@dataclasses.dataclass
class Looks:
    """The facts that visited code observes (see ``reflection.Sight``), and the visited sets."""

    describe: bool = False
    ordered: set[str] = dataclasses.field(default_factory=set)
    sets: list[tuple[str, Any]] = dataclasses.field(default_factory=list)


class FunctionEncoder(Encoder):
    """Encodes callables and all that they refer to; ``libraries`` are those that were visited.

    The names of functions and classes are encoded only with ``describes``. ``named`` encodes a
    second time with it, if some visited code observes names.
    """

    __slots__ = ("_kept", "_seen", "describes", "libraries", "looks")

    def __init__(self, *, describes: bool = False) -> None:
        super().__init__()
        self.libraries: set[Library] = set()
        self.describes, self.looks = describes, Looks()
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # keeps objects alive, so that their ids stay unique

    def branch(self) -> Self:
        """Return an encoder for one part: it shares ``libraries`` and knows visited objects."""
        part = super().branch()
        part.libraries, part.describes, part.looks = self.libraries, self.describes, self.looks
        part._seen = dict(self._seen)  # noqa: SLF001 - its own kind
        part._kept = list(self._kept)  # noqa: SLF001
        return part

    def name_of(self, value: object) -> bytes:
        """Return the digest of a member of a set, quickly if it is a plain value."""
        if type(value) in ATOMS:
            part = Encoder()
            part.add(value)
            return part.digest()
        return super().name_of(value)

    def step(self, path: str, value: object) -> None:
        """Encode the value at ``path``, and record it if it is a set."""
        if isinstance(value, set | frozenset):
            self.looks.sets.append((path, value))
        super().step(path, value)

    def look(self, code: types.CodeType) -> None:
        """Record the facts that ``code`` observes; raise UnnamedError if no fingerprint exists."""
        seen = sight(code)
        self.looks.describe |= seen.describes
        self.looks.ordered |= seen.ordered
        if seen.unknowable:
            raise UnnamedError(
                f"it reads {seen.unknowable}",
                "what that says depends on where code stands, who calls it, or what was imported",
                "",
            )
        if seen.own:
            _refuse_chance("a set that it makes")

    def end_of_all(self) -> None:
        """Encode the order of sets where code observes it; raise UnnamedError for random orders."""
        for path, value in self.looks.sets:
            if path.rpartition(".")[2] in self.looks.ordered:
                if not is_plain(value):
                    _refuse_chance(f"the set {path.rpartition('.')[2]!r}")
                self.tag(b"order")
                put_items(self, value)

    def met(self, value: object) -> bool:
        """If ``value`` was visited before, encode its number and return True; else number it."""
        number = self._seen.get(id(value))
        if number is None:
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
            return False
        self.tag(b"again", number)
        return True

    def library(self, library: Library, module: str, name: str) -> None:
        """Encode a value of ``library`` by its module and name."""
        self.libraries.add(library)
        self.tag(b"library")
        self.add((library.name, first_name(module), name))

    def other(self, value: object) -> None:
        """Encode a value whose exact type is not in ``table``."""
        if _put_own_name(self, value):
            return
        if isinstance(value, type):
            _put_class(self, value)
            return
        object_state.refuse_meaningless(value)
        if (inner := object_state.wrapped(value)) is not None:
            if (library := library_of(type(value).__module__)) is not None:
                self.libraries.add(library)
            self.tag(type(value).__qualname__.encode())
            self.add(object_state.options(value))
            self.step("", inner)
        elif type(value).__module__ == "typing":
            program_values.put_generic(self, value)
        elif not _put_by_place(self, value):
            self._instance(value)

    def _instance(self, value: object) -> None:
        if object_state.has_own_encoding(value):
            super().other(value)
        elif not self.met(value):
            self.tag(b"instance")
            self.step(f".__class__({type(value).__qualname__})", type(value))
            for name, part in object_state.parts(value):
                self.add(name)
                self.step(name if name.startswith("[") else f".{name}", part)
            self.end()


def _refuse_chance(what: str) -> None:
    if RANDOM_HASHES:
        raise UnnamedError(
            f"it depends on the order of {what}",
            "text has other hashes in every process, and sets another order",
            f"sorted(...) around {what}; PYTHONHASHSEED=0 for all processes",
        )


Encoding = TypeVar("Encoding", bound=FunctionEncoder)


def named(fn: object, encoder: Callable[..., Encoding]) -> Encoding:
    """Return a new ``encoder`` that has encoded ``fn`` and all values that it depends on."""
    out = encoder()
    out.add(fn)
    if out.looks.describe:
        out = encoder(describes=True)
        out.add(fn)
    out.end_of_all()
    return out


def variables(fn: object) -> dict[str, bytes]:
    """Return the digest of the current value of each outside variable that a plain function reads.

    The result is empty for other callables; a variable without a fingerprint is left out.
    """
    found: dict[str, bytes] = {}
    if not isinstance(fn, types.FunctionType):
        return found
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    for ref in references(fn.__code__):
        out = FunctionEncoder()
        if ref.kind in {"global", "free"}:
            # another thread may change a variable concurrently
            with contextlib.suppress(UnnamedError, RuntimeError):
                _put_reference(out, ref, fn.__globals__, cells)
                found[ref.names[0]] = out.digest()
    return found


def spelled(fn: object) -> str:
    """Return the display name of a callable: its qualified name, without enclosing functions."""
    inner = fn.func if isinstance(fn, functools.partial) else object_state.wrapped(fn) or fn
    if inner is not fn:
        return spelled(inner)
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _put_own_name(out: FunctionEncoder, value: object) -> bool:
    """Encode the value of ``__dml_fingerprint__`` and return True; False if there is none."""
    if isinstance(value, type | types.FunctionType):
        own = vars(value).get("__dml_fingerprint__")
        if isinstance(own, types.FunctionType | classmethod | staticmethod):
            return False  # the attribute names the instances of a class, not the class
    else:
        own = getattr(type(value), "__dml_fingerprint__", None)
        own = own(value) if callable(own) else own
    if own is None:
        return False
    out.tag(b"own name")
    out.step(".__dml_fingerprint__", own)
    return True


def _put_function(out: FunctionEncoder, fn: types.FunctionType) -> None:
    if _put_own_name(out, fn) or _put_by_place(out, fn) or out.met(fn):
        return
    code = fn.__code__
    out.tag(b"function")
    out.put(code_name(code))
    out.step(".__defaults__", fn.__defaults__)
    out.step(".__kwdefaults__", dict(sorted((fn.__kwdefaults__ or {}).items())))
    out.step(".__dict__", fn.__dict__)
    library = library_of_globals(fn.__globals__)
    if library is not None:  # a closure made by a library: its globals are the library's version
        out.library(library, fn.__module__, fn.__qualname__)
    else:
        out.look(code)
        if out.describes:
            _put_description(out, fn)
    cells = dict(zip(code.co_freevars, fn.__closure__ or (), strict=True))
    whole = [ref for ref in references(code) if library is None or ref.kind == "free"]
    for ref in whole:
        _put_reference(out, ref, fn.__globals__, cells)
    for name in sorted(set(cells) - {ref.names[0] for ref in whole if ref.kind == "free"}):
        out.step(f".{name}", _cell(name, cells[name]))
    out.end()


def _put_description(out: FunctionEncoder, fn: types.FunctionType) -> None:
    """Encode the name, docstring and annotations of a function."""
    out.tag(b"described")
    out.add((fn.__name__, fn.__qualname__, fn.__doc__))
    out.put(code_name(fn.__code__, describes=True))
    try:
        notes = fn.__annotations__
    except Exception as error:  # noqa: BLE001 (evaluated now, since Python 3.14)
        raise UnnamedError(f"its annotations raise {error!r}", "it reads them", "") from None
    out.step(".__annotations__", notes)


def _put_reference(
    out: FunctionEncoder,
    ref: Reference,
    namespace: Mapping[str, Any],
    cells: Mapping[str, types.CellType],
) -> None:
    if ref.kind == "taken":
        _refuse_taken(ref, namespace)
        return
    out.tag(ref.kind.encode())
    out.add(ref.names)
    name, *attributes = ref.names
    if ref.kind == "write":
        raise UnnamedError(
            f"it changes {name!r}, which outlives the call",
            "a function that remembers calls gives other results when rows come in another order",
            "",
        ).under(f".{name}")
    if ref.kind == "import":
        _put_import(out, ref, namespace)
    elif ref.kind == "free":
        _put_chain(out, name, _cell(name, cells[name]), attributes)
    elif (value := namespace.get(name, MISSING)) is not MISSING:
        _put_chain(out, name, value, attributes)
    else:
        _put_builtin(out, name, namespace)


def _put_builtin(out: FunctionEncoder, name: str, namespace: Mapping[str, Any]) -> None:
    """Encode a builtin by its name; raise UnnamedError if there is no builtin of this name."""
    builtins = namespace.get("__builtins__", sys.modules["builtins"])
    known = builtins if isinstance(builtins, dict) else vars(builtins)
    if name not in known:
        raise UnnamedError(
            f"the name {name!r} is not defined yet",
            "what it will mean later decides what the function does",
            f"define {name!r} before the pipeline that uses it",
        ).under(f".{name}")
    object_state.refuse_dynamic(name, known[name])
    out.step(f".{name}", known[name])


def _put_chain(out: FunctionEncoder, name: str, value: object, attributes: list[str]) -> None:
    """Encode ``value`` or, if it is a module, the attribute that the chain ``attributes`` reads."""
    path = f".{name}"
    while attributes and isinstance(value, types.ModuleType):
        inner = _inner(value, attributes[0])
        if inner is MISSING:
            raise _undefined(value.__name__, attributes[0]).under(path)
        value, path = inner, f"{path}.{attributes.pop(0)}"
    if isinstance(value, type) and attributes:
        object_state.refuse_clock(value, attributes[0], path)
    out.step(path, value)


def _inner(module: types.ModuleType, name: str) -> object:
    """Return attribute ``name`` of ``module``, or MISSING."""
    if library_of(module.__name__) is not None:  # may load a submodule on demand, as the call would
        return getattr(module, name, MISSING)
    return vars(module).get(name, MISSING)


def _put_import(out: FunctionEncoder, ref: Reference, namespace: Mapping[str, Any]) -> None:
    """Encode an ``import`` in a function: of a library by name, of a user's module by its content.

    The result is the same whether a library is loaded or not, since the call itself may load it.
    """
    name = _imported(ref, namespace)
    library = library_to_import(name)
    if library is not None:
        out.library(library, name, ".".join(ref.names[1:]))
        return
    module = sys.modules.get(name)
    if module is None:
        raise UnnamedError(
            f"the module {name!r} is imported inside and not known yet",
            "what it contains decides what the function does",
            f"import {name!r} before the pipeline that uses it",
        ).under(f".{name}")
    _put_chain(out, name, module, list(ref.names[1:]))


def _refuse_taken(ref: Reference, namespace: Mapping[str, Any]) -> None:
    """Raise UnnamedError if a function imports a clock, a random generator or the like."""
    name, *attributes = _imported(ref, namespace), *ref.names[1:]
    value: object = to_look_at(name)
    while attributes and isinstance(value, types.ModuleType):
        value = _inner(value, attributes.pop(0))
    if isinstance(value, type) and attributes:
        object_state.refuse_clock(value, attributes[0], f".{name}")
    try:
        object_state.refuse_unsteady(value)
    except UnnamedError as error:
        raise error.under(f".{'.'.join((name, *ref.names[1:]))}") from None


def _imported(ref: Reference, namespace: Mapping[str, Any]) -> str:
    """Return the absolute name of the module that ``ref`` imports."""
    package = str(namespace.get("__package__") or "")
    return importlib.util.resolve_name("." * ref.level + ref.names[0], package)


def _put_module(out: FunctionEncoder, module: types.ModuleType) -> None:
    """Encode a library's module by its name, and a user's module by all its contents."""
    library = library_of(module.__name__)
    if library is not None:
        out.library(library, module.__name__, "")
    elif not out.met(module):
        out.tag(b"module")
        for name, value in sorted(vars(module).items()):
            if not name.startswith("__"):
                out.add(name)
                out.step(f".{name}", value)
        out.end()


def _put_class(out: FunctionEncoder, cls: type) -> None:
    if _put_own_name(out, cls) or _put_by_place(out, cls) or out.met(cls):
        return
    out.tag(b"class")
    out.add(cls.__name__)
    for base in (type(cls), *cls.__bases__):
        out.step(f".{base.__name__}", base)
    for name, member in object_state.members(cls):
        out.add(name)
        out.step(f".{name}", member)
    if out.describes:
        names = (n for n in vars(cls) if n not in object_state.INCIDENTAL)
        out.add((cls.__qualname__, cls.__doc__, *names))
    out.end()


def _put_by_place(out: FunctionEncoder, value: object) -> bool:
    """Encode an object that a library exports by its name and return True; else return False."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, np.ufunc):
        module, name = object_state.ufunc_place(value)
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    library = library_of(module)
    if library is None or object_state.resolve(module, name) is not value:
        return False
    object_state.refuse_volatile(module, name)
    out.library(library, module, name)
    return True


def _put_builtin_function(out: FunctionEncoder, fn: types.BuiltinFunctionType) -> None:
    """Encode a C function by module and name; a bound method by its name and its object."""
    owner = fn.__self__
    if isinstance(owner, types.ModuleType) or owner is None:
        if not _put_by_place(out, fn):
            raise object_state.hidden(fn)
        return
    out.tag(b"bound")
    out.add(fn.__name__)
    out.step(".__self__", owner)


def _put_array(out: FunctionEncoder, value: np.ndarray) -> None:
    """Encode an array with its memory layout, which affects ``ravel("K")`` and the bits of sums."""
    Encoder.table[np.ndarray](out, value)
    if not value.flags.c_contiguous:
        out.tag(b"laid")
        out.add("F" if value.flags.f_contiguous else value.strides)


def _once(put: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return a function that encodes a mutable value by ``put`` on the first visit only."""

    def put_once(out: FunctionEncoder, value: object) -> None:
        if not out.met(value):
            put(out, value)

    return put_once


def _cell(name: str, cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        raise _undefined("the enclosing function", name).under(f".{name}") from None


def _undefined(owner: str, name: str) -> UnnamedError:
    return UnnamedError(
        f"{owner} has no {name!r} yet",
        "what it will mean later decides what the function does",
        f"define or import {name!r} before the pipeline that uses it",
    )


_VALUES = {**Encoder.table, **program_values.TABLE}
_VALUES |= dict.fromkeys((np.ndarray, np.memmap), _put_array)
FunctionEncoder.table = {
    **_VALUES,
    **{kind: _once(_VALUES[kind]) for kind in CHANGEABLE},
    types.FunctionType: _put_function,
    types.BuiltinFunctionType: _put_builtin_function,
    types.ModuleType: _put_module,
    types.CodeType: put_code,
    type: _put_class,
}
