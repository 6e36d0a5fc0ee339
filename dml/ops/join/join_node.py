"""``JoinNode`` has the fields of a join: how rows match, and which rows are in the result."""

from __future__ import annotations

import pyarrow as pa

from dml.base.cached_property import cached_property
from dml.data.schema import short
from dml.errors import SchemaError
from dml.expr.columns.promotion import TypedRegister, common_type, comparable
from dml.expr.columns.value import Value, col
from dml.expr.node import Node, op


@op
class JoinNode(Node):
    """The base of the operator ``join``: the fields and facts that matching needs.

    Keys are the columns ``left_on`` of ``input`` and ``right_on`` of ``other``. ``how`` says which
    rows without a match are in the result, and ``validate`` how often a key may occur on each side.
    Null keys match each other if ``nulls_equal``.
    """

    input: Node
    other: Node
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: str
    suffix: str
    nulls_equal: bool
    validate: str

    @cached_property
    def key_kinds(self) -> tuple[pa.DataType, ...]:
        """Return the types in which keys are compared."""
        pairs = zip(self.left_on, self.right_on, strict=True)
        return tuple(self._key_kind(left, right) for left, right in pairs)

    def _key_kind(self, left: str, right: str) -> pa.DataType:
        kinds = (self.input.schema.require(left, "join"), self.other.schema.require(right, "join"))
        compared = Value("eq", (col(left), col(right)))
        kind = common_type([TypedRegister(0, each) for each in kinds], compared)
        if not comparable(kind):
            raise SchemaError(
                f"join by {left!r}, which is {short(kind)}",
                why="keys are numbers, booleans, text, bytes, dates and times",
                try_="a column of one of these, such as a hash or a .struct.field(...)",
            )
        return kind

    @property
    def paired(self) -> bool:
        """True if the result has columns of both sides."""
        return self.how not in ("semi", "anti")

    @property
    def coalesced(self) -> bool:
        """True if a result row may have its key from the right side alone."""
        return self.how in ("right", "outer")

    @property
    def whole(self) -> bool:
        """True if a result row can depend on all earlier rows of the left side."""
        return self.coalesced or self.validate in ("1:1", "1:m")

    @cached_property
    def added(self) -> tuple[tuple[str, str], ...]:
        """Return the right columns other than keys, each with its name in the result."""
        taken = set(self.input.schema)
        names = [name for name in self.other.schema if name not in self.right_on]
        return tuple((name, name + self.suffix if name in taken else name) for name in names)
