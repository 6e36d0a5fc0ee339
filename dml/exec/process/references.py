"""Pickle users' code for other processes, and check there that names mean the same code.

Functions of a main module are sent by value. Those of other modules are sent as names, and the
process that reads them imports its own modules; if one of these is older or newer, results would
differ without notice. So names are sent with digests of their code (``function_fingerprint.py``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import pickle
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import cloudpickle
import numpy as np

from dml.errors import PlanError
from dml.udfs.identity.function_fingerprint import identity

# The most functions that are compared where a module is sent as a whole, by name.
MOST = 200

Place = tuple[str, str]

# How many blocks of ``by_value`` hold a module of this name.
_HELD = Counter[str]()
_HOLDING = threading.Lock()

# Objects of functools that pickle as a name, or not at all, since one of them has a lock.
CACHED = type(functools.lru_cache(len))
DISPATCHING = cast("types.FunctionType", functools.singledispatch(len)).__code__


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle pickler that also sends functools wrappers and modules of any class."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how to restore ``obj``, or NotImplemented, as ``pickle.Pickler`` expects it."""
        made = _remade(obj)
        return super().reducer_override(obj) if made is None else made


class _Noting(Pickler):
    """A pickler that records which functions, classes and modules of the user are sent by name."""

    def __init__(self, sink: io.BytesIO, callback: Callable[[pickle.PickleBuffer], object]) -> None:
        super().__init__(sink, protocol=5, buffer_callback=callback)
        self.referred: dict[Place, Any] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Return what ``Pickler.reducer_override`` returns; record what is sent by name."""
        found = super().reducer_override(obj)
        if isinstance(obj, types.ModuleType):
            self.referred |= dict(_inside(obj))
        elif found is NotImplemented and isinstance(obj, types.FunctionType | type | CACHED):
            own = _own(sys.modules.get(obj.__module__))
            self.referred |= {(obj.__module__, obj.__qualname__): obj} if own else {}
        return found


def dumped(value: Any, callback: Callable[[pickle.PickleBuffer], object]) -> bytes:
    """Return ``value`` pickled for ``loaded``; pass its large arrays to ``callback``."""
    sink = io.BytesIO()
    pickler = _Noting(sink, callback)
    pickler.dump(value)
    names = {place: _name(obj) for place, obj in pickler.referred.items()}
    return pickle.dumps(names) + sink.getvalue()


def flat(buffer: Any) -> pickle.PickleBuffer:
    """Return ``buffer`` as bytes of a NumPy array over the same memory, which is safe to send on.

    Dask makes a memoryview of a memoryview of other buffers, such as Arrow's. Before Python 3.12.7
    that may end the process during garbage collection (CPython's issue 77894).
    """
    view = pickle.PickleBuffer(buffer).raw()
    array: Any = np.frombuffer(view, np.uint8) if view.nbytes else b""
    return pickle.PickleBuffer(array)


def loaded(sent: bytes, buffers: Sequence[Any]) -> Any:
    """Return the value that ``dumped`` wrote; raise PlanError if a name means other code here."""
    source = io.BytesIO(sent)
    names: dict[Place, tuple[Any, ...]] = pickle.load(source)  # noqa: S301 (of our own client)
    value = pickle.load(source, buffers=buffers)  # noqa: S301
    for (module, name), there in names.items():
        here = _name(_find_object(module, name))
        if there and here != there:
            raise PlanError(
                f"{module}.{name} is something else in the worker",
                why=f"{_describe(here)}; where the run was begun, {_describe(there)}",
                try_="the same code and libraries on both sides; restart what has loaded others",
            )
    return value


def pickled(value: Any) -> bytes:
    """Return ``value`` as bytes, with code of the main module by value; raise pickling errors."""
    sink = io.BytesIO()
    Pickler(sink).dump(value)
    return sink.getvalue()


def _remade(obj: Any) -> tuple[Any, ...] | None:
    """Return how a functools object or a module of its own class is restored, or None.

    A restored cache is empty. Self-references work: the pickler knows functions before the objects
    that they refer to, and classes are registered after the dispatching function.
    """
    if isinstance(obj, functools.cached_property):
        state = {name: value for name, value in vars(obj).items() if name != "lock"}
        return _property, (type(obj), obj.func), state
    if isinstance(obj, types.ModuleType) and type(obj) is not types.ModuleType:
        # such as torch.backends: cloudpickle sends only modules of the usual class by name
        known = obj.__name__ != "__main__" and sys.modules.get(obj.__name__) is obj
        return (importlib.import_module, (obj.__name__,)) if known else None
    if isinstance(obj, CACHED) and not _by_name(obj):
        asked = obj.cache_parameters()
        return _cached, (obj.__wrapped__, asked["maxsize"], asked["typed"]), dict(vars(obj))
    if getattr(obj, "__code__", None) is DISPATCHING and not _by_name(obj):
        registry = dict(obj.registry)
        return functools.singledispatch, (obj.__wrapped__,), registry, None, None, _register
    return None


def _by_name(obj: Any) -> bool:
    """Return whether readers can import ``obj``: its module is neither main nor sent by value."""
    module = obj.__module__
    if module == "__main__" or _find_object(module, obj.__qualname__) is not obj:
        return False
    travels = cloudpickle.list_registry_pickle_by_value()
    return not any(module == each or module.startswith(f"{each}.") for each in travels)


@contextlib.contextmanager
def by_value(modules: Iterable[types.ModuleType]) -> Iterator[None]:
    """Send functions of ``modules`` by value while the ``with`` block runs.

    Modules that were sent by value before, or by another ``with`` block, are sent by value
    afterwards, too.
    """
    held = list[types.ModuleType]()
    try:
        held.extend(module for module in modules if _hold(module))
        yield
    finally:
        with _HOLDING:
            _HELD.subtract(module.__name__ for module in held)
            for module in held:
                if not _HELD[module.__name__]:
                    cloudpickle.unregister_pickle_by_value(module)


def _hold(module: types.ModuleType) -> bool:
    """Register ``module`` for ``by_value``; return False if it was registered by others."""
    name = module.__name__
    with _HOLDING:
        if not _HELD[name] and name in cloudpickle.list_registry_pickle_by_value():
            return False
        cloudpickle.register_pickle_by_value(module)
        _HELD[name] += 1
        return True


def _property(kind: type, func: Callable[..., Any]) -> Any:
    """Return a cached property of ``func``; before Python 3.12 it has a lock, which is not sent."""
    made: Any = object.__new__(kind)
    functools.cached_property.__init__(made, func)
    return made


def _cached(fn: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:  # noqa: FBT001
    return functools.lru_cache(maxsize, typed)(fn)


def _register(dispatching: Any, registry: dict[type, Callable[..., Any]]) -> None:
    for kind, fn in registry.items():
        dispatching.register(kind, fn)


def _inside(module: types.ModuleType) -> Iterator[tuple[Place, Any]]:
    """Yield (module, name) and value of functions and classes that a user's module defines."""
    if not _own(module):
        return
    found = [v for v in vars(module).values() if isinstance(v, types.FunctionType | type)]
    for value in found[:MOST]:
        if value.__module__ == module.__name__:
            yield (module.__name__, value.__qualname__), value


def _own(module: types.ModuleType | None) -> bool:
    """Return whether ``module`` is the user's and can be imported: not main, not installed."""
    file = getattr(module, "__file__", None)
    if module is None or module.__name__ == "__main__" or not isinstance(file, str):
        return False
    installed = file.startswith((sys.prefix, sys.base_prefix))
    return not installed and module.__name__.partition(".")[0] != "dml"


def _find_object(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _name(obj: Any) -> tuple[Any, ...]:
    """Return the digest of the code of ``obj`` and its libraries; () if they cannot be found."""
    try:
        known = identity(obj)
    except Exception:  # noqa: BLE001 (it looks into whatever the user's objects are)
        return ()
    return known.code, tuple(tuple(library) for library in known.libraries)


def _describe(name: tuple[Any, ...]) -> str:
    if not name:
        return "it cannot be found here"
    versions = ", ".join(" ".join(map(str, library)) for library in name[1])
    return f"its code is {name[0].hex()[:8]}" + (f" with {versions}" if versions else "")
