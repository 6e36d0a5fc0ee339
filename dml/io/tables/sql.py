"""Results of database queries are read through any driver that follows Python's DB-API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, TypeAlias

from dml.base.fingerprint import digest
from dml.errors import DmlError, SourceError
from dml.io.stores.store_errors import scrubbed, secrets_in
from dml.io.user.generator import GENERATED_ROWS, Generated
from dml.udfs.identity.function_fingerprint import FunctionIdentity, local_identity

Parameters: TypeAlias = "Sequence[Any] | Mapping[str, Any]"

CHANGES = "what a database answers may change, and nothing tells whether it has"


def _answered(
    query: str, connect: Callable[[], Any], parameters: Parameters, each: int
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the result; raise SourceError without parameters on driver errors."""
    try:
        yield from _rows(query, connect, parameters, each)
    except DmlError:
        raise
    except Exception as error:  # noqa: BLE001 - every driver has errors of its own
        values = list(parameters.values() if isinstance(parameters, Mapping) else parameters)
        raise SourceError(
            "the database does not answer the query",
            why=scrubbed(f"{type(error).__name__}: {error}", secrets_in({"": values})),
            try_="the same query with the driver alone",
        ) from (None if parameters else error)


def _rows(
    query: str, connect: Callable[[], Any], parameters: Parameters, each: int
) -> Iterator[dict[str, Any]]:
    """Run the query on a new connection, and close it after the last row."""
    with closing(connect()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(query, *((parameters,) if parameters else ()))
        if cursor.description is None:
            raise SourceError(
                "the query has no rows to give",
                why=f"it is {query!r}",
                try_="a SELECT, or what returns rows",
            )
        names = [column[0] for column in cursor.description]
        if len(set(names)) != len(names):
            raise SourceError(
                f"two columns of the answer have one name: {names}",
                why="a row has one value for a name",
                try_="SELECT a.x AS left_x, b.x AS right_x ...",
            )
        while rows := cursor.fetchmany(each):
            yield from (dict(zip(names, row, strict=True)) for row in rows)


def read_sql(
    query: str,
    connect: Callable[[], Any],
    schema: object,
    parameters: Parameters,
    *,
    nonce: bytes,
    fingerprint: str | None,
    atom_rows: int | None,
) -> Generated:
    """Build the source of a query result; raise SourceError for invalid arguments."""
    if not callable(connect):
        raise SourceError(
            f"read_sql needs a function that connects, got a {type(connect).__name__}",
            why="every pass has a connection of its own, in the process that reads",
            try_='read_sql(query, lambda: sqlite3.connect("x.db", check_same_thread=False))',
        )
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping):
        raise SourceError(
            f"parameters of a query are a list or a dict, got a {type(parameters).__name__}",
            why="each stands for one place of the query, by its number or its name",
            try_='parameters=[value], or {"name": value}, as the driver has them',
        )
    known = local_identity(CHANGES, nonce, "sql")
    if fingerprint is not None:
        known = FunctionIdentity("sql", digest("named by user", fingerprint))
    each = GENERATED_ROWS if atom_rows is None else atom_rows
    given = dict(parameters) if isinstance(parameters, Mapping) else tuple(parameters)
    asked = partial(_answered, query, connect, given, each)
    return Generated(asked, known, schema, each)
