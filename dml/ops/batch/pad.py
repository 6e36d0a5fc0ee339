"""``padded_batch`` and ``ragged_batch`` first mark list columns with the layout in batches.

``batch`` follows; no list is padded before its batch is delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.base.open_tensors import OpenTensor, open_axis, shapes_in
from dml.checks import element_count
from dml.data.block import Block
from dml.data.list_marks import Padded, Ragged, lengths_of, plain
from dml.data.schema import Schema, code_of, short
from dml.errors import CastError, SchemaError
from dml.expr.facts import Rows
from dml.expr.node import Node, op
from dml.expr.user_call import blamed
from dml.ops.unary import require_unbatched

if TYPE_CHECKING:
    from dml.expr.flow import At

Given = Any
"""A setting for every list column (a value or None), or pairs of a column name and a value."""


@op
class Pad(Node):
    """Marks lists of numbers to be padded with ``fill`` to one width in each batch.

    Without a ``width``, the longest list in the batch decides. Tensors of any shape are padded on
    each axis. Raises CastError for a list longer than its ``width``; raises SchemaError for a name
    that is not a column of lists or such tensors, for padding that the type cannot represent, for
    lists of lists, and for a ``width`` of a tensor of which several axes may have any length. One
    ``fill`` or ``width`` for all columns leaves out the tensors that cannot have it.
    """

    input: Node
    fill: Given
    width: Given

    rows: ClassVar[Rows] = Rows.SAME
    # version 1 did not pad tensors
    version: ClassVar[int] = 2

    @property
    def total(self) -> bool:  # type: ignore[override]
        """True without a ``width``, which a list could exceed."""
        return self.width is None

    def check(self) -> None:
        """Raise PlanError for a batched input, and unless widths are non-negative integers."""
        require_unbatched(self.input, "padded_batch", "padded_batch(...) in place of .batch(...)")
        for _, width in _pairs(self.width) or [("", self.width)]:
            if width is not None:
                element_count("padded_batch pad_to", width)

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema with marks on the list columns."""
        for name, _ in (*_pairs(self.fill), *_pairs(self.width)):
            _listed(given, name, "padded_batch")
        for name, kind in given.items():
            if _nests(kind):
                raise _not_padded(name, kind, "padded_batch")
        kinds = {
            name: Padded(plain(kind), fill=self._fill(name, kind), width=self._width(name, kind))
            if _is_padded(kind)
            else kind
            for name, kind in given.items()
        }
        return Schema(kinds)

    def _width(self, name: str, kind: pa.DataType) -> int | None:
        """Return the width of a column; one for all columns is not for tensors of several axes."""
        width: int | None = _of(self.width, name)
        tensor = isinstance(plain(kind), OpenTensor)
        if width is None or not tensor or open_axis(plain(kind)) is not None:
            return width
        if isinstance(self.width, tuple):
            raise SchemaError(
                f"pad_to= has no meaning for {name!r}, which is {short(plain(kind))}",
                why="one number is the length of one axis, and several are open",
                try_=f"pad_to={{...}} without {name!r}",
            )
        return None

    def _fill(self, name: str, kind: pa.DataType) -> Any:
        """Return the padding of a column; one for all columns is 0 for tensors without it."""
        value = _of(self.fill, name)
        code = code_of(plain(kind).value_type)
        found = fill_as(0 if value is None else value, code)
        if found is None and isinstance(plain(kind), OpenTensor) and self.fill == value:
            return fill_as(0, code)
        if found is None:
            raise SchemaError(
                f"padded_batch cannot fill {name!r} with {value!r}",
                why=f"its values are {short(plain(kind).value_type)}",
                try_=f"padding_values={{{name!r}: 0}}",
            )
        return found

    def run(self, block: Block, _at: At) -> Iterator[Block]:
        """Yield rows with marked lists; raise CastError for a too long list, after earlier rows."""
        if not block.n and not self.schema.known:
            return
        schema = self.schema_over(block.schema)
        made = Block(schema, block.columns, block.ids)
        wrong = [bad for name in schema if (bad := _too_long(block, name, schema[name]))]
        if not wrong:
            yield made
            return
        row, name, length = min(wrong)
        if row:
            yield made.slice(0, row)
        error = CastError(
            f"a list of {length} in {name!r} does not fit into pad_to={_of(self.width, name)}",
            at=self.label(),
            why="pad_to is the width of every batch, and nothing is cut off",
            try_=f"a larger pad_to=, or .filter of what is too long in {name!r}",
        )
        raise blamed(error, block.ids, row)

    def parameters_text(self) -> str:
        """Return the options that were given as text."""
        parts = [] if self.fill is None else [f"padding_values={_written(self.fill)}"]
        parts += [] if self.width is None else [f"pad_to={_written(self.width)}"]
        return ", ".join(parts)


@op
class Unpad(Node):
    """Marks lists of numbers as ragged: batches have all values, and the offset of each list."""

    input: Node

    parameters_format = ""
    rows: ClassVar[Rows] = Rows.SAME
    total: bool = True

    def check(self) -> None:
        """Raise PlanError for a batched input."""
        require_unbatched(self.input, "ragged_batch", "ragged_batch(...) in place of .batch(...)")

    def schema_over(self, given: Schema) -> Schema:
        """Return the input's schema with marks on the list columns."""
        kinds = {
            name: Ragged(plain(kind)) if is_numbers(kind) else kind for name, kind in given.items()
        }
        for name, kind in kinds.items():
            if isinstance(kind, Ragged) and f"{name}_offsets" in kinds:
                raise SchemaError(
                    f"ragged_batch makes {name}_offsets, which is there already",
                    why=f"{name!r} is shown as its values and their offsets",
                    try_=f".rename({{{f'{name}_offsets'!r}: ...}})",
                )
        return Schema(kinds)

    def run(self, block: Block, _at: At) -> Iterator[Block]:
        """Yield the same rows, marked."""
        if block.n or self.schema.known:
            yield Block(self.schema_over(block.schema), block.columns, block.ids)


def is_numbers(kind: pa.DataType) -> bool:
    """Return True for lists of numbers or booleans, marked or not."""
    kind = plain(kind)
    return is_list(kind) and code_of(kind.value_type) != "arrow" and not kind.value_type.num_fields


def _is_padded(kind: pa.DataType) -> bool:
    """Return True for lists of numbers, and tensors of any shape."""
    kind = plain(kind)
    return is_numbers(kind) or (
        isinstance(kind, OpenTensor) and code_of(kind.value_type) != "arrow"  # as of float16
    )


def fill_as(value: Any, code: str) -> Any:
    """Return ``value`` as a Python number of type ``code``; None if not representable."""
    taken = {"b": (bool, int), "f": (int, float)}.get(code[0], (int,))
    if not isinstance(value, taken) or (isinstance(value, bool) and code[0] != "b"):
        return None
    try:
        made = np.array(value, dtype=code).item()
    except OverflowError:
        return None
    return made if code[0] == "f" or made == value else None


def frozen(given: Any) -> Given:
    """Return a dict as pairs sorted by name; any other value as it is."""
    if not isinstance(given, Mapping):
        return given
    return tuple(sorted((str(name), value) for name, value in given.items()))


def _pairs(given: Given) -> tuple[tuple[str, Any], ...]:
    return given if isinstance(given, tuple) else ()


def _of(given: Given, name: str) -> Any:
    return dict(given).get(name) if isinstance(given, tuple) else given


def _written(given: Given) -> Any:
    return dict(given) if isinstance(given, tuple) else given


def _listed(given: Schema, name: str, verb: str) -> None:
    kind = given.require(name, verb)
    if not _is_padded(kind):
        raise _not_padded(name, kind, verb)


def _nests(kind: pa.DataType) -> bool:
    """Return True for lists of lists, which are refused: a batch of them would hold objects."""
    kind = plain(kind)
    return is_list(kind) and is_list(kind.value_type)


def _not_padded(name: str, kind: pa.DataType, verb: str) -> SchemaError:
    return SchemaError(
        f"{verb} cannot pad {name!r}, which is {short(kind)}",
        why="only lists of numbers or booleans, and tensors, become rectangles",
        try_=f"pad the inner lists by a function in .map, or .drop({name!r})",
    )


def _too_long(block: Block, name: str, kind: pa.DataType) -> tuple[int, str, int] | None:
    width = kind.params["width"] if isinstance(kind, Padded) else None
    if width is None:
        return None
    values, axis = block[name], open_axis(plain(kind))
    lengths = lengths_of(values) if axis is None else shapes_in(values)[:, axis]
    over = lengths > width
    row = int(np.argmax(over)) if len(over) else 0
    return (row, name, int(lengths[row])) if over.any() else None
