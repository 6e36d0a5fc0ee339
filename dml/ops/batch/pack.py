"""``pack`` joins the lists of several rows into one row with a bounded number of tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.base.cached_property import remembered
from dml.checks import element_count
from dml.data.block import Block, Values, column_bytes, join, mask, take, to_arrow
from dml.data.list_marks import plain
from dml.data.schema import Schema, code_of, shape_of, short, tensor
from dml.errors import (
    CastError,
    DmlError,
    NullValueError,
    PlanError,
    ResumeMismatchError,
    SchemaError,
)
from dml.expr.facts import ResumeCost, Rows
from dml.expr.flow import CHUNK, GATHERED, GatherQuota
from dml.expr.node import Node, op
from dml.expr.user_call import blamed
from dml.kernels.rows.ids import RowIds
from dml.kernels.vec import Vec
from dml.ops.batch.bucket_by_length import absent
from dml.ops.batch.pad import Given, fill_as
from dml.ops.row.explode import ExplodedLists, lists_of

if TYPE_CHECKING:
    from dml.expr.flow import At, Flow, Opener, Position

STRATEGIES = ("first_fit", "best_fit", "concat_split")


@dataclasses.dataclass(eq=False, slots=True)
class TokenChunk:
    """The tokens of a block's rows, end to end, at the same offsets in all list columns.

    ``ids`` are the ids of these rows, ``tokens`` is the number of tokens in each column.
    """

    columns: dict[str, Values]
    ids: RowIds
    tokens: int


Piece: TypeAlias = "tuple[TokenChunk, int, int]"
"""A run of tokens of one row: their chunk, the offset of the first, and their number."""


@dataclasses.dataclass(eq=False, slots=True)
class Bin:
    """A packed row that is being filled, with room for ``free`` more tokens.

    ``pieces`` is None for a bin of a resumed run whose packed row was emitted before. The id of the
    packed row is derived from the id of the first piece's row (``row``) and the number of that
    piece within its row (``part``). ``origin`` is the ``_Origin`` of that row's block.
    """

    number: int
    free: int
    pieces: list[Piece] | None
    row: RowIds = dataclasses.field(default_factory=RowIds.none)
    part: int = 0
    origin: object = None


class Bins:
    """The open bins, oldest first, and the ``closed`` bins, in the order of their emission.

    A row goes to the oldest open bin with room, or with "best_fit" to the one with least room. If
    none has room, a new bin is opened; a bin is closed when it is full, or ``most`` bins old.
    """

    def __init__(self, size: int, most: int, strategy: str, state: list[list[int]]) -> None:
        self.size, self.most = size, most
        self.split, self.best = strategy == "concat_split", strategy == "best_fit"
        self.open = [Bin(-age, free, None) for age, free in state]
        self.next = 0
        self.closed: list[Bin] = []

    def state(self) -> list[list[int]]:
        """Return for each open bin its age (bins opened since, itself included) and free tokens."""
        return [[self.next - each.number, each.free] for each in self.open]

    def add(self, chunk: TokenChunk, row: int, start: int, size: int, origin: object) -> None:
        """Put the ``size`` tokens of row ``row`` of ``chunk``, which begin at ``start``, into bins.

        Only "concat_split" divides a row between bins; otherwise ``size`` is at most a bin's size.
        """
        part = 0
        while size:
            target = self._target(1 if self.split else size)
            if target is None:
                target = self._opened(chunk.ids.take(np.array([row])), part, origin)
            taken = min(size, target.free)
            if target.pieces is not None:
                target.pieces.append((chunk, start, taken))
            target.free -= taken
            if not target.free:
                self.open.remove(target)
                self.closed.append(target)
            start, size, part = start + taken, size - taken, part + 1

    def _target(self, size: int) -> Bin | None:
        fitting = (each for each in self.open if each.free >= size)
        if self.best:
            return min(fitting, key=attrgetter("free"), default=None)
        return next(fitting, None)

    def _opened(self, row: RowIds, part: int, origin: object) -> Bin:
        while self.open and self.next - self.open[0].number >= self.most:
            self.closed.append(self.open.pop(0))
        made = Bin(self.next, self.size, [], row, part, origin)
        self.next += 1
        self.open.append(made)
        return made

    def end(self) -> None:
        """Close all open bins."""
        self.closed += self.open
        self.open = []


def gathered(pieces: list[Piece]) -> dict[str, Values]:
    """Return the tokens of ``pieces``, end to end, by column."""
    chunks = list({id(chunk): chunk for chunk, _, _ in pieces}.values())
    of = {id(chunk): number for number, chunk in enumerate(chunks)}
    which = np.array([of[id(chunk)] for chunk, _, _ in pieces], dtype=np.intp)
    starts = np.array([start for _, start, _ in pieces], dtype=np.int64)
    sizes = np.array([size for _, _, size in pieces], dtype=np.int64)
    parts: list[dict[str, Values]] = []
    for n, chunk in enumerate(chunks):
        tokens = spans(starts[which == n], sizes[which == n])
        parts.append({name: take(values, tokens) for name, values in chunk.columns.items()})
    if len(parts) == 1:
        return parts[0]
    whose = np.repeat(which, sizes)
    places = np.empty(len(whose), dtype=np.intp)
    places[np.argsort(whose, kind="stable")] = np.arange(len(whose))
    return {name: take(join([part[name] for part in parts]), places) for name in parts[0]}


def spans(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the token offsets of runs, end to end; run i has ``sizes[i]`` from ``starts[i]``."""
    before = np.cumsum(sizes) - sizes
    places: np.ndarray = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
    return places


# Rows (n,) that cannot be packed for one reason, and a function from a row to its error.
Wrong = tuple[np.ndarray, Callable[[int], DmlError]]


def chunk_of(node: Pack, block: Block) -> tuple[TokenChunk, np.ndarray, DmlError | None]:
    """Return the tokens before the first invalid row, the rows' sizes, and its error or None."""
    lists = {name: lists_of(block[name]) for name in block.schema}
    sizes = lists[node.column].sizes
    wrong = [found for found in _wrong(node, block, lists) if len(found[0])]
    error, stop = None, len(sizes)
    if wrong:
        rows, make = min(wrong, key=lambda each: int(each[0][0]))
        stop = int(rows[0])
        error = blamed(make(stop), block.ids, stop)
    sizes = sizes[:stop].copy()
    columns = {name: _flat(node, each, stop) for name, each in lists.items()}
    return TokenChunk(columns, block.ids, int(sizes.sum())), sizes, error


def _wrong(node: Pack, block: Block, lists: dict[str, ExplodedLists]) -> Iterator[Wrong]:
    """Yield, for each reason, the rows (n,) that cannot be packed, and a maker of their error."""
    sizes = lists[node.column].sizes
    yield absent(block[node.column]), partial(_hole, node, node.column)
    if node.strategy != "concat_split" and node.long == "error":
        yield np.flatnonzero(sizes > node.size), partial(_too_long, node, sizes)
    for name, each in lists.items():
        differing = np.flatnonzero(each.sizes != sizes)
        yield differing, partial(_uneven, node, name, each.sizes, sizes)
        if node.fill is not None and isinstance(each.values, Vec) and each.values.code[0] != "f":
            holes = np.flatnonzero(~mask(each.values))
            rows = np.searchsorted(each.starts + each.sizes, holes, side="right")
            yield rows, partial(_hole, node, name)


def _flat(node: Pack, lists: ExplodedLists, stop: int) -> Values:
    """Return the tokens of the first ``stop`` rows, end to end; with a fill, nulls become NaN."""
    starts, sizes = lists.starts[:stop], lists.sizes[:stop]
    values = take(lists.values, spans(starts, sizes))
    if node.fill is None or not isinstance(values, Vec) or values.valid is None:
        return values
    return Vec(np.where(values.valid, values.values, np.nan).astype(values.values.dtype), None)


def _hole(node: Pack, name: str, _row: int) -> DmlError:
    return NullValueError(
        f"pack meets a null in {name!r}",
        at=node.label(),
        why="a null has no tokens, and none can stand in an array of whole numbers",
        try_=f".filter(~col({name!r}).is_null()) before it, or no pad_value",
    )


def _uneven(node: Pack, name: str, sizes: np.ndarray, wanted: np.ndarray, row: int) -> DmlError:
    return CastError(
        f"pack meets {sizes[row]} values in {name!r} beside {wanted[row]} in {node.column!r}",
        at=node.label(),
        why="lists of a row stand side by side: a value for each token",
        try_=f".drop({name!r}), or lists of one length",
    )


def _too_long(node: Pack, sizes: np.ndarray, row: int) -> DmlError:
    return CastError(
        f"a list of {sizes[row]} in {node.column!r} does not fit into max_tokens={node.size}",
        at=node.label(),
        why="a row stays whole, unless it is said what becomes of one that is too long",
        try_='long="truncate", long="drop", or strategy="concat_split"',
    )


PACK = int.from_bytes(b"pack", "big")
LONG = ("error", "truncate", "drop")
# The saved state of this many bins takes at most 4 kB.
MOST_BINS = 256
SEGMENTS, POSITIONS = "segment_ids", "positions"
# Unused tokens are dropped once they exceed the tokens in open bins by more than this number.
SPARE_TOKENS = 1 << 16


@op
class Pack(Node):
    """Joins the lists of several rows into packed rows of at most ``size`` tokens.

    Which rows share a packed row follows from the lengths of their lists in ``column`` (see
    ``Bins``). The lists of all other columns have the same lengths and are joined alike. Two
    columns are added: ``segment_ids`` numbers the rows in a packed row from 1, ``positions`` the
    tokens of each row from 0. With ``fill`` every column is a tensor of ``size`` tokens, padded
    with ``fill``, the added columns with 0. A row of more than ``size`` tokens is split by the
    strategy "concat_split"; otherwise ``long`` says what becomes of it.
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
        """Raise PlanError for invalid sizes, unknown option words, and a batched input."""
        element_count("pack max_tokens", self.size, least=1)
        element_count("pack bins", self.bins, least=1)
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

    @remembered
    def schema_over(self, given: Schema) -> Schema:
        """Return the schema of rows packed from ``given``; raise SchemaError for non-lists."""
        given.require(self.column, "pack")
        for name in (SEGMENTS, POSITIONS, *self._filled):
            _present(given, name, wanted=name in self._filled)
        kinds = {name: self._kind(name, element_of(name, kind)) for name, kind in given.items()}
        added = dict.fromkeys((SEGMENTS, POSITIONS), self._shape(pa.int32()))
        return Schema({**kinds, **added})

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
        """Return the padding of column ``name``; None if its element type cannot hold it."""
        if name in {SEGMENTS, POSITIONS}:
            return 0
        code = code_of(inner)
        return None if code == "arrow" else fill_as(self._value(name), code)

    @property
    def resume_cost(self) -> ResumeCost:
        """Return the cost of resuming: the bins' room is saved, their rows are read again."""
        rows, work = self.bins * self.size, f"back to the oldest row in {self.bins} bins"
        return ResumeCost(state_bytes=64 + 14 * self.bins, work_rows=rows, work=work)

    def flow(self, open_input: Opener, epoch: int, position: Position | None, at: At) -> Flow:
        """Open a flow that packs rows into bins."""
        room = GatherQuota(self, at.hold_bytes)
        return _Packing(self, partial(open_input, epoch), position, room)

    def parameters_text(self) -> str:
        """Return the column, the size, and the strategy with its options as text."""
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
    """Return the element type of list column ``name``; raise SchemaError for other columns."""
    kind = plain(kind)
    if isinstance(kind, pa.FixedShapeTensorType) and len(shape_of(kind)) == 1:
        return kind.value_type
    if is_list(kind):
        inner = kind.value_type
        return inner.value_type if pa.types.is_dictionary(inner) else inner
    raise SchemaError(
        f"pack cannot join {name!r}, which is {short(kind)}",
        why="rows become parts of one row, and only lists can be joined",
        try_=f".drop({name!r}), or .select(...) of the lists",
    )


@dataclasses.dataclass(eq=False)
class _Origin:
    """A point to resume from: ``before`` block ``number`` of the input, with ``open`` bins.

    ``given`` counts the packed rows that were returned before this point.
    """

    number: int
    before: Position | None
    open: list[list[int]]
    given: int


class _Packing:
    """A flow of packed rows: ``made`` has those of ``queue``, returned up to index ``start``."""

    def __init__(
        self, node: Pack, open_at: Any, position: Position | None, room: GatherQuota
    ) -> None:
        start = position or {"in": None, "open": [], "drop": 0}
        self.node, self.room, self.saved = node, room, start
        self.bins = Bins(node.size, node.bins, node.strategy, start["open"])
        self.drop: int = start["drop"]
        self.input: Flow = open_at(start["in"])
        self.origin = _Origin(0, start["in"], self.bins.state(), 0)
        self.queue: list[Bin] = []
        self.made: Block | None = None
        self.start = self.given = 0
        self.error: DmlError | None = None
        self.ended = False

    def pull(self, most: int) -> Block | None:
        """Return up to ``most`` packed rows; None at the end."""
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
        """Put the rows of the next input block into bins, and build the rows of closed bins."""
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
            self.node.schema_over(block.schema)
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

    def _chunks(self) -> list[TokenChunk]:
        """Return the chunks that the open bins refer to."""
        found = {id(c): c for each in self.bins.open for c, _, _ in each.pieces or ()}
        return list(found.values())

    def _spare(self) -> None:
        """Drop tokens that no open bin uses, once they are many."""
        pieces = [piece for each in self.bins.open for piece in each.pieces or ()]
        wanted = sum(size for _, _, size in pieces)
        if sum(chunk.tokens for chunk in self._chunks()) <= 2 * wanted + SPARE_TOKENS:
            return
        chunk = TokenChunk(gathered(pieces) if pieces else {}, RowIds.none(), wanted)
        place = 0
        for each in self.bins.open:
            moved = []
            for _, _, size in each.pieces or ():
                moved.append((chunk, place, size))
                place += size
            each.pieces = None if each.pieces is None else moved

    def _rows(self, bins: list[Bin]) -> Block:
        """Build the packed rows of ``bins``."""
        pieces = [piece for each in bins for piece in _pieces(each)]
        sizes = np.array([size for _, _, size in pieces], dtype=np.int64)
        counts = np.array([len(_pieces(each)) for each in bins])
        firsts = np.cumsum(counts) - counts
        number = np.arange(len(sizes)) - np.repeat(firsts, counts) + 1
        columns = gathered(pieces)
        columns[SEGMENTS] = Vec(np.repeat(number, sizes).astype(np.int32), None)
        places = spans(np.zeros(len(sizes), np.int64), sizes)
        columns[POSITIONS] = Vec(places.astype(np.int32), None)
        tokens = np.add.reduceat(sizes, firsts)
        schema = self.node.schema_over(self.schema)
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
        """Return the point before the oldest buffered row, and the packed rows returned since."""
        if self.drop:
            return self.saved
        held = [*self.queue[self.start :], *self.bins.open]
        origins = [each.origin for each in held if isinstance(each.origin, _Origin)]
        origins += [self.origin] if self.error is not None else []
        if not origins:
            return {"in": self.input.position(), "open": [], "drop": 0}
        oldest = min(origins, key=attrgetter("number"))
        return {"in": oldest.before, "open": oldest.open, "drop": self.given - oldest.given}

    def close(self) -> None:
        """Close the input and drop the buffered rows."""
        self.made, self.queue, self.bins.open = None, [], []
        self.input.close()


def _bytes(chunk: TokenChunk) -> int:
    return sum(map(column_bytes, chunk.columns.values()))


def _pieces(bin_: Bin) -> list[Piece]:
    if bin_.pieces is None:
        raise ResumeMismatchError(
            "the saved position of a pack holds rows that it does not lead to",
            why="a bin that was given before it was saved is not given by reading on",
            try_="a state as it was saved",
        )
    return bin_.pieces
