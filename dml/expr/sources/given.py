"""This file asks a user's ``DataSource`` what it is, and words what goes wrong in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dml.errors import DmlError, PlanError, SourceError, text_of
from dml.expr.calls import UserFunction
from dml.expr.computed import cached_property
from dml.expr.fingerprint import digest
from dml.expr.function import local_identity
from dml.expr.interrupts import interrupts
from dml.expr.layouts import usual_type
from dml.expr.schema import Schema, schema_of
from dml.expr.sources.addressed import check_atom_rows
from dml.plugins import DataSource, SourcePart


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
    """A user's source and what it said when the pipeline was made; ``fn`` holds its name."""

    source: DataSource
    name: str
    schema: Schema
    parts: tuple[SourcePart, ...]
    known: object
    fn: UserFunction

    @cached_property
    def content(self) -> bytes:
        """The name of the data; FingerprintError for what has none."""
        known = self.known
        if callable(known):
            known = _told(self.source, self.name, " in identity()", known)
        return digest("datasource", known)

    @cached_property
    def digest(self) -> bytes:
        """Its class, name and schema; no content."""
        kind = type(self.source)
        where = () if not self.fn.reason else (self.fn.digest,)
        return digest(kind.__module__, kind.__qualname__, self.name, self.schema, *where)

    def __repr__(self) -> str:
        return self.name

    def raised(self, error: BaseException, place: str, row: int) -> SourceError:
        """The error for what the user's source raised before row ``row``."""
        return _raised(self.source, self.name, f" at row {row}", error).located(place)

    def columns(self, names: tuple[str, ...]) -> Schema:
        """The schema of some columns."""
        return Schema((name, self.schema[name]) for name in names)


def given(source: DataSource, nonce: bytes, fingerprint: str | None = None) -> Given:
    """What ``source`` says of itself; PlanError for what a source cannot say.

    ``nonce`` names it in this run if it has no identity; ``fingerprint`` stands for its identity.
    """
    name = str(source.name or type(source).__name__)
    said = schema_of(_told(source, name, " in schema()", source.schema))
    schema = Schema((column, usual_type(kind)) for column, kind in said.items())
    parts: list[Any] = list(_told(source, name, " in parts()", source.parts) or ())
    names = [getattr(part, "name", part) for part in parts]
    if len(set(names)) != len(parts) or not all(isinstance(part, SourcePart) for part in parts):
        raise PlanError(
            f"the parts of {name} have no names of their own",
            why=f"they are {names}; row ids come from them",
            try_="SourcePart(name, ...) with another name for each",
        )
    if source.atom_rows is not None:
        check_atom_rows(source.atom_rows, name)
    if not schema:
        raise SourceError(f"{name} has no columns", try_="a schema of at least one column")
    known: object = ("named by user", fingerprint)
    if fingerprint is None:
        known = _told(source, name, " in identity()", source.identity)
    reason = _unnamed(source, known)
    named = local_identity(reason, nonce).digest if reason else b""
    call: Any = source
    fn = UserFunction(call, named, name, reason, purity="")
    return Given(source, name, schema, tuple(parts), known, fn)


def _told(source: DataSource, name: str, where: str, call: Callable[[], Any]) -> Any:
    """``call()``, whose exceptions say which call of the source it was."""
    try:
        return call()
    except DmlError:
        raise
    except BaseException as error:
        if interrupts(error):
            raise
        told = _raised(source, name, where, error)
        raise told from told.__cause__


def _raised(source: DataSource, name: str, where: str, error: BaseException) -> SourceError:
    """The error for an exception of ``source``; one that knows secrets says itself what it was."""
    spoken = getattr(source, "spoken", None)
    text = spoken(error) if spoken else text_of(error)
    told = SourceError(
        f"{name} raised {type(error).__name__}{where}: {text}",
        why="the exception came from the source",
        try_="read it alone, outside of the pipeline",
    )
    told.__cause__ = None if spoken else error
    return told


def _unnamed(source: DataSource, known: object) -> str:
    """Why the data has no name that another process could come to; "" if it has one."""
    if known is None:
        return str(getattr(source, "unnamed", NO_IDENTITY))
    if not callable(known):
        try:
            digest("datasource", known)
        except DmlError as error:
            return f"its identity() has no name: {error.why or error.what}"
    return ""


NO_IDENTITY = "its identity() is None: nobody knows whether its data has changed"
