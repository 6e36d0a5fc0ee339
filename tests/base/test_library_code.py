"""Test which code counts as library code and which as the user's code."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.base.library_code import (
    PYTHON,
    Library,
    _distributed,
    _library,
    _packages,
    first_name,
    library_of,
    library_of_globals,
    library_to_import,
)


def test_the_standard_library_is_python() -> None:
    assert library_of("json") == library_of("math") == library_of("builtins") == PYTHON
    assert PYTHON.version == f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_installed_packages_have_a_version() -> None:
    assert library_of("numpy") == Library("numpy", np.__version__)
    assert library_of("numpy.linalg") == Library("numpy", np.__version__)
    cloudpickle = importlib.import_module("cloudpickle")
    assert library_of("cloudpickle") == Library("cloudpickle", cloudpickle.__version__)


def test_a_package_whose_name_is_not_its_distributions_is_found() -> None:
    importlib.import_module("yaml")
    found = library_of("yaml")
    assert found is not None
    assert found.version[0].isdigit()
    importlib.import_module("rich")
    assert library_of("rich") is not None


def test_what_is_installed_is_listed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Listing takes half a second; a package that came since the last time is found, too."""
    folder = tmp_path / "site-packages"
    listed, real = list[int](), importlib.metadata.packages_distributions

    def counted() -> Any:
        listed.append(1)
        return {**real(), **{each.stem: ["numpy"] for each in folder.glob("*.py")}}

    def imported(name: str) -> Library | None:
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").touch()
        module = types.ModuleType(name)
        module.__file__ = str(folder / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, module)
        return library_of(name)

    monkeypatch.setattr(importlib.metadata, "packages_distributions", counted)
    _packages.cache_clear()
    numpy = Library("numpy", importlib.metadata.version("numpy"))
    assert imported("dml_test_one") == imported("dml_test_two") == numpy
    importlib.import_module("yaml")
    _library.cache_clear()
    _distributed.cache_clear()
    names = ["yaml", "dml_test_one", "dml_test_two"]
    assert None not in map(library_of, names)
    assert len(listed) == 2  # at first, and once for the package that came later
    _packages.cache_clear()


def test_dml_itself_is_a_library_wherever_it_lies() -> None:
    assert dml.__file__
    found = library_of("dml.base.library_code")
    assert found is not None
    assert found.name == "dml"


def test_main_notebooks_and_own_modules_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("statistics")  # a file of the user's with a name of the standard library
    own.__file__ = "/home/someone/statistics.py"
    monkeypatch.setitem(sys.modules, "statistics", own)
    assert library_of("statistics") is None
    assert library_of("__main__") is None
    assert library_of(None) is None
    assert library_of("never imported") is None
    assert library_of_globals({"__name__": "__main__"}) is None
    assert library_of_globals({}) is None


def test_globals_tell_where_a_function_was_written() -> None:
    assert library_of_globals(vars(np)) == library_of("numpy")
    assert library_of_globals(vars(math)) == PYTHON
    assert library_of_globals({"__name__": "math"}) is None  # says so, but is not that module
    assert library_of_globals({"__name__": "numpy", "__file__": "/home/x/numpy.py"}) is None


def test_a_module_need_not_be_imported_to_be_known() -> None:
    assert library_to_import("this") == PYTHON
    assert library_to_import("no_such_module_anywhere") is None


class _Version(str):
    """As torch has it: text of a class of its own."""

    __slots__ = ()


def test_a_version_is_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    cloudpickle = importlib.import_module("cloudpickle")
    monkeypatch.setattr(cloudpickle, "__version__", _Version("9.9"))
    _library.cache_clear()
    found = library_of("cloudpickle")
    _library.cache_clear()
    assert found is not None
    assert type(found.version) is str
    assert found.version == "9.9"


FIRST = {
    "range": "dml.sources.objects",
    "from_dict": "dml.sources.objects",
    "read_parquet": "dml.sources.files",
    "concat": "dml.sources.several",
    "col": "dml.expr.column",
    "element": "dml.expr.standing",
    "Dataset": "dml.dataset",
    "Catalog": "dml.catalog",
    "DataSource": "dml.plugins",
    "Settings": "dml.settings",
}


def test_a_file_that_moved_keeps_its_name_in_fingerprints() -> None:
    """Rows are stored under them, and states and costs are known by them."""
    found = {name: first_name(getattr(dml, name).__module__) for name in FIRST}
    assert found == FIRST
    assert first_name("dml.io.user.generator") == "dml.expr.sources.generated"
    assert first_name("dml.io.tables.delta") == "dml.expr.sources.delta"
    assert first_name("numpy.linalg") == "numpy.linalg"
    assert first_name("math") == "math"
