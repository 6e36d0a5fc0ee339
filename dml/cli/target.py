"""Find the pipeline that FILE.py:NAME denotes, and import the file by its path."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeGuard, runtime_checkable

import click
import cloudpickle

from dml.cli.output import guest_output
from dml.errors import DmlError, PlanError

MODULE = "dml_target"
"""A module name that no file beside the user's can have, so that no module is shadowed."""


class Position(Iterator[Any], Protocol):
    """An iterator over batches whose position can be saved."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


@runtime_checkable
class Pipeline(Protocol):
    """The part of Dataset that the command line needs."""

    def __iter__(self) -> Position: ...
    def epoch(self, k: int, /) -> Pipeline: ...
    def explain(self, stage: str | None = None, *, analyze: bool = False) -> str: ...
    def fingerprint(self, domain: str = "result", *, explain: bool = False) -> str: ...
    def profile(self, train: Any = None, *, upper_bound: bool = False) -> Any: ...
    def stats(self) -> Any: ...
    def with_options(self, **options: Any) -> Pipeline: ...


def load(target: str) -> Pipeline:
    """Return the dataset that ``target`` names; a usage error lists the datasets of the file.

    The file runs as a module of its own, with its folder first on ``sys.path``, as under ``python
    file.py``. If it raises, its module is removed again, and the error names the line of the file.
    """
    place, separator, name = target.rpartition(":")
    if not separator or not name.isidentifier():
        raise click.UsageError(f"{target!r} is not FILE.py:NAME, for instance train.py:ds")
    path = Path(place)
    if not path.is_file():
        raise click.UsageError(f"there is no file {place!r}")
    module = _run(path.resolve())
    found = getattr(module, name, None)
    if _is_pipeline(found):
        return found
    names = [each for each, value in vars(module).items() if _is_pipeline(value)]
    has = f"its datasets are {', '.join(names)}" if names else "it defines no dataset"
    kind = "" if found is None else f", which is a {type(found).__name__}"
    raise click.UsageError(f"{place} has no dataset {name!r}{kind}; {has}")


def function_of(target: str, name: str) -> Callable[[Any], Any]:
    """Return the function ``name`` of the file that ``load(target)`` has run."""
    found = getattr(sys.modules[MODULE], name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    raise click.UsageError(f"{target.rpartition(':')[0]} has no function {name!r}")


def _is_pipeline(value: object) -> TypeGuard[Pipeline]:
    return isinstance(value, Pipeline) and not isinstance(value, type)


def _run(path: Path) -> ModuleType:
    """Execute the file as module ``dml_target``; if that fails, leave no trace of it."""
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    before, folders = sys.modules.get(MODULE), list(sys.path)
    sys.modules[MODULE] = module
    sys.path.insert(0, str(path.parent))
    try:
        with guest_output():
            spec.loader.exec_module(module)
    except BaseException as error:
        sys.path[:] = folders
        del sys.modules[MODULE]
        if before is not None:
            sys.modules[MODULE] = before
        if isinstance(error, DmlError | KeyboardInterrupt):
            raise
        raise _import_error(path, error) from error
    cloudpickle.register_pickle_by_value(module)  # workers cannot import this module by name
    return module


def _import_error(path: Path, error: BaseException) -> PlanError:
    """Wrap the user's exception, with the last line of the user's file in its traceback."""
    lines = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1].lineno if lines else None
    return PlanError(
        f"{path.name} raised {type(error).__name__} while it was imported",
        at=f"{path}:{line}" if line else str(path),
        why=str(error) or "it gave no message",
        try_=f"python {path}",
    )
