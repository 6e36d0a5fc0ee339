"""This file computes value expressions on blocks: the one way from expressions to kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dml.errors import CastError, SchemaError
from dml.expr.block import Block, Values
from dml.expr.schema import TYPES, Schema, short
from dml.expr.sharing import replaced, shared
from dml.expr.typing import Lowered, lower
from dml.expr.value import Value, conjunction, shown
from dml.kernels.functions.function import NoSuchElementFailure, RefusedFailure
from dml.kernels.functions.table import FUNCTIONS
from dml.kernels.ids import RowIds
from dml.kernels.random import exact_name, row_key, row_name, uniform
from dml.kernels.vec import CastFailure, Vec

if TYPE_CHECKING:
    from dml.expr.flow import At


class Programs:
    """Programs of one set of values, lowered once per input schema."""

    def __init__(
        self, values: Sequence[Value], checks: Sequence[Value] = (), keep: Value | None = None
    ) -> None:
        self.values, self.checks, self.keep = tuple(values), tuple(checks), keep
        self.made: dict[Schema, Lowered] = {}

    def of(self, schema: Schema) -> Lowered:
        """The program for inputs of ``schema``; SchemaError if it has none."""
        found = self.made.get(schema)
        if found is None:
            found = self.made[schema] = lower(self.values, schema, self.checks, self.keep)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Selected:
    """Rows of a block that are kept: positions in ascending order, or None for all."""

    index: np.ndarray | None

    def of(self, ids: RowIds) -> RowIds:
        """The ids of the kept rows."""
        return ids if self.index is None else ids.take(self.index)


def evaluate(programs: Programs, block: Block, at: At, sel: np.ndarray | None = None) -> Any:
    """Run the program on ``block`` (rows ``sel`` only): the kernels' Result."""
    lowered = programs.of(block.schema)
    inputs = [_input(value, block, at) for value in lowered.inputs]
    result = at.compute.run(lowered.program, inputs, block.n, sel)
    for i, shape in lowered.tensors:
        result.outputs[i] = _shaped(result.outputs[i], shape)
    return result


def _shaped(found: Vec, shape: tuple[int, ...]) -> Vec:
    """A tensor column that was one literal (n,), written out to (n, *shape)."""
    if found.values.ndim > 1:
        return found
    rows = found.values.reshape(-1, *(1,) * len(shape))
    return Vec(np.broadcast_to(rows, (len(rows), *shape)).copy(), found.valid)


def _input(value: Value, block: Block, at: At) -> Values:
    """A column of the block, or the draws of a random value for its rows."""
    if value.op == "col":
        return block[value.params[0]]
    high, low = block.ids.arrays()
    if value.op == "row_id":
        return exact_name(high, low) if value.params[0] else Vec(row_name(high, low))
    seed, stream, (ordinal, place) = value.params
    keys = row_key(high, low, at.key(seed), ordinal, at.epoch)
    return Vec(uniform(keys, (place << 20) + stream), None)


class Predicate:
    """A conjunction, evaluated so that a part that may fail sees only rows that passed before.

    ``tried`` are groups of places of parts, none of which may fail, in the order to try them in.
    """

    def __init__(self, parts: Sequence[Value], tried: Sequence[Sequence[int]] = ()) -> None:
        groups = [[parts[place] for place in group] for group in tried]
        for part in () if groups else parts:
            if part.total and groups and groups[-1][0].total:
                groups[-1].append(part)
            else:
                groups.append([part])
        self.programs = [Programs([conjunction(group)]) for group in groups]
        self.parts = tuple(parts)
        self.checked: set[Schema] = set()

    def check(self, given: Schema) -> None:
        """SchemaError unless every part is boolean: known only now after a user's function."""
        if self.parts and given not in self.checked:
            for part, kind in zip(self.parts, lower(self.parts, given).types, strict=True):
                if kind not in (pa.bool_(), pa.null()):
                    raise no_truth(part, kind, given)
            self.checked.add(given)

    def keep(self, block: Block, at: At) -> Selected:
        """The rows where every part is true (null is not)."""
        self.check(block.schema)
        index: np.ndarray | None = None
        for programs in self.programs:
            result = evaluate(programs, block, at, index)
            flags = truth(result.outputs[0], block.n if index is None else len(index))
            if flags.all():
                continue
            passed = np.flatnonzero(flags)
            index = passed if index is None else index[passed]
        return Selected(index)


def no_truth(value: Value, kind: pa.DataType, given: Schema) -> SchemaError:
    """The error for a predicate that is not boolean."""
    return SchemaError(
        f"filter needs a boolean, {shown(value)} is {short(kind)}",
        why=f"the input has {given}",
        try_="compare it, for instance (... != 0)",
    )


def truth(flags: Values, n: int) -> np.ndarray:
    """True where a boolean is true, False where it is false or null: (n,) bool."""
    if not isinstance(flags, Vec):
        return np.zeros(n, dtype=bool)  # a column that is null throughout, of no other type
    values = flags.values if flags.valid is None else flags.values & flags.valid
    return np.broadcast_to(values, (n,))


class Segment:
    """Keep rows by a predicate over the input's columns, then compute the output columns."""

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
        self.schemas: dict[Schema, Schema] = {}
        # what both would compute, and the same segment over blocks that have it as columns
        twice = shared(predicate, values)
        self.first = Programs(twice) if twice else None
        self.later: dict[Schema, tuple[Schema, Segment] | None] = {}

    def schema(self, given: Schema) -> Schema:
        """Names and types of the output columns."""
        found = self.schemas.get(given)
        if found is None:
            kinds = self.programs.of(given).types
            found = self.schemas[given] = Schema(zip(self.names, kinds, strict=True))
        return found

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """One output block; where a strict cast fails, the rows before it and then the error."""
        try:
            yield self._whole(block, at)
        except CastFailure as failure:
            yield from self._until_failure(block, at, failure)

    def _whole(self, block: Block, at: At) -> Block:
        schema = self.schema(block.schema)
        if self.first is not None and (found := self._later(self.first, block.schema)):
            wider, later = found
            made = evaluate(self.first, block, at).outputs
            return later._whole(Block(wider, (*block.columns, *made), block.ids), at)  # noqa: SLF001
        kept = self.predicate.keep(block, at)
        ids = kept.of(block.ids)
        result = evaluate(self.programs, block, at, kept.index)
        return Block(schema, tuple(result.outputs), ids)

    def _later(self, first: Programs, given: Schema) -> tuple[Schema, Segment] | None:
        """The wider schema and the segment over it; None where a type would not be the same."""
        if given not in self.later:
            names = {value: f"shared {n}" for n, value in enumerate(first.values, 1)}
            kinds = zip(names.values(), first.of(given).types, strict=True)
            predicate = replaced(self.predicate.parts, names)
            made = Segment(predicate, self.names, replaced(self.programs.values, names))
            wider = Schema((*given.items(), *kinds))
            same = not given.keys() & set(names.values()) and made.schema(wider) == self.schema(
                given
            )
            self.later[given] = (wider, made) if same else None
        return self.later[given]

    def _until_failure(self, block: Block, at: At, failure: CastFailure) -> Iterator[Block]:
        """Find the first input row whose cast fails: by halves, since rows are independent."""
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


def _cast_error(failure: CastFailure, block: Block, row: int) -> CastError:
    if isinstance(failure, NoSuchElementFailure):
        error = CastError(
            f"list.get({failure.code}) meets a list of length {failure.value}",
            why="it has no such element",
            try_=".list.get(..., null_on_oob=True) gives null instead",
        )
    elif isinstance(failure, RefusedFailure):
        why, try_ = FUNCTIONS[failure.code].refusal
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
