"""This file is what users subclass to read and write what dml does not know, and finds plugins."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dml.errors import InternalError, PlanError, worded

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SOURCES, OPS = "dml.sources", "dml.ops"


@dataclasses.dataclass(frozen=True, slots=True)
class SourcePart:
    """A part of a source that is read in order, on its own, perhaps beside others.

    ``name`` is the part's own among those of its source, and what its row ids come from: the same
    wherever the data is. ``rows`` and ``nbytes`` (of all columns, in memory) are given where they
    are known without reading; ``payload`` is for the source, and travels to workers.
    """

    name: str
    rows: int | None = None
    nbytes: int | None = None
    payload: Any = None


class DataSource:
    """Rows from somewhere: subclass it, and ``dml.read_datasource(YourSource(...))`` reads them.

    Say ``schema``, ``parts`` and ``read``; ``identity`` where results may be cached, ``take`` where
    any row can be had at once. An instance is pickled where workers are other processes, so it
    holds what is needed to open the data rather than what is open.
    """

    name: str = ""
    """What it is called, in row ids and to people; the name of the class if it is empty."""
    atom_rows: int | None = None
    """Rows of an atom, where ``atom_rows=`` does not say; None: 65,536, or about 8 MiB."""

    def schema(self) -> Any:
        """Columns and types: an Arrow schema, or a dict; asked once, when the pipeline is made."""
        raise InternalError(f"{type(self).__name__} has no schema()")

    def parts(self) -> Sequence[SourcePart]:
        """What is read on its own, in the order of rows; asked once, when the pipeline is made."""
        return (SourcePart(""),)

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterable[Any]:
        """Arrow batches or tables of any sizes: the rows of ``part``, always in the same order.

        They have ``columns`` at least, in types that cast to those of the schema without loss.
        """
        raise InternalError(f"{type(self).__name__} has no read()")

    def identity(self) -> object:
        """What changes when the data does, and does not when it is copied; None: nobody knows.

        Text, numbers, tuples of these: a version, a digest; or a function of no arguments that
        reads what it takes to tell, when somebody asks. Without one the source has a name in this
        run only, so nothing that is made of it is cached, or resumed in another process.
        """
        return None

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.Table:
        """The rows at positions ``index`` (n,) int64, over all parts, in that order.

        Defined only where that costs about as much as reading so many rows: then every part must
        say its ``rows``, ``read`` is not asked, and ``shuffle()`` reads in its order.
        """
        raise InternalError(f"{type(self).__name__} has no take()")


class DataSink:
    """Takes rows to somewhere: subclass it, and ``ds.write_datasink(YourSink(...))`` fills it.

    All calls come from the process of the pipeline, one after the other, rows in their order:
    ``open``, ``write`` for each group of rows, then ``finish``, or ``abort`` if anything failed.
    """

    def open(self, schema: pa.Schema) -> None:
        """Begin; called before any rows come, once."""

    def write(self, batch: pa.Table, number: int) -> None:
        """Take some rows, at most about 32 MiB; ``number`` counts from 0."""
        raise InternalError(f"{type(self).__name__} has no write()")

    def finish(self) -> Any:
        """Make what was written visible; what it returns is what ``write_datasink`` does."""

    def abort(self, error: BaseException) -> None:
        """Take back what was written: ``error`` stopped the run, and is raised after this."""


def installed(group: str) -> list[Any]:
    """The entry points of ``group`` in all installed packages, by name."""
    metadata = importlib.import_module("importlib.metadata")
    found: Iterable[Any] = metadata.entry_points(group=group)
    return sorted(found, key=lambda each: (each.name, each.value))


def plugin(group: str, name: str) -> Callable[..., Any]:
    """The function that a package offers under ``name``; PlanError if none, or two, do."""
    points = installed(group)
    found = [each for each in points if each.name == name]
    if len(found) != 1:
        packages = ", ".join(sorted({each.dist.name for each in found if each.dist}))
        names = ", ".join(sorted({each.name for each in points})) or "none"
        raise PlanError(
            f"no package offers {name!r} in {group!r}"
            if not found
            else f"several packages offer {name!r} in {group!r}",
            why=packages or f"installed there: {names}",
            try_="install the package, or give the object itself"
            if not found
            else "uninstall one of them, or give the object itself",
        )
    try:
        made: Callable[..., Any] = found[0].load()
    except Exception as error:
        raise PlanError(
            f"{name!r} of {group!r} cannot be loaded",
            why=f"{found[0].value}: {worded(error)}",
            try_="import that module alone to see what is wrong",
        ) from error
    return made
