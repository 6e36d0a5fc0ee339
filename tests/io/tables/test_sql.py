"""Test results of database queries: fingerprints, passes, connections, errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dml
from dml.errors import FingerprintError, SourceError
from dml.io.tables.sql import read_sql
from dml.io.user.user_source import read_datasource
from dml.testing.source_laws import check_source

ROWS = [(i, str(i) if i % 3 else None, i / 2) for i in range(10)]
QUERY = "SELECT a, s, f FROM t ORDER BY a"


class Database:
    """Connects to a file, and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.opened: list[sqlite3.Connection] = []
        with sqlite3.connect(self.path) as made:
            made.execute("CREATE TABLE t (a INTEGER, s TEXT, f REAL)")
            made.executemany("INSERT INTO t VALUES (?, ?, ?)", ROWS)
        made.close()

    def __call__(self) -> sqlite3.Connection:
        self.opened.append(sqlite3.connect(self.path, check_same_thread=False))
        return self.opened[-1]

    def all_closed(self) -> bool:
        return all(map(_is_closed, self.opened))


def _is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018 - asking is what tells
    except sqlite3.ProgrammingError:
        return True
    return False


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "x.db")


def test_an_answer_keeps_all_laws(database: Database) -> None:
    options: dict[str, Any] = {"nonce": b"n", "fingerprint": None, "atom_rows": 3}
    source = read_datasource(read_sql(QUERY, database, None, (), **options), b"n")
    a, s, f = zip(*ROWS, strict=True)
    check_source(source, pa.table({"a": a, "s": s, "f": f}))
    assert database.all_closed()


def test_every_pass_asks_again(database: Database) -> None:
    ds = dml.read_sql("SELECT a FROM t WHERE a > ? ORDER BY a", database, parameters=(6,))
    assert [row["a"] for row in ds] == [7, 8, 9]
    with sqlite3.connect(database.path) as made:
        made.execute("DELETE FROM t WHERE a = 8")
    made.close()
    assert [row["a"] for row in ds] == [7, 9]
    assert len(database.opened) == 3  # once for the types


def test_a_pass_that_ends_early_closes_its_connection(database: Database) -> None:
    ds = dml.read_sql(QUERY, database, atom_rows=2).with_options(executor="sync")
    assert [row["a"] for row in ds.take(3)] == [0, 1, 2]
    assert database.all_closed()


def test_an_answer_has_a_name_only_if_it_is_given_one(database: Database) -> None:
    with pytest.raises(FingerprintError, match="sql has no fingerprint"):
        dml.read_sql(QUERY, database).fingerprint()
    named = [dml.read_sql(QUERY, database, fingerprint=word).fingerprint() for word in "aab"]
    assert named[0] == named[1] != named[2]


def test_what_gives_no_rows_is_refused(database: Database) -> None:
    with pytest.raises(SourceError, match="needs a function that connects"):
        dml.read_sql(QUERY, database.path)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="no rows to give"):
        dml.read_sql("CREATE TABLE u (a INTEGER)", database)
    with pytest.raises(SourceError, match="have one name"):
        dml.read_sql("SELECT a, a FROM t", database)
    assert dml.read_sql("SELECT a FROM t WHERE a > 99", database, {"a": "int64"}).count() == 0
    assert database.all_closed()


def test_parameters_are_places_or_names(database: Database) -> None:
    query = "SELECT a FROM t WHERE a > {} AND a < {} ORDER BY a"
    by_place = dml.read_sql(query.format("?", "?"), database, parameters=[3, 6])
    named = {"low": 3, "high": 6}
    by_name = dml.read_sql(query.format(":low", ":high"), database, parameters=named)
    assert by_place.to_list() == by_name.to_list() == [{"a": 4}, {"a": 5}]
    for stranger in ("36", 3):
        with pytest.raises(SourceError, match="are a list or a dict"):
            dml.read_sql(QUERY, database, parameters=stranger)  # type: ignore[arg-type]


class Quoting:
    """A driver whose errors quote what it was given."""

    description = None

    def cursor(self) -> Quoting:
        return self

    def execute(self, query: str, parameters: Any = ()) -> None:
        raise ValueError(f"no such thing in {query} with {parameters}")

    def close(self) -> None: ...


@pytest.mark.law
@pytest.mark.parametrize("parameters", [["opensesame"], {"word": "opensesame"}])
def test_errors_of_a_driver_are_named_and_show_no_parameters(parameters: Any) -> None:
    with pytest.raises(SourceError, match="does not answer the query") as caught:
        dml.read_sql("SELECT 1", Quoting, parameters=parameters)
    assert "no such thing in SELECT 1" in caught.value.why
    assert "opensesame" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(SourceError, match="does not answer") as plain:
        dml.read_sql("SELECT 1", Quoting, {"a": "int64"}).to_list()
    assert isinstance(plain.value.__cause__, ValueError)
