"""This file holds ``join``: rows of two inputs whose keys are equal, in the order of the first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from dml.errors import PlanError, SchemaError
from dml.expr.computed import cached_property
from dml.expr.facts import Held, Rows
from dml.expr.joining import Joined
from dml.expr.node import Node, op
from dml.expr.promotion import Typed, common_type, comparable
from dml.expr.schema import Schema, short
from dml.expr.value import Value, col

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

HOWS = ("inner", "left", "right", "outer", "semi", "anti", "cross")
SYNONYMS = {
    "full": "outer",
    "left_outer": "left",
    "right_outer": "right",
    "full_outer": "outer",
    "left_semi": "semi",
    "left_anti": "anti",
}
VALIDATIONS = ("m:m", "1:1", "1:m", "m:1")


@op
class Join(Node):
    """Each row of ``input`` with each row of ``other`` that has the same key.

    Rows come in the order of ``input``, those of one of its rows in the order of ``other``, which
    is read first; rows of ``other`` without a match (right, outer) come last. Columns of ``other``
    stand after those of ``input`` without its keys, under their names and ``suffix`` where both
    have one. Row ids are made of the ids of both sides.
    """

    input: Node
    other: Node
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: str
    suffix: str
    nulls_equal: bool
    validate: str

    # types that functions settle after it are settled as after a shuffle: atoms do not reach it
    rows: ClassVar[Rows] = Rows.WOVEN
    gathers: ClassVar[int] = 2

    def check(self) -> None:
        """Rows on both sides that end, words that are known, a key for each (PlanError)."""
        _one_of("how", self.how, HOWS)
        _one_of("validate", self.validate, VALIDATIONS)
        if any(node.batched for node in self.inputs):
            raise PlanError(
                "join of batches",
                why="it finds rows with equal keys, and an input is batched",
                try_=".join(...) before .batch()",
            )
        if any(node.endless for node in self.inputs):
            raise PlanError(
                "join of a pipeline without an end",
                why="one side is read whole, the other may have to be",
                try_=".join(...) before .repeat(), or .take(n) of that side",
            )
        self._check_keys()

    def _check_keys(self) -> None:
        cross, left, right = self.how == "cross", len(self.left_on), len(self.right_on)
        if left != right or cross == (left > 0):
            raise PlanError(
                f"join with {left} keys on the left and {right} on the right",
                why="cross pairs all rows, without keys" if cross else "keys are compared in pairs",
                try_='.join(other, how="cross")' if cross else '.join(other, on="key")',
            )
        if self.validate != "m:m" and self.how in ("semi", "anti", "cross"):
            raise PlanError(
                f"{self.how} join with validate={self.validate!r}",
                why="it says how many matches a row may have, and this join does not depend on it",
                try_="without validate=",
            )

    def infer(self) -> Schema:
        """Columns of both; SchemaError for keys of different kinds, and for a name given twice."""
        for node, side in zip(self.inputs, ("left", "right"), strict=True):
            if not node.schema.known:
                raise SchemaError(
                    f"join does not know the columns of its {side} side",
                    why="a function makes them, and declares none",
                    try_='schema={"column": "type", ...} where the function is given',
                )
        kinds = dict(self.input.schema)
        for name, kind in zip(self.left_on, self.key_kinds, strict=True):
            kinds[name] = kind if self.coalesced else kinds[name]
        if self.paired:
            for name, made in self.added:
                if made in kinds:
                    raise SchemaError(
                        f"join gives two columns the name {made!r}",
                        why=f"column {name!r} of the right side gets suffix={self.suffix!r}",
                        try_="another suffix=, or .rename(...) on one side",
                    )
                kinds[made] = self.other.schema[name]
        return Schema(kinds)

    @cached_property
    def key_kinds(self) -> tuple[pa.DataType, ...]:
        """The types in which keys are compared."""
        pairs = zip(self.left_on, self.right_on, strict=True)
        return tuple(self._key_kind(left, right) for left, right in pairs)

    def _key_kind(self, left: str, right: str) -> pa.DataType:
        kinds = (self.input.schema.require(left, "join"), self.other.schema.require(right, "join"))
        compared = Value("eq", (col(left), col(right)))
        kind = common_type([Typed(0, each) for each in kinds], compared)
        if not comparable(kind):
            raise SchemaError(
                f"join by {left!r}, which is {short(kind)}",
                why="keys are numbers, booleans, text, bytes, dates and times",
                try_="a column of one of these, such as a hash or a .struct.field(...)",
            )
        return kind

    @property
    def paired(self) -> bool:
        """True if rows have columns of both sides."""
        return self.how not in ("semi", "anti")

    @property
    def coalesced(self) -> bool:
        """True if a row may have its key from the right side alone."""
        return self.how in ("right", "outer")

    @property
    def whole(self) -> bool:
        """True if what comes depends on all rows of the left side that came before."""
        return self.coalesced or self.validate in ("1:1", "1:m")

    @cached_property
    def added(self) -> tuple[tuple[str, str], ...]:
        """Columns of the right side that are no keys, with their names in the result."""
        taken = set(self.input.schema)
        names = [name for name in self.other.schema if name not in self.right_on]
        return tuple((name, name + self.suffix if name in taken else name) for name in names)

    @property
    def held(self) -> Held:
        """Where the left side was; the right one is read again, and where needed the left."""
        work = "both sides" if self.whole else "the right side (both, if it is on disk)"
        return Held(state_bytes=16, work=work)

    def merge(
        self, openers: Sequence[Opener], epoch: int, position: Position | None, at: At
    ) -> Flow:
        """The right side is read, then the left one meets it."""
        return Joined(self, openers, epoch, position, at)

    def shown(self) -> str:
        """The other side, by what it reads, and the keys."""
        keys = "" if self.how == "cross" else f"on={_keys_shown(self.left_on, self.right_on)}, "
        more = "" if self.validate == "m:m" else f", validate={self.validate!r}"
        nulls = ", nulls_equal=True" if self.nulls_equal else ""
        return f"{self.other.chain()[0].title()}, {keys}how={self.how!r}{nulls}{more}"


def _keys_shown(left: tuple[str, ...], right: tuple[str, ...]) -> list[str]:
    pairs = zip_longest(left, right)
    return [one if one == two else f"{one} = {two}" for one, two in pairs]


def _one_of(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise PlanError(
            f"join with {name}={given!r}",
            why=f"{name} is one of {', '.join(map(repr, known))}",
            try_=f"{name}={known[0]!r}",
        )
