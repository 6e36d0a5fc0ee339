"""Compare the committed names of other libraries with the installed libraries.

A library of another version than the tables were written for is skipped.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.test_coming_from import TABLES


def public(*kinds: Any) -> set[str]:
    return {name for kind in kinds for name in dir(kind) if not name.startswith("_")}


def found(library: str, version: str) -> Any:
    module = pytest.importorskip(library)
    if not module.__version__.startswith(version):
        pytest.skip(f"{library} {module.__version__}, the tables are of {version}")
    return module


def test_huggingface() -> None:
    datasets = found("datasets", "5.2.")
    names = public(datasets.Dataset, datasets.IterableDataset)
    assert names == set(TABLES["Hugging Face"].committed())


def test_polars() -> None:
    pl = found("polars", "2.1.")
    assert public(pl.LazyFrame) == set(TABLES["Polars"].committed())
    assert public(pl.Expr) == set(TABLES["Polars' columns"].committed())
    rooms = {
        room: type(getattr(pl.col("x"), room)) for room in ("str", "list", "dt", "struct", "arr")
    }
    names = {f"{room}.{name}" for room, kind in rooms.items() for name in public(kind)}
    assert names == set(TABLES["Polars' namespaces"].committed())


def test_torch() -> None:
    data = found("torch", "2.13.").utils.data
    pipes = {"IterDataPipe", "MapDataPipe", "DFIterDataPipe", "DataChunk", "functional_datapipe"}
    checks = {"argument_validation", "runtime_validation", "runtime_validation_disabled"}
    kinds = {"guaranteed_datapipes_determinism", "non_deterministic", "_DatasetKind"}
    assert set(data.__all__) - pipes - checks - kinds == set(TABLES["torch"].committed())
    parameters = inspect.signature(data.DataLoader.__init__).parameters.keys() - {"self"}
    assert parameters == set(TABLES["DataLoader"].committed())


def of_class(kind: Any) -> Iterator[str]:
    """Its names, and those of its metaclass: pipelines begin there."""
    yield from (f"{kind.__name__}.{name}" for name in public(kind) - {"register", "mro"})
    meta = [name for name in vars(type(kind)) if not name.startswith("_")]
    yield from (f"{kind.__name__}.{name}" for name in meta if name not in ("register", "mro"))


def test_grain() -> None:
    grain = found("grain", "0.2.18")
    experimental = importlib.import_module("grain.experimental")
    kinds = (grain.MapDataset, grain.IterDataset)
    assert {n for kind in kinds for n in of_class(kind)} == set(TABLES["Grain"].committed())
    assert public(experimental) == set(TABLES["Grain's experiments"].committed())
    rooms = ("transforms", "samplers", "sharding", "sources")
    names = {f"{room}.{name}" for room in rooms for name in public(getattr(grain, room))}
    assert names == set(TABLES["Grain's transforms"].committed())
