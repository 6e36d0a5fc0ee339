"""Value expressions are evaluated on blocks here, by the kernels; no other module does this."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dml.base.cached_property import remembered
from dml.data.block import Block, Values
from dml.data.schema import TYPES, Schema, short
from dml.errors import CastError, SchemaError
from dml.expr.columns.typing import Lowered, lower
from dml.expr.columns.value import Value, col, joined, rebuilt, value_text, walk
from dml.kernels.functions.function import NoSuchElementFailure, RefusedFailure, UnfitFailure
from dml.kernels.functions.table import functions
from dml.kernels.program import Rooms
from dml.kernels.rows.random import exact_name, row_key, row_name, uniform
from dml.kernels.vec import CastFailure, Vec

if TYPE_CHECKING:
    from dml.expr.flow import At


def shared(predicate: Sequence[Value], columns: Sequence[Value]) -> tuple[Value, ...]:
    """Return the maximal costly values that occur in both arguments and never raise an error.

    Only parts of ``predicate`` that are evaluated on all rows count: those before the first part
    that can raise.
    """
    sure = itertools.takewhile(lambda part: part.total, predicate)
    tried = {value for value in walk(sure) if _costly(value)}
    if not tried:
        return ()
    found: dict[Value, None] = {}
    stack, seen = list(columns), set[int]()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if _costly(value) and value.total and value in tried:
            found[value] = None
        else:
            stack += value.args
    return tuple(found)


def replaced(values: Iterable[Value], names: dict[Value, str]) -> list[Value]:
    """Return ``values`` with subexpressions in ``names`` replaced by columns of these names."""
    memo: dict[int, Value] = {}

    def better(value: Value) -> Value:
        made = memo.get(id(value))
        if made is None:
            known = names.get(value) if _costly(value) else None
            made = rebuilt(value, better) if known is None else col(known)
            memo[id(value)] = made
        return made

    return [better(value) for value in values]


def _costly(value: Value) -> bool:
    """Return True for functions of text, lists and times; reading a struct field costs nothing."""
    return "." in value.op and not value.op.startswith("struct.")


class Programs:
    """The kernel programs of ``values``, ``checks`` and ``keep``, lowered once per input schema."""

    def __init__(
        self, values: Sequence[Value], checks: Sequence[Value] = (), keep: Value | None = None
    ) -> None:
        self.values, self.checks, self.keep = tuple(values), tuple(checks), keep
        self.made: dict[Schema, Lowered] = {}

    def of(self, schema: Schema) -> Lowered:
        """Return the program for inputs of ``schema``; raise SchemaError if there is none."""
        found = self.made.get(schema)
        if found is None:
            found = self.made[schema] = lower(self.values, schema, self.checks, self.keep)
        return found


def evaluate(
    programs: Programs,
    block: Block,
    at: At,
    sel: np.ndarray | None = None,
    rooms: Rooms | None = None,
) -> Any:
    """Run a program on ``block``, on rows ``sel`` alone if given; return the ``Result``."""
    lowered = programs.of(block.schema)
    inputs = [_input(value, block, at) for value in lowered.inputs]
    result = at.compute.run(lowered.program, inputs, block.n, sel, rooms=rooms)
    for i, shape in lowered.tensors:
        result.outputs[i] = _shaped(result.outputs[i], shape)
    return result


def _shaped(found: Vec, shape: tuple[int, ...]) -> Vec:
    """Return a tensor column as (n, *shape), repeating values that the kernels returned as (n,)."""
    if found.values.ndim > 1:
        return found
    rows = found.values.reshape(-1, *(1,) * len(shape))
    return Vec(np.broadcast_to(rows, (len(rows), *shape)).copy(), found.valid)


def _input(value: Value, block: Block, at: At) -> Values:
    """Return a column of the block, or the values of a draw or row id for its rows."""
    if value.op == "col":
        return block[value.params[0]]
    high, low = block.ids.arrays()
    if value.op == "row_id":
        return exact_name(high, low) if value.params[0] else Vec(row_name(high, low))
    seed, stream, (ordinal, place) = value.params
    keys = row_key(high, low, at.key(seed), ordinal, at.epoch)
    return Vec(uniform(keys, (place << 20) + stream), None)


class Predicate:
    """A conjunction of ``parts``, evaluated in order.

    A part that may raise an error is evaluated only on the rows that the earlier parts kept.
    ``tried`` has groups of part indices in another order of evaluation, for parts that never raise
    an error.
    """

    def __init__(self, parts: Sequence[Value], tried: Sequence[Sequence[int]] = ()) -> None:
        groups = [[parts[place] for place in group] for group in tried]
        for part in () if groups else parts:
            if part.total and groups and groups[-1][0].total:
                groups[-1].append(part)
            else:
                groups.append([part])
        self.programs = [Programs([joined("and", group)]) for group in groups]
        self.parts = tuple(parts)
        self.checked: set[Schema] = set()

    def check(self, given: Schema) -> None:
        """Raise SchemaError unless every part is boolean; some types are known only at run time."""
        if self.parts and given not in self.checked:
            for part, kind in zip(self.parts, lower(self.parts, given).types, strict=True):
                if not pa.types.is_null(kind):
                    require_truth(part, kind, given)
            self.checked.add(given)

    def keep(self, block: Block, at: At) -> np.ndarray | None:
        """Return the ascending indices of rows where every part is true; None: all rows."""
        self.check(block.schema)
        index: np.ndarray | None = None
        for programs in self.programs:
            result = evaluate(programs, block, at, index)
            flags = truth(result.outputs[0], block.n if index is None else len(index))
            if flags.all():
                continue
            passed = np.flatnonzero(flags)
            index = passed if index is None else index[passed]
        return index


def require_truth(value: Value, kind: pa.DataType, given: Schema) -> None:
    """Raise SchemaError for a filter's predicate of another type than boolean."""
    if kind != pa.bool_():
        raise SchemaError(
            f"filter needs a boolean, {value_text(value)} is {short(kind)}",
            why=f"the input has {given}",
            try_="compare it, for instance (... != 0)",
        )


def truth(flags: Values, n: int) -> np.ndarray:
    """Return True where a boolean is true, and False where it is false or null: (n,) bool."""
    if not isinstance(flags, Vec):
        return np.zeros(n, dtype=bool)  # a column of type null
    values = flags.values if flags.valid is None else flags.values & flags.valid
    return np.broadcast_to(values, (n,))


class ComputedSegment:
    """A fused filter and projection: keeps rows by ``predicate``, then computes columns.

    ``names`` and ``values`` are the output columns; ``tried`` is the evaluation order of
    ``Predicate``.
    """

    def __init__(
        self,
        predicate: Sequence[Value],
        names: Sequence[str],
        values: Sequence[Value],
        tried: Sequence[Sequence[int]] = (),
    ) -> None:
        self.predicate = Predicate(predicate, tried)
        self.names = tuple(names)
        self.programs = Programs(values)
        # values that both compute
        twice = shared(predicate, values)
        self.first = Programs(twice) if twice else None

    @remembered
    def schema(self, given: Schema) -> Schema:
        """Return the names and types of the output columns, for blocks of schema ``given``."""
        return Schema(zip(self.names, self.programs.of(given).types, strict=True))

    def run(self, block: Block, at: At, rooms: Rooms | None = None) -> Iterator[Block]:
        """Yield the output block; if a strict cast fails, the rows before it, then raise.

        Columns of images are written to ``rooms`` if these have their shape.
        """
        try:
            yield self._whole(block, at, rooms)
        except CastFailure as failure:
            yield from self._until_failure(block, at, failure)

    def _whole(self, block: Block, at: At, rooms: Rooms | None = None) -> Block:
        schema = self.schema(block.schema)
        if self.first is not None and (found := self._later(block.schema)):
            wider, later = found
            made = evaluate(self.first, block, at).outputs
            given = Block(wider, (*block.columns, *made), block.ids)
            return later._whole(given, at, rooms)  # noqa: SLF001
        kept = self.predicate.keep(block, at)
        ids = block.ids if kept is None else block.ids.take(kept)
        result = evaluate(self.programs, block, at, kept, rooms)
        return Block(schema, tuple(result.outputs), ids)

    @remembered
    def _later(self, given: Schema) -> tuple[Schema, ComputedSegment] | None:
        """Return ``given`` with a column for each of the values ``first``, and a segment over it.

        ``first`` are the values that predicate and columns share; the segment reads their columns.
        Return None without them, or if the type of an output column would change.
        """
        if self.first is None:
            return None
        names = {value: f"shared {n}" for n, value in enumerate(self.first.values, 1)}
        kinds = zip(names.values(), self.first.of(given).types, strict=True)
        predicate = replaced(self.predicate.parts, names)
        made = ComputedSegment(predicate, self.names, replaced(self.programs.values, names))
        wider = Schema((*given.items(), *kinds))
        same = not given.keys() & set(names.values()) and made.schema(wider) == self.schema(given)
        return (wider, made) if same else None

    def _until_failure(self, block: Block, at: At, failure: CastFailure) -> Iterator[Block]:
        """Yield the rows before the first row whose cast fails (by bisection), then raise."""
        low, high = 0, block.n
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self._whole(block.slice(low, middle), at)
                low = middle
            except CastFailure as earlier:
                high, failure = middle, earlier
        if low:
            yield self._whole(block.slice(0, low), at)
        raise _cast_error(failure, block, low)


# What a namespace's functions refuse.
REFUSED = {"boxes": "boxes", "audio": "sound", "video": "video"}


def _cast_error(failure: CastFailure, block: Block, row: int) -> CastError:
    if isinstance(failure, NoSuchElementFailure):
        error = CastError(
            f"list.get({failure.code}) meets a list of length {failure.value}",
            why="it has no such element",
            try_=".list.get(..., null_on_oob=True) gives null instead",
        )
    elif isinstance(failure, UnfitFailure):
        name, (_, try_) = failure.code.removeprefix("."), functions()[failure.code].refusal
        error = CastError(
            f"{name} refuses the {REFUSED.get(name.partition('.')[0], 'image')}",
            why=str(failure.value),
            try_=try_,
        )
    elif isinstance(failure, RefusedFailure):
        why, try_ = functions()[failure.code].refusal
        name = failure.code.removeprefix(".")
        error = CastError(f"{name} meets {failure.value!r}", why=why, try_=try_)
    else:
        error = CastError(
            f"the cast meets {failure.value!r}, which does not fit",
            why=f"{TYPES.get(failure.code, failure.code)} cannot hold it",
            try_=".cast(..., strict=False) gives null instead",
        )
    error.row_id = block.ids.slice(row, row + 1)  # type: ignore[attr-defined]
    return error
