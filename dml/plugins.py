"""Users subclass DataSource and DataSink to add formats; entry points make them plugins."""

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
    """A part of a source that one worker reads in order; parts may be read in parallel.

    ``name`` is unique among the parts of a source. Row ids derive from it, so it must not depend on
    where the data is stored. ``rows`` and ``nbytes`` (of all columns, in memory) are set where they
    are known without reading; ``payload`` is for the source's own use, and is sent to workers.
    """

    name: str
    rows: int | None = None
    nbytes: int | None = None
    payload: Any = None


class DataSource:
    """A user-defined source: subclass it, and ``dml.read_datasource(YourSource(...))`` reads it.

    Define ``schema``, ``parts`` and ``read``; also ``identity`` if results may be cached, and
    ``take`` if rows can be read at random. An instance is pickled if workers are other processes,
    so it must store paths or addresses, and no open files or connections.
    """

    name: str = ""
    """Name of the source, for row ids and messages; if it is "", the name of the class is used."""
    atom_rows: int | None = None
    """Rows of an atom, unless ``atom_rows=`` is given; None is 65,536 rows, or about 8 MiB."""

    def schema(self) -> Any:
        """Return an Arrow schema, or a dict of types; called once, when a pipeline is created."""
        raise InternalError(f"{type(self).__name__} has no schema()")

    def parts(self) -> Sequence[SourcePart]:
        """Return the parts in the order of rows; called once, when a pipeline is created."""
        return (SourcePart(""),)

    def read(self, part: SourcePart, columns: tuple[str, ...]) -> Iterable[Any]:
        """Return the rows of ``part``, always in one order, as Arrow batches or tables of any size.

        The batches have at least ``columns``, in types that cast to those of the schema without
        loss.
        """
        raise InternalError(f"{type(self).__name__} has no read()")

    def identity(self) -> object:
        """Return a value that identifies the data and is equal for copies; None if unknown.

        Allowed are text, numbers and tuples of these, such as a version or a digest, or a function
        without arguments that reads such a value when it is needed. Without an identity the source
        has a fingerprint in this run only, so nothing derived from it is cached, or resumed in
        another process.
        """
        return None

    def take(self, index: np.ndarray, columns: tuple[str, ...]) -> pa.Table:
        """Return the rows at positions ``index`` (n,) int64, over all parts, in that order.

        Define ``take`` only if it costs about as much as reading as many rows in sequence. If it is
        defined, every part must have ``rows``, ``read`` is not called, and ``shuffle()`` reads rows
        directly in shuffled order.
        """
        raise InternalError(f"{type(self).__name__} has no take()")


class DataSink:
    """A user-defined sink: subclass it, and ``ds.write_datasink(YourSink(...))`` writes to it.

    All calls come from the process of the pipeline, one after another, with rows in order:
    ``open``, ``write`` for each group of rows, then ``finish``, or ``abort`` if anything failed.
    """

    def open(self, schema: pa.Schema) -> None:
        """Begin writing; called once, before any rows."""

    def write(self, batch: pa.Table, number: int) -> None:
        """Write some rows, at most about 32 MiB; ``number`` counts the calls from 0."""
        raise InternalError(f"{type(self).__name__} has no write()")

    def finish(self) -> Any:
        """Publish the written rows; ``write_datasink`` returns the return value."""

    def abort(self, error: BaseException) -> None:
        """Discard the written rows: ``error`` stopped the run, and is raised after this call."""


def installed(group: str) -> list[Any]:
    """Return the entry points of ``group`` in all installed packages, sorted by name."""
    metadata = importlib.import_module("importlib.metadata")
    found: Iterable[Any] = metadata.entry_points(group=group)
    return sorted(found, key=lambda each: (each.name, each.value))


def plugin(group: str, name: str) -> Callable[..., Any]:
    """Load the function that a package registers as ``name``; PlanError for none or several."""
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
