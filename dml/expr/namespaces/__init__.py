"""This file hangs the namespaces of functions on columns; each is loaded by its first use.

They are in a class of their own, since ``str`` and ``list`` inside ``Column`` would hide the types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from dml.expr.column import Column
    from dml.expr.namespaces.lists import Lists
    from dml.expr.namespaces.moments import Moments
    from dml.expr.namespaces.strings import Strings
    from dml.expr.namespaces.structs import Structs


class Namespaced:
    """A column as its namespaces see it."""

    __slots__ = ()

    @property
    def str(self) -> Strings:
        """Functions of text."""
        from dml.expr.namespaces.strings import Strings  # noqa: PLC0415

        return Strings(cast("Column", self))

    @property
    def list(self) -> Lists:
        """Functions of lists."""
        from dml.expr.namespaces.lists import Lists  # noqa: PLC0415

        return Lists(cast("Column", self))

    @property
    def dt(self) -> Moments:
        """Functions of dates and times."""
        from dml.expr.namespaces.moments import Moments  # noqa: PLC0415

        return Moments(cast("Column", self))

    @property
    def struct(self) -> Structs:
        """Functions of structs."""
        from dml.expr.namespaces.structs import Structs  # noqa: PLC0415

        return Structs(cast("Column", self))
