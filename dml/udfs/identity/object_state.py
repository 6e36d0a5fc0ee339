"""The state of objects is read here; objects without a meaning in other processes are refused.

The state of an instance is its class, its attributes and slots, and the value of a built-in type
that its class extends. Objects of C types with further, hidden state are refused: two of them could
look alike and behave differently.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dml.base import content_digest
from dml.base.encoder import SIZE, UnnamedError

POINTER = 8
MANAGED_DICT = 1 << 4  # Py_TPFLAGS_MANAGED_DICT: the dictionary is not part of the object's size

# Modules of types whose instances have no meaning in another process.
MEANINGLESS = {
    "_thread": "a lock",
    "threading": "a lock or a thread",
    "logging": "a logger",
    "_io": "an open file",
    "io": "an open file",
    "_socket": "a socket",
    "socket": "a socket",
    "ssl": "a socket",
    "_random": "a generator of random numbers",
    "random": "a generator of random numbers",
    "numpy.random": "a generator of random numbers",
    "uuid": "a random identifier",
    "_queue": "a queue",
    "queue": "a queue",
    "multiprocessing": "a handle on processes",
    "concurrent.futures": "a pool of workers",
    "asyncio": "an event loop's object",
    "subprocess": "a process",
    "tempfile": "a temporary file",
    "select": "a set of open files",
    "mmap": "a map of an open file",
    "sqlite3": "a connection",
    "_weakref": "a weak reference",
    "weakref": "a weak reference",
    "_weakrefset": "a weak reference",
    "_contextvars": "a context variable",
    "os": "the environment of this process",
}
CLOCK = "the clock"
# Functions whose results differ between calls or between processes.
VOLATILE = {
    **{("time", name): CLOCK for name in ("time", "monotonic", "perf_counter", "process_time")},
    **{("time", name): CLOCK for name in ("time_ns", "monotonic_ns", "perf_counter_ns")},
    **{("time", name): CLOCK for name in ("localtime", "gmtime", "ctime", "strftime", "asctime")},
    **{("uuid", name): "a random identifier" for name in ("uuid1", "uuid4", "getnode")},
    **{("posix", name): "random bytes" for name in ("urandom", "getrandom")},
    **{("secrets", name): "random bytes" for name in ("token_bytes", "token_hex", "token_urlsafe")},
    **{("posix", name): "this process" for name in ("getpid", "getcwd", "uname")},
    ("os", "getenv"): "the environment of this process",
    ("_socket", "gethostname"): "the name of this machine",
    ("_thread", "get_ident"): "the current thread",
    ("importlib", "import_module"): "a module that is named by text",
}
DYNAMIC = {
    "eval": "runs text as code, so what it uses cannot be seen",
    "exec": "runs text as code, so what it uses cannot be seen",
    "globals": "reads any global, so what it uses cannot be seen",
    "__import__": "imports by text, so what it uses cannot be seen",
    "hash": "gives text another number in every process",
    "id": "gives an address of this process",
}
# Members that Python adds to a class, and those that depend on where the class was written.
INCIDENTAL = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__hash__"),
    *("__firstlineno__", "__static_attributes__", "__slotnames__", "__classcell__", "_abc_impl"),
    *("__annotate__", "__annotate_func__", "__annotations_cache__"),
}
NUMBA = (("py_func",), ("_dispatcher", "py_func"), ("gufunc_builder", "py_func"), ("_pyfunc",))
# The built-in types that a class can extend, and how to read their value despite overrides.
BUILT_IN: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (dict, lambda value: list(dict.items(value))),
    (list, lambda value: list(list.__iter__(value))),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (set, lambda value: set(set.__iter__(value))),
    (frozenset, lambda value: frozenset(frozenset.__iter__(value))),
    (str, str.__str__),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
    (int, int.__index__),
    (float, float.__float__),
)


def refuse_meaningless(value: object) -> None:
    """Raise UnnamedError for locks, random generators, loggers, files, iterators and the like."""
    for kind in type(value).__mro__[:-1]:
        names = kind.__module__.split(".")
        for module in (kind.__module__, names[0], ".".join(names[:2])):
            if module in MEANINGLESS:
                raise _no_meaning(MEANINGLESS[module])
    if hasattr(type(value), "__next__"):
        raise _no_meaning("an iterator, which looking at would use up")


def _no_meaning(what: str) -> UnnamedError:
    return UnnamedError(
        f"it is {what}",
        f"{what} means something in this process only",
        "make it inside the function, or pass fingerprint=, or define __dml_fingerprint__",
    )


def refuse_volatile(module: str, name: str) -> None:
    """Raise UnnamedError for library functions that read a clock, random numbers or the process."""
    what = VOLATILE.get((module, name))
    if what is not None:
        raise UnnamedError(
            f"{module}.{name} reads {what}",
            "equal rows would give unequal results",
            "take the value from a column, or use random_map for randomness",
        )


def refuse_unsteady(value: object) -> None:
    """Raise UnnamedError for values that ``refuse_volatile`` or ``refuse_meaningless`` refuse.

    A method is refused if its object is refused.
    """
    if isinstance(value, types.ModuleType | type):
        return
    owner = getattr(value, "__self__", None)
    for each in (value, owner):
        if each is not None and not isinstance(each, types.ModuleType | type):
            refuse_meaningless(each)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        refuse_volatile(module, name)


def refuse_clock(cls: type, attribute: str, path: str) -> None:
    """Raise UnnamedError for ``datetime.now`` and the like."""
    if issubclass(cls, dt.date) and attribute in ("now", "utcnow", "today"):
        refusal = UnnamedError(
            f"{attribute}() reads {CLOCK}",
            "equal rows would give unequal results",
            "take the time from a column",
        )
        raise refusal.under(f"{path}.{attribute}")


def refuse_dynamic(name: str, builtin: object) -> None:
    """Raise UnnamedError for builtins, such as ``eval``, that hide what a function depends on."""
    if name in DYNAMIC and type(builtin) is types.BuiltinFunctionType:
        raise UnnamedError(
            f"it calls {name}()", f"{name}() {DYNAMIC[name]}", "do without it, or pass fingerprint="
        )


def wrapped(value: object) -> object | None:
    """Return the Python function inside a numba function or ``functools.lru_cache``, or None."""
    if isinstance(value, functools._lru_cache_wrapper):  # noqa: SLF001 - its only public name
        return value.__wrapped__
    if not type(value).__module__.startswith("numba."):
        return None
    for path in NUMBA:
        inner: Any = value
        for name in path:
            inner = getattr(inner, name, None)
        if isinstance(inner, types.FunctionType):
            return inner
    return None


def options(value: object) -> dict[str, object]:
    """Return the compile options of a numba function; ``fastmath`` and others change results."""
    given = getattr(value, "targetoptions", None)
    return dict(sorted(given.items())) if isinstance(given, dict) else {}


def has_own_encoding(value: object) -> bool:
    """Return True if the encoding supports the value (Arrow, NumPy, objects with a digest)."""
    if isinstance(value, np.generic | np.dtype) or content_digest.is_arrow(value):
        return True
    name = getattr(value, "digest", None)
    return isinstance(name, bytes) and len(name) == SIZE


def parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the state of an instance, by name; raise UnnamedError if Python cannot read all."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        yield "name", value.name
        return
    if hasattr(value, "__fspath__"):
        yield "[path]", value.__fspath__()
        return
    base: type = object
    for built_in, plain in BUILT_IN:
        if isinstance(value, built_in):
            base = built_in
            yield "[value]", plain(value)
            break
    slots = tuple(_slots(kind))
    if _hides(kind, base, len(slots)):
        raise hidden(value)
    for name in slots:
        if hasattr(value, name):
            yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


def _slots(kind: type) -> Iterator[str]:
    for cls in reversed(kind.__mro__):
        if "__slots__" in vars(cls):
            for name, member in vars(cls).items():
                if type(member) is types.MemberDescriptorType:
                    yield name


def _hides(kind: type, base: type, slots: int) -> bool:
    """Return True if instances are larger than ``base``, ``slots`` slots, dict and weakrefs need.

    Such instances have state that Python cannot read (see ``object.__getstate__``).
    """
    size = base.__basicsize__ + POINTER * slots
    own_dict = kind.__dictoffset__ != base.__dictoffset__ and not kind.__flags__ & MANAGED_DICT
    size += POINTER * (own_dict + (kind.__weakrefoffset__ > base.__weakrefoffset__))
    return kind.__basicsize__ > size


def hidden(value: object) -> UnnamedError:
    """Return the error for a value whose content Python cannot read."""
    kind = type(value)
    return UnnamedError(
        f"a {kind.__module__}.{kind.__qualname__} keeps its content outside Python",
        "two of them could look alike and behave differently",
        "pass fingerprint=, or wrap it in a class with __dml_fingerprint__",
    )


def members(cls: type) -> Iterator[tuple[str, object]]:
    """Yield the members of a class, by name; of an enumeration, its values and methods."""
    own = vars(cls)
    if issubclass(cls, enum.Enum):
        yield "[members]", {name: item.value for name, item in cls.__members__.items()}
        methods = (types.FunctionType, property, classmethod, staticmethod)
        own = {n: v for n, v in own.items() if type(v) in methods}  # type: ignore[assignment]
    for name in sorted(own.keys() - INCIDENTAL):
        yield name, own[name]


def ufunc_place(value: np.ufunc) -> tuple[str, str]:
    """Return the module ("" if unknown) and the name of a ufunc, which may not know its module."""
    name = value.__name__
    for module in ("numpy", "scipy.special"):
        if resolve(module, name) is value:
            return module, name
    return "", name


def resolve(module: str, name: str) -> object:
    """Return the object of dotted ``name`` in a loaded module, without running code, or None."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found
