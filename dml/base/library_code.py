"""Code of libraries is distinguished from users' code by the location of its module.

Code under the standard library, ``site-packages`` or ``dist-packages`` (and dml itself) is library
code: its fingerprint is its name and version. Everything else is the user's, including
``__main__``, notebooks and packages installed in place: its fingerprint is its content.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any, NamedTuple

STANDARD = types.__file__.rpartition("/")[0] + "/"
INSTALLED = ("/site-packages/", "/dist-packages/")


class Library(NamedTuple):
    """A distribution and its version; the standard library is ("python", "3.11")."""

    name: str
    version: str


PYTHON = Library("python", f"{sys.version_info[0]}.{sys.version_info[1]}")


def library_of(module: str | None) -> Library | None:
    """Return the library that an imported module belongs to, None for the user's own code."""
    if not module or module == "__main__":
        return None
    loaded = sys.modules.get(module)
    return _library(module.partition(".")[0], _file(vars(loaded)) if loaded else "")


def library_of_globals(namespace: Mapping[str, Any]) -> Library | None:
    """Return the library in whose module a function was defined, given the function's globals.

    ``__module__`` is no evidence: ``functools.wraps`` copies it from one function to another.
    """
    name = namespace.get("__name__")
    if not isinstance(name, str) or name == "__main__":
        return None
    file = _file(namespace)
    if not file and (name not in sys.modules or vars(sys.modules[name]) is not namespace):
        return None
    return _library(name.partition(".")[0], file)


def library_to_import(module: str) -> Library | None:
    """Return the library of a module that may not be imported yet, None for the user's own code.

    The version is that of the installed distribution, which is the same before and after an import.
    """
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    if top == "__main__":
        return None
    if loaded is not None:
        return _library(top, _file(vars(loaded)), imported=False)
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    folders = (f"{each}/" for each in spec.submodule_search_locations or ())
    file = spec.origin if spec.has_location else next(folders, "")
    return _library(top, (file or "").replace("\\", "/"), imported=False)


def to_look_at(module: str) -> types.ModuleType | None:
    """Return a library's module if it is loaded, or can be loaded as part of Python; else None."""
    library = library_to_import(module)
    if library == PYTHON and module not in sys.modules:
        with suppress(ImportError):  # a part of Python that this system lacks
            return importlib.import_module(module)
    return sys.modules.get(module) if library is not None else None


def _file(namespace: Mapping[str, Any]) -> str:
    file = namespace.get("__file__")
    if isinstance(file, str):
        return file.replace("\\", "/")
    path = namespace.get("__path__")
    return f"{next(iter(path), '')}/" if path is not None else ""


@lru_cache(maxsize=1024)
def _library(top: str, file: str, *, imported: bool = True) -> Library | None:
    installed = any(place in file for place in INSTALLED)
    if top in sys.stdlib_module_names and (not file or file.startswith(STANDARD)) and not installed:
        return PYTHON
    if top != "dml" and not installed:
        return None
    return (_stated(top) if imported else None) or _distributed(top)


def _stated(top: str) -> Library | None:
    """Return a loaded package's name and ``__version__``; None if it has no version as text."""
    module = sys.modules.get(top)
    stated = vars(module).get("__version__") if module is not None else None
    # torch has a str subclass for it, which has no fingerprint
    return Library(top, "".join(stated)) if isinstance(stated, str) else None


@lru_cache(maxsize=1024)
def _distributed(top: str) -> Library | None:
    """Return distribution and version of an installed top-level package; None if unknown."""
    # Loaded only for a package without a ``__version__``: it takes 18 ms to import.
    metadata = importlib.import_module("importlib.metadata")
    try:
        return Library(top, metadata.version(top))
    except metadata.PackageNotFoundError:
        names = sorted(set(_distributions(top)))
    if names:
        return Library("+".join(names), "+".join(map(metadata.version, names)))
    return Library("dml", "source") if top == "dml" else None


def _distributions(top: str) -> Sequence[str]:
    """Return the distributions that have a top-level package, also one installed a moment ago."""
    if top not in _packages():
        _packages.cache_clear()
    return _packages().get(top, ())


@cache
def _packages() -> Mapping[str, Sequence[str]]:
    """Return the distributions of each top-level package, which takes half a second or more."""
    found: Mapping[str, Sequence[str]]
    found = importlib.import_module("importlib.metadata").packages_distributions()
    return found


# Folders and names of dml's modules at the time when the fingerprints of stored rows were
# first made with them: in fingerprints, a file that moves keeps its first name.
FIRST_FOLDERS = {
    "dml.api.sources": "dml.sources",
    "dml.api.verbs": "dml.verbs",
    "dml.api": "dml",
    "dml.expr.columns.namespaces": "dml.expr.namespaces",
    "dml.expr.columns": "dml.expr",
    "dml.io": "dml.expr.sources",
}
FIRST_LEAVES = {
    "dml.api.sources.combination": "several",
    "dml.api.verbs.cache": "caching",
    "dml.api.verbs.combination": "combine",
    "dml.api.verbs.function_columns": "applied",
    "dml.api.verbs.resampling": "resample",
    "dml.api.runs": "results",
    "dml.api.row_access": "collecting",
    "dml.api.summaries": "figures",
    "dml.expr.columns.operators": "spelled",
    "dml.expr.columns.placeholder_columns": "standing",
    "dml.io.user.generator": "generated",
    "dml.io.user.iterator_spool": "spooled",
    "dml.io.user.user_source": "plugged",
}


def first_name(module: str) -> str:
    """Return the name of a module in fingerprints: for moved modules of dml, the original name."""
    folder, _, leaf = module.rpartition(".")
    if folder.startswith("dml.io."):
        folder = "dml.io"
    return f"{FIRST_FOLDERS.get(folder, folder)}.{FIRST_LEAVES.get(module, leaf)}".lstrip(".")
