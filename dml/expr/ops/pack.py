"""This file holds ``pack``: lists of several rows in one, of a bounded number of tokens."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.errors import (
    PlanError,
    ResumeMismatchError,
    SchemaError,
)
from dml.expr.bins import STRATEGIES, Bin, Bins, Chunk, Piece, gathered, spans
from dml.expr.block import Block, Values, held, to_arrow
from dml.expr.computed import cached_property
from dml.expr.facts import Held, Rows
from dml.expr.flow import CHUNK, GATHERED, Room
from dml.expr.marks import plain
from dml.expr.node import Node, op
from dml.expr.ops.pad import Given, fill_as
from dml.expr.ops.take import count
from dml.expr.schema import UNKNOWN, Schema, code_of, shape_of, short, tensor
from dml.expr.tokens import chunk_of
from dml.kernels.ids import RowIds
from dml.kernels.vec import Vec

if TYPE_CHECKING:
    from dml.errors import DmlError
    from dml.expr.flow import At, Flow, Opener, Position

PACK = int.from_bytes(b"pack", "big")
LONG = ("error", "truncate", "drop")
# So many bins are a state of at most 4 kB.
MOST_BINS = 256
SEGMENTS, POSITIONS = "segment_ids", "positions"
# Tokens that nobody waits for are let go of once there are so many, and more than of the others.
SPARE_TOKENS = 1 << 16


@op
class Pack(Node):
    """Rows of at most ``size`` tokens, made of the rows' lists in ``column`` and the others beside.

    Which rows share one follows from their lengths (``expr/bins.py``). Two columns are added:
    ``segment_ids`` counts the rows in it from 1, ``positions`` the tokens of each from 0. With
    ``fill`` every row is a tensor of ``size``, 0 behind the end of the added columns.
    """

    input: Node
    column: str
    size: int
    strategy: str
    bins: int
    long: str
    fill: Given

    rows: ClassVar[Rows] = Rows.PACKED
    gathers: ClassVar[int] = 2

    def check(self) -> None:
        """Sizes count, words are known, rows below."""
        count("pack max_tokens", self.size, least=1)
        count("pack bins", self.bins, least=1)
        if self.bins > MOST_BINS:
            raise PlanError(
                f"pack with {self.bins} bins",
                why=f"the room of each is part of every state, and {MOST_BINS} fit into one",
                try_=f"bins={MOST_BINS}, or sort rows by length before",
            )
        _word("strategy", self.strategy, STRATEGIES)
        _word("long", self.long, LONG)
        if self.strategy == "concat_split" and self.long != "error":
            raise PlanError(
                f'pack by "concat_split" with long={self.long!r}',
                why="it splits what does not fit, so that no row is too long",
                try_='long= left out, or strategy="first_fit"',
            )
        if self.input.batched:
            raise PlanError(
                "pack over batches",
                why="it joins rows, and its input is batched already",
                try_=".pack(...).batch(...)",
            )

    def infer(self) -> Schema:
        """The columns of lists, bounded, and the two that are added."""
        given = self.input.schema
        return self.packed(given) if given.known else UNKNOWN

    @cached_property
    def _schemas(self) -> dict[Schema, Schema]:
        return {}

    def packed(self, given: Schema) -> Schema:
        """What rows of ``given`` become; SchemaError for columns that are no lists."""
        found = self._schemas.get(given)
        if found is None:
            given.require(self.column, "pack")
            for name in (SEGMENTS, POSITIONS, *self._filled):
                _present(given, name, wanted=name in self._filled)
            kinds = {name: self._kind(name, element_of(name, kind)) for name, kind in given.items()}
            added = dict.fromkeys((SEGMENTS, POSITIONS), self._shape(pa.int32()))
            found = self._schemas[given] = Schema({**kinds, **added})
        return found

    @property
    def _filled(self) -> list[str]:
        return [name for name, _ in self.fill] if isinstance(self.fill, tuple) else []

    def _kind(self, name: str, inner: pa.DataType) -> pa.DataType:
        if self.fill is not None and self.filling(name, inner) is None:
            raise SchemaError(
                f"pack cannot fill {name!r} with {self._value(name)!r}",
                why=f"its lists are of {short(inner)}",
                try_=f"pad_value={{{name!r}: 0}}, or no pad_value and .padded_batch(...)",
            )
        return self._shape(inner)

    def _shape(self, inner: pa.DataType) -> pa.DataType:
        return pa.list_(inner) if self.fill is None else tensor(code_of(inner), (self.size,))

    def _value(self, name: str) -> Any:
        return dict(self.fill).get(name, 0) if isinstance(self.fill, tuple) else self.fill

    def filling(self, name: str, inner: pa.DataType) -> Any:
        """What stands behind the end of ``name``; None if it cannot."""
        if name in {SEGMENTS, POSITIONS}:
            return 0
        code = code_of(inner)
        return None if code == "arrow" else fill_as(self._value(name), code)

    @property
    def held(self) -> Held:
        """The room of each bin; what has come since the oldest row that is held comes again."""
        work = f"back to the oldest row in {self.bins} bins"
        return Held(state_bytes=64 + 14 * self.bins, work_rows=self.bins * self.size, work=work)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Hold rows in bins."""
        return _Packing(self, partial(open_input, epoch), position, Room(self, at.hold_bytes))

    def shown(self) -> str:
        """Column, size, and how."""
        how = "" if self.strategy == "concat_split" else f", bins={self.bins}, long={self.long!r}"
        fill = dict(self.fill) if isinstance(self.fill, tuple) else self.fill
        pad = "" if fill is None else f", pad_value={fill!r}"
        return f"{self.size}, {self.column!r}, {self.strategy!r}{how}{pad}"


def _word(name: str, given: Any, words: tuple[str, ...]) -> None:
    if given not in words:
        raise PlanError(
            f"pack has no {name} {given!r}",
            why=f"it knows {', '.join(map(repr, words))}",
            try_=f"{name}={words[0]!r}",
        )


def _present(given: Schema, name: str, *, wanted: bool) -> None:
    if wanted:
        given.require(name, "pack pad_value")
    elif name in given:
        raise SchemaError(
            f"pack makes {name!r}, which is there already",
            why="it says where the rows lie that were joined",
            try_=f".rename({{{name!r}: ...}}) before",
        )


def element_of(name: str, kind: pa.DataType) -> pa.DataType:
    """The type of the tokens in a column; SchemaError where it has no list."""
    kind, types = plain(kind), pa.types
    if isinstance(kind, pa.FixedShapeTensorType) and len(shape_of(kind)) == 1:
        return kind.value_type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        return inner.value_type if types.is_dictionary(inner) else inner
    raise SchemaError(
        f"pack cannot join {name!r}, which is {short(kind)}",
        why="rows become parts of one row, and only lists can be joined",
        try_=f".drop({name!r}), or .select(...) of the lists",
    )


@dataclasses.dataclass(eq=False)
class _Origin:
    """The input before block ``number``, the open bins there, how many rows had been given."""

    number: int
    before: Position | None
    open: list[list[int]]
    given: int


class _Packing:
    """``made`` are rows of the bins ``queue``, given up to ``start``."""

    def __init__(self, node: Pack, open_at: Any, position: Position | None, room: Room) -> None:
        start = position or {"in": None, "open": [], "drop": 0}
        self.node, self.room, self.saved = node, room, start
        self.bins = Bins(
            node.size, node.bins, node.strategy, [list(each) for each in start["open"]]
        )
        self.drop: int = start["drop"]
        self.input: Flow = open_at(start["in"])
        self.origin = _Origin(0, start["in"], self.bins.state(), 0)
        self.queue: list[Bin] = []
        self.made: Block | None = None
        self.start = self.given = 0
        self.error: DmlError | None = None
        self.ended = False

    def pull(self, most: int) -> Block | None:
        """Up to ``most`` packed rows."""
        while self.made is None:
            if self.ended:
                return None
            self._next()
        stop = min(self.start + most, self.made.n)
        out = self.made.slice(self.start, stop)
        self.given += stop - self.start
        self.start = stop
        if stop == self.made.n:
            self.made, self.queue, self.start = None, [], 0
        return out

    def _next(self) -> None:
        """Put the next block into bins."""
        if self.error is not None:
            raise self.error
        number, before = self.origin.number + 1, self.input.position()
        self.origin = _Origin(number, before, self.bins.state(), self.given)
        self.room.empty()
        self.room.held_bytes = GATHERED * sum(map(_bytes, self._chunks()))
        block = self.input.pull(CHUNK)
        if block is None:
            self.ended = True
            self.bins.end()
        else:
            self.room.take(block)
            self._add(block)
        closed, self.bins.closed = self.bins.closed, []
        again = min(self.drop, len(closed))
        self.drop, self.given, self.queue = self.drop - again, self.given + again, closed[again:]
        if self.queue:
            self.made = self._rows(self.queue)
        self._spare()

    def _add(self, block: Block) -> None:
        try:
            self.node.packed(block.schema)
        except SchemaError as error:
            raise error.located(self.node.label()) from None
        self.schema = block.schema
        chunk, sizes, self.error = chunk_of(self.node, block)
        starts = np.cumsum(sizes) - sizes
        if self.node.strategy != "concat_split" and self.node.long != "error":
            kept = self.node.size if self.node.long == "truncate" else 0
            sizes[sizes > self.node.size] = kept
        for row, (first, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            self.bins.add(chunk, row, first, size, self.origin)

    def _chunks(self) -> list[Chunk]:
        """What the open bins hold."""
        found = {id(c): c for each in self.bins.open for c, _, _ in each.pieces or ()}
        return list(found.values())

    def _spare(self) -> None:
        """Let go of tokens that no bin waits for, once they are many."""
        pieces = [piece for each in self.bins.open for piece in each.pieces or ()]
        wanted = sum(size for _, _, size in pieces)
        if sum(chunk.tokens for chunk in self._chunks()) <= 2 * wanted + SPARE_TOKENS:
            return
        chunk = Chunk(gathered(pieces) if pieces else {}, RowIds.none(), wanted)
        place = 0
        for each in self.bins.open:
            moved = []
            for _, _, size in each.pieces or ():
                moved.append((chunk, place, size))
                place += size
            each.pieces = None if each.pieces is None else moved

    def _rows(self, bins: list[Bin]) -> Block:
        """The rows that ``bins`` are."""
        pieces = [piece for each in bins for piece in _pieces(each)]
        sizes = np.array([size for _, _, size in pieces], dtype=np.int64)
        counts = np.array([len(_pieces(each)) for each in bins])
        firsts = np.cumsum(counts) - counts
        number = np.arange(len(sizes)) - np.repeat(firsts, counts) + 1
        columns = gathered(pieces)
        columns[SEGMENTS] = Vec(np.repeat(number, sizes).astype(np.int32), None)
        columns[POSITIONS] = Vec(
            spans(np.zeros(len(sizes), np.int64), sizes).astype(np.int32), None
        )
        tokens = np.add.reduceat(sizes, firsts)
        schema = self.node.packed(self.schema)
        made = [self._shaped(name, kind, columns[name], tokens) for name, kind in schema.items()]
        parts = np.array([each.part for each in bins], dtype=np.uint64)
        ids = RowIds.concat([each.row for each in bins]).derive(PACK + self.node.level, parts)
        return Block(schema, tuple(made), ids)

    def _shaped(self, name: str, kind: pa.DataType, flat: Values, tokens: np.ndarray) -> Values:
        if self.node.fill is None:
            offsets = np.concatenate([[0], np.cumsum(tokens)]).astype(np.int32)
            values = to_arrow(flat, kind.value_type)
            return pa.ListArray.from_arrays(pa.array(offsets), values)
        fill = self.node.filling(name, kind.value_type)
        out = np.full((len(tokens), self.node.size), fill, dtype=code_of(kind))
        out[np.arange(self.node.size) < tokens[:, None]] = getattr(flat, "values", flat)
        return Vec(out, None)

    def position(self) -> Position:
        """The input before the oldest row that is held, and what was given since."""
        if self.drop:
            return self.saved
        held = [*self.queue[self.start :], *self.bins.open]
        origins = [each.origin for each in held if isinstance(each.origin, _Origin)]
        origins += [self.origin] if self.error is not None else []
        if not origins:
            return {"in": self.input.position(), "open": [], "drop": 0}
        oldest = min(origins, key=_number)
        return {"in": oldest.before, "open": oldest.open, "drop": self.given - oldest.given}

    def close(self) -> None:
        """Close the input and drop what is held."""
        self.made, self.queue, self.bins.open = None, [], []
        self.input.close()


def _bytes(chunk: Chunk) -> int:
    return sum(map(held, chunk.columns.values()))


def _number(origin: _Origin) -> int:
    return origin.number


def _pieces(bin_: Bin) -> list[Piece]:
    if bin_.pieces is None:
        raise ResumeMismatchError(
            "the saved position of a pack holds rows that it does not lead to",
            why="a bin that was given before it was saved is not given by reading on",
            try_="a state as it was saved",
        )
    return bin_.pieces
