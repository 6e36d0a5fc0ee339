"""Sources that consist of some read units of another source, such as its first ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dml.data.schema import Schema
from dml.expr.node import op
from dml.io.source import Source, Unit

if TYPE_CHECKING:
    import numpy as np

    from dml.data.block import Block

# The properties and methods of ``Source`` that a part passes on to the source it is a part of. The
# identity and the other digests are those of all its data, not only of the part.
PROPERTIES = (
    *("row_count", "unit_count", "atom_count"),
    *("columns_apart", "far", "addressable", "may_be_slow", "ids_apart"),
)
METHODS = (
    *("unit", "unit_of", "position_of", "bounds", "may_match", "changed_ns"),
    *("identity", "identity_bytes", "content_parts", "opened", "revision", "likeness"),
    *("read", "working_bytes", "stored_bytes"),
)


class PartOf(Source):
    """Some read units of ``undivided``, with their rows and ids unchanged.

    Units, atoms and positions are those of ``undivided`` unless a subclass numbers them anew.
    """

    def there(self, unit: Unit) -> Unit:
        """Return the unit of ``undivided`` that corresponds to ``unit``."""
        return unit

    def infer(self) -> Schema:
        """Return the schema of ``undivided``."""
        return self.undivided.schema


def _passed_on(name: str) -> Callable[..., Any]:
    """Return a method that calls method ``name`` of ``undivided``, its units numbered as there."""

    @functools.wraps(getattr(Source, name))
    def method(self: PartOf, *given: Any, **named: Any) -> Any:
        there = (self.there(each) if isinstance(each, Unit) else each for each in given)
        return getattr(self.undivided, name)(*there, **named)

    return method


for _name in PROPERTIES:
    setattr(PartOf, _name, property(attrgetter(f"undivided.{_name}")))
for _name in METHODS:
    setattr(PartOf, _name, _passed_on(_name))


@op
class Leading(PartOf):
    """The first ``units`` read units of ``whole``, with unchanged numbers, rows and ids.

    Plans use this source if no later unit is needed; users do not write it. ``row_count`` is that
    of ``whole``, since orders and positions are those of ``whole``.
    """

    whole: Source
    units: int

    @property
    def undivided(self) -> Source:
        """The complete source."""
        return self.whole

    @property
    def unit_count(self) -> int:
        """Number of units that are read."""
        return self.units

    def rows_at(self, index: np.ndarray, columns: tuple[str, ...]) -> Block:
        """Read rows at any positions of ``whole``."""
        return self.whole.rows_at(index, columns)

    def title(self) -> str:
        """Return the title of ``whole``; plans show the truncation."""
        return self.whole.title()
