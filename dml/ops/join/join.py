"""``join`` pairs rows of two inputs with equal keys, in the order of the first input."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

from dml.data.schema import Schema
from dml.errors import DmlError, PlanError, SchemaError
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import CHUNK
from dml.expr.node import op
from dml.ops.join.join_node import JoinNode

if TYPE_CHECKING:
    from dml.data.block import Block
    from dml.expr.flow import At, Flow, Opener, Position
    from dml.ops.join.matches import JoinSide, Matches, Unmet
    from dml.ops.join.partitioned_join import Partitioned


class Joined:
    """A flow of joined rows, which reads the right side first.

    A position contains the left side's position before its current block, and the number of rows
    returned since. If the result depends on all earlier left rows, it contains the position at
    which the left side started, and the number of all returned rows.
    """

    def __init__(
        self,
        node: Join,
        openers: Sequence[Opener],
        epoch: int,
        position: Position | None,
        at: At,
    ) -> None:
        self.start: Position = position or {"in": None, "drop": 0}
        self.node, self.at = node, at
        self.left: Flow = openers[0](epoch, self.start["in"])
        self.right: Flow = openers[1](epoch, None)
        self.source: Probing | Partitioned | None = None

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows; None at the end."""
        if self.source is None:
            self.source = self._begun()
            self.source.skip(self.start["drop"])
        return self.source.pull(most)

    def _begun(self) -> Probing | Partitioned:
        """Read the right side as far as memory allows; return the in-memory or partitioned join."""
        from dml.ops.join.matches import JoinSide  # noqa: PLC0415
        from dml.ops.join.partitioned_join import ROW_BYTES, Partitioned, room  # noqa: PLC0415

        held: list[Block] = []
        held_bytes = 0
        while (block := self.right.pull(CHUNK)) is not None:
            held.append(block)
            held_bytes += block.nbytes + ROW_BYTES * block.n
            if held_bytes > room(block.schema, self.at.budget):
                sides = (self.left, self.right)
                return Partitioned(self.node, sides, held, self.at, self.start)
        self.right.close()
        return Probing(self.node, self.left, JoinSide(self.node, held), self.start)

    def position(self) -> Position:
        """Return the left side's position, and the number of result rows to skip from there."""
        return self.start if self.source is None else self.source.position()

    def close(self) -> None:
        """Close both sides."""
        self.left.close()
        self.right.close()
        if self.source is not None:
            self.source.close()


class Probing:
    """Joins ``left``, block by block, with the rows of ``side``, the right side in memory."""

    def __init__(self, node: Join, left: Flow, side: JoinSide, start: Position) -> None:
        self.node, self.left, self.side = node, left, side
        self.before, self.given = start["in"], 0
        self.now: Matches | Unmet | None = None
        self.cursor = self.piece = 0
        self.error: DmlError | None = None
        self.over = False

    def skip(self, rows: int) -> None:
        """Skip ``rows`` result rows that were returned before, without building them."""
        while rows and (now := self._ready()) is not None:
            rows -= self._moved(min(rows, now.n - self.cursor))

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` rows, about 4 MiB at most; None at the end."""
        now = self._ready()
        if now is None:
            return None
        start = self.cursor
        return now.rows(start, start + self._moved(min(most, now.n - start, self.piece)))

    def _moved(self, rows: int) -> int:
        self.cursor += rows
        self.given += rows
        return rows

    def _ready(self) -> Matches | Unmet | None:
        """Return the current matches, or the next ones with rows left; None at the end."""
        while self.now is None or self.cursor == self.now.n:
            if self.error is not None:
                raise self.error
            if self.over:
                return None
            self._next()
        return self.now

    def _next(self) -> None:
        from dml.ops.join.matches import Matches, Unmet  # noqa: PLC0415
        from dml.ops.join.partitioned_join import fitting  # noqa: PLC0415

        if not self.node.whole:
            self.before, self.given = self.left.position(), 0
        block = self.left.pull(CHUNK)
        self.cursor = 0
        if block is None:
            self.over = True
            self.left.close()
            self.now = Unmet(self.node, self.side) if self.node.coalesced else None
            self.piece = fitting(self.side.row_bytes)
            return
        self.now = Matches(self.node, block, self.side, self.node.how)
        self.error = self.now.error
        self.piece = fitting(self.side.row_bytes + block.nbytes // block.n)

    def position(self) -> Position:
        """Return the left position before the current block, and the rows returned since."""
        return {"in": self.before, "drop": self.given}

    def close(self) -> None:
        """Drop the current matches and end the flow."""
        self.now, self.over = None, True


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
class Join(JoinNode):
    """Pairs each row of ``input`` with each row of ``other`` that has the same key.

    Rows are in the order of ``input``, and the matches of one row in the order of ``other``, which
    is read first; unmatched rows of ``other`` (right, outer) follow at the end. The columns of
    ``other`` without its keys follow those of ``input``, with ``suffix`` added to a name that both
    have. Row ids are derived from the ids of both sides.
    """

    # no atoms above: functions there settle their types as they do above a shuffle
    rows: ClassVar[Rows] = Rows.WOVEN
    gathers: ClassVar[int] = 2

    def check(self) -> None:
        """Raise PlanError for batched or endless inputs, unknown options, or unpaired keys."""
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
        """Return the joined columns; raise SchemaError for incomparable keys or duplicate names."""
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

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: the left position is saved, one or both sides read again."""
        work = "both sides" if self.whole else "the right side (both, if it is on disk)"
        return ResumeCost(state_bytes=16, work=work)

    def merge(
        self, openers: Sequence[Opener], epoch: int, position: Position | None, at: At
    ) -> Flow:
        """Open a flow that reads the right side, then matches the left one with it."""
        return Joined(self, openers, epoch, position, at)

    def parameters_text(self) -> str:
        """Return the source of the other side, the keys and the options as text."""
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
