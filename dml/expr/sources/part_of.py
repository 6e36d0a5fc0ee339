"""This file is the base of sources that are a part of another: some of its read units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dml.errors import InternalError
from dml.expr.schema import Schema
from dml.expr.sources.source import Source, Unit

if TYPE_CHECKING:
    from dml.expr.block import Block
    from dml.expr.value import Value


class PartOf(Source):
    """Some read units of ``undivided``, with their rows and ids as they are there.

    Subclasses say which units (``unit_count``, ``unit``, ``there``), and count their rows.
    """

    def there(self, unit: Unit) -> Unit:
        """The unit of ``undivided`` that ``unit`` is."""
        raise InternalError(f"{type(self).__name__} has no units")

    def infer(self) -> Schema:
        """The same columns."""
        return self.undivided.schema

    @property
    def columns_apart(self) -> bool:
        """As there."""
        return self.undivided.columns_apart

    @property
    def far(self) -> bool:
        """As there."""
        return self.undivided.far

    @property
    def addressable(self) -> bool:
        """As there."""
        return self.undivided.addressable

    def identity(self) -> bytes:
        """Of all the data: which part of it this is follows from parameters."""
        return self.undivided.identity()

    def identity_bytes(self) -> float:
        """Of all the data."""
        return self.undivided.identity_bytes()

    def content_parts(self, *, quick: bool) -> Iterator[tuple[str, str, bytes]]:
        """Of all the data."""
        return self.undivided.content_parts(quick=quick)

    def opened(self) -> bytes:
        """Of all the data."""
        return self.undivided.opened()

    def revision(self) -> bytes:
        """Of all the data."""
        return self.undivided.revision()

    def likeness(self) -> bytes:
        """Of all the data."""
        return self.undivided.likeness()

    def read(self, unit: Unit, columns: tuple[str, ...], skip_atoms: int = 0) -> Iterator[Block]:
        """As there."""
        return self.undivided.read(self.there(unit), columns, skip_atoms)

    def working_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """As there."""
        return self.undivided.working_bytes(self.there(unit), columns)

    def stored_bytes(self, unit: Unit, columns: tuple[str, ...]) -> int:
        """As there."""
        return self.undivided.stored_bytes(self.there(unit), columns)

    def changed_ns(self, unit: Unit) -> int:
        """As there."""
        return self.undivided.changed_ns(self.there(unit))

    def may_match(self, unit: Unit, predicate: tuple[Value, ...]) -> bool:
        """As there."""
        return self.undivided.may_match(self.there(unit), predicate)

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Those of all rows hold for some of them."""
        return self.undivided.bounds(column)
