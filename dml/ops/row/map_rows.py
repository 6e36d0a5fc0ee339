"""``map`` replaces each row by the result of a user's function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dml.base.cached_property import cached_property
from dml.data.batch_trays import CopiedRows, TrayDesk
from dml.data.block import Block, concat
from dml.data.row_slicing import (
    ROW_SHARE,
    SETTLING_BYTES,
    SETTLING_ROWS,
    CallPace,
    by_weight,
    unfit,
    weighed,
)
from dml.data.schema import UNKNOWN, Schema
from dml.errors import DmlError, InternalError, MemoryContractError
from dml.expr.columns.typing import lower
from dml.expr.facts import Needs
from dml.expr.node import Node, op
from dml.expr.user_call import UserFunction, blamed, raised
from dml.kernels.rows.ids import RowIds
from dml.ops.function_node import FunctionNode
from dml.udfs.calling import python_rows as convert
from dml.udfs.calling.error_policy import RAISE
from dml.udfs.calling.python_rows import each_row
from dml.udfs.calling.type_inference import Calls, Returned, called_apart, heavy

if TYPE_CHECKING:
    from dml.expr.flow import At
    from dml.udfs.lifting.lifter import Lifted


def returned(
    node: Node,
    fn: UserFunction,
    out: list[Any],
    ids: RowIds,
    at: At,
    *,
    parents: RowIds | None = None,
) -> Iterator[Block]:
    """Yield the rows ``out`` that ``fn`` returned as blocks, settling the schema if needed.

    If a row does not fit the schema, or is too large, the rows before it are yielded; the error
    that is then raised names the row of ``parents`` (None: of ``ids``) from which the row was
    computed. All operators that call a function per row use this; the settled schema is stored
    under the digest of ``node``.
    """
    key = node.digest.hex()
    schema = node.schema if node.schema.known else at.schemas.get(key)
    heavy = unfit(out, schema, at.hold_bytes // ROW_SHARE)
    if heavy is not None:
        if heavy[0]:
            yield from returned(node, fn, out[: heavy[0]], ids, at, parents=parents)
        found = _too_large(fn, heavy[1], at).located(node.label())
        raise blamed(found, ids if parents is None else parents, heavy[0])
    try:
        made = convert.to_block(out, schema, ids.slice(0, len(out)), fn.fresh)
    except convert.UnfitError as other:
        if other.row:
            yield from returned(node, fn, out[: other.row], ids, at, parents=parents)
        error = other.as_error(fn.name).located(node.label())
        raise blamed(error, ids if parents is None else parents, other.row) from None
    if not node.schema.known:  # a declared schema is settled by no row
        at.schemas.setdefault(key, made.schema)
    yield made


def typed(node: FunctionNode, made: Returned, at: At) -> Iterator[Block]:
    """Yield the results ``made`` as blocks, then raise the error that followed them, if any."""
    if made.out:
        ids = made.ids.slice(0, len(made.out))
        yield from returned(node, node.fn, made.out, ids, at, parents=made.parents)
    if made.error is not None:
        # raised again for each slice of later rows, which would add frames
        raise made.error.with_traceback(None)


def _too_large(fn: UserFunction, nbytes: int, at: At) -> MemoryContractError:
    return MemoryContractError(
        f"what {fn.name} returned does not fit into the memory number",
        why=f"it takes {nbytes} bytes; a row may take {at.hold_bytes // ROW_SHARE}",
        try_="a larger memory_limit=, fewer num_workers=, or smaller rows",
    )


def mapped(node: FunctionNode, block: Block, at: At, call: Calls) -> Iterator[Block]:
    """Yield the results of ``node``'s function for ``block``, in blocks of limited size.

    ``call`` calls the function on a range of rows. If the types are not known yet, the first rows
    settle them: all of these are computed before one is returned. Block boundaries are the same as
    with known types, because a repeated task knows the types.
    """

    def part(desk: TrayDesk, start: int, stop: int) -> Iterator[Block]:
        out = desk.rows(start, stop, proven=not node.fn.may_hold)
        places, error = call(start, stop, out)
        if out:
            yield from returned(node, node.fn, out, _ids_of(block, places), at)
        if error is not None:
            raise raised(error, node.fn, block.ids, start + len(out)).located(node.label())

    schema = node.schema if node.schema.known else at.schemas.get(node.digest.hex())
    if schema is not None or not block.n:
        schema = schema or UNKNOWN
        desk = at.trays.desk(node.digest, schema, block.ids, at.epoch)
        yield from by_weight(block.n, schema, partial(part, desk), desk.edge)
    else:
        yield from _Settling(node, block, at, call).run(part)


def _ids_of(block: Block, places: np.ndarray) -> RowIds:
    """Return the ids of the rows at indices ``places`` (ascending); a range needs no id array."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return block.ids.slice(first, last + 1)
    return block.ids.take(places)


class _Settling:
    """Computes the first rows of a block, which settle the types: 64 rows, or 4 MiB of values."""

    def __init__(self, node: FunctionNode, block: Block, at: At, call: Calls) -> None:
        self.node, self.block, self.at = node, block, at
        out: list[Any] = []
        places: list[np.ndarray] = []
        weight, pace, self.done = 0, CallPace(None), 0
        error: BaseException | None = None
        while error is None and self._lacking(out, weight):
            new = CopiedRows()
            most = SETTLING_ROWS if self.done < SETTLING_ROWS else block.n
            stop = min(self.done + pace.step, most, block.n)
            kept, error = call(self.done, stop, new)
            new_bytes = weighed(new)
            pace.record(stop - self.done, new_bytes)
            weight += new_bytes
            out += new
            places.append(kept)
            self.done = stop
        self.places = np.concatenate(places)
        self.error = error and raised(error, node.fn, block.ids, len(out)).located(node.label())
        if weight >= SETTLING_BYTES:
            first = heavy(out, SETTLING_BYTES)
            _before_error(node, block, out[:first], self.places[:first], at)
        self.made, error = _before_error(node, block, out, self.places, at)
        if self.made is not None and weight >= SETTLING_BYTES:
            self.made = self.made.bare()  # large values are not in memory twice
        self.error = error or self.error

    def _lacking(self, out: list[Any], weight: int) -> bool:
        many = self.done >= SETTLING_ROWS or weight >= SETTLING_BYTES
        enough = len(out) > 0 and many
        return self.done < self.block.n and not enough

    def run(self, part: Callable[[TrayDesk, int, int], Iterator[Block]]) -> Iterator[Block]:
        """Yield the results for all rows; ``part`` computes those after the first rows."""
        digest = self.node.digest
        schema = self.at.schemas.get(digest.hex())
        desk = self.at.trays.desk(digest, schema or UNKNOWN, self.block.ids, self.at.epoch)

        def work(start: int, stop: int) -> Iterator[Block]:
            for made in self._some(start, stop):
                yield desk.moved(made, start)
            if stop > self.done:
                yield from part(desk, max(start, self.done), stop)

        if schema is not None:
            yield from by_weight(self.block.n, schema, work, desk.edge)
        elif self.error is not None:
            raise self.error

    def _some(self, start: int, stop: int) -> Iterator[Block]:
        """Yield the results of rows ``start`` to ``stop`` of the first rows; raise their error."""
        low, high = np.searchsorted(self.places, (start, stop)).tolist()
        rows = 0 if self.made is None else self.made.n
        if self.made is not None and low < min(high, rows):
            yield self.made.slice(low, min(high, rows))
        if self.error is not None and start < self.done and self._failed_at(rows) < stop:
            raise self.error

    def _failed_at(self, rows: int) -> int:
        """Return the index of the row that failed: the first without a result."""
        return int(self.places[rows]) if rows < len(self.places) else rows


def _before_error(
    node: FunctionNode, block: Block, out: list[Any], places: np.ndarray, at: At
) -> tuple[Block | None, DmlError | None]:
    """Return the results before the first invalid one as a block, and the error of that one.

    The block is None if the first result is invalid or missing; the error is None if all are valid.
    """
    made: list[Block] = []
    error: DmlError | None = None
    try:
        if out:
            made.extend(returned(node, node.fn, out, _ids_of(block, places), at))
    except DmlError as found:
        error = found
    return (made[0] if len(made) == 1 else concat(made) if made else None), error


class OneToOne(FunctionNode):
    """The base of operators whose function makes one row of each row."""

    places: ClassVar[bool] = True

    def _calls(self, block: Block, at: At) -> Calls:
        raise InternalError(f"{type(self).__name__} calls no function")

    def run(self, block: Block, at: At) -> Iterator[Block]:
        """Yield the mapped rows; raise an error of the function after the rows before it."""
        return mapped(self, block, at, self._calls(block, at))

    def returned(self, block: Block, at: At) -> Iterator[Returned]:
        """Yield the values that the function returns, before their types are known."""
        return called_apart(self, block, self._calls(block, at))

    def typed(self, made: Returned, at: At) -> Iterator[Block]:
        """Yield the results ``made`` as blocks, then raise the function's error, if any."""
        return typed(self, made, at)


@op
class MapRows(OneToOne):
    """MapRows replaces each row by the dict that ``fn`` returns for the row's dict.

    ``fn`` is called once per row in runs without failures. The output schema is ``declared``, or
    that of the expressions that ``fn`` is proven to equal, or settled by the first rows in source
    order; later rows must fit it. A UDFError names the row for which ``fn`` raised; with
    ``on_error="skip"`` the row is dropped instead.
    """

    input: Node
    fn: UserFunction
    declared: Schema | None
    needs: Needs = Needs()
    on_error: str = RAISE

    version: ClassVar[int] = 2

    @cached_property
    def lifted(self) -> Lifted | None:
        """Return the expressions that ``fn`` is proven to equal; None without a proof."""
        if self.declared is not None or not self.input.schema.known:
            return None
        if self.fn.declared is False:
            return None
        from dml.udfs.lifting.lifter import Lifted, lift  # noqa: PLC0415 - 7 ms, for row functions alone

        found = lift(self.fn.code, self.input.schema)
        return found if isinstance(found, Lifted) and found.columns is not None else None

    def infer(self) -> Schema:
        """Return the declared schema, else the proven one (even if lifting is off), or UNKNOWN."""
        if self.lifted is None:
            return super().infer()
        names = [name for name, _ in self.lifted.columns or ()]
        values = [value for _, value in self.lifted.columns or ()]
        return Schema(zip(names, lower(values, self.input.schema).types, strict=True))

    def _calls(self, block: Block, at: At) -> Calls:
        return partial(self._call, block, at)

    def _call(
        self, block: Block, at: At, start: int, stop: int, out: list[Any]
    ) -> tuple[np.ndarray, BaseException | None]:
        part = block.slice(start, stop)
        error = each_row(self.fn, part, out)
        if error is not None and self.skips:
            return self.survivors(part, error, out, at) + start, None
        return np.arange(start, start + len(out)), error
