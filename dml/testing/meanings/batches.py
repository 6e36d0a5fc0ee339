"""The oracle makes padded and ragged batches, and batches by length, by key and by window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.data.list_marks import Padded, Ragged, plain
from dml.data.schema import Schema
from dml.errors import CastError, NullValueError, SchemaError
from dml.expr.columns.column import col
from dml.ops.batch.bucket_by_length import BucketByLength
from dml.ops.batch.group_by_window import GroupByWindow, key_of
from dml.ops.batch.pad import Pad, Unpad
from dml.ops.batch.window import Window
from dml.testing.draws import GROWTH, Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units
from dml.testing.oracle_rows import Kinds
from dml.testing.oracle_types import code, shape
from dml.testing.scalars import ids as scalar_ids

SLIDING = int.from_bytes(b"window", "big")


def numbers(kind: pa.DataType) -> bool:
    """True for lists of numbers, whether plain, padded or ragged."""
    kind = plain(kind)
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    listed = listed or pa.types.is_fixed_size_list(kind)
    return bool(listed and kind.value_type.num_fields == 0 and code(kind.value_type) != "arrow")


def padded(kind: pa.DataType) -> bool:
    """True for lists of numbers, and for tensors whose shapes differ."""
    kind = plain(kind)
    return numbers(kind) or (isinstance(kind, OpenTensor) and code(kind.value_type) != "arrow")


def long(value: Any, kind: pa.DataType) -> int:
    """The length of a list, or of the only open axis of a tensor."""
    kind = plain(kind)
    if not isinstance(kind, OpenTensor):
        return len(value)
    return int(np.shape(value)[kind.shape.index(None)])


def _for(given: Any, name: str) -> Any:
    return dict(given).get(name) if isinstance(given, tuple) else given


def pad(oracle: OracleRun, node: Pad, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Mark lists of numbers as padded; a list that is too long raises."""
    for one in oracle.stream(node.input, epoch, units):
        named = [each for each in (node.fill, node.width) if isinstance(each, tuple)]
        for name in (name for pairs in named for name, _ in pairs):
            if name not in one.kinds or not padded(one.kinds[name]):
                raise SchemaError(f"{name!r} is no column of lists")
        kinds: Kinds = {}
        for name, kind in one.kinds.items():
            kinds[name] = _padded(node, name, kind) if padded(kind) else kind
            value = one.row.values[name]
            width = kinds[name].params["width"] if padded(kind) else None
            if width is not None and value is not None and long(value, kind) > width:
                raise CastError(f"{long(value, kind)} values in {name!r} for {width}")
        yield one.made(one.row.values, kinds)


def _padded(node: Pad, name: str, kind: pa.DataType) -> Padded:
    letters = code(plain(kind).value_type)
    fill = _for(node.fill, name) or 0
    made = float(fill) if letters[0] == "f" else bool(fill) if letters == "b1" else int(fill)
    width, tensor = _for(node.width, name), plain(kind)
    if isinstance(tensor, OpenTensor) and tensor.shape.count(None) != 1 and width is not None:
        if isinstance(node.width, tuple):
            raise SchemaError("several axes are open")
        width = None
    return Padded(tensor, fill=made, width=width)


def unpad(oracle: OracleRun, node: Unpad, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Mark lists of numbers as ragged: values and offsets."""
    for one in oracle.stream(node.input, epoch, units):
        kinds = {n: Ragged(plain(k)) if numbers(k) else k for n, k in one.kinds.items()}
        yield one.made(one.row.values, kinds)


def bucket_by_length(
    oracle: OracleRun, node: BucketByLength, epoch: int, units: Units
) -> Iterator[list[TypedRow]]:
    """Yield the rows of a bucket as soon as it is full, and at the end the rest by bucket."""
    held: dict[int, list[TypedRow]] = {i: [] for i in range(len(node.sizes))}
    for one in oracle.stream(node.input, epoch, units):
        value = one.row.values[node.column]
        if value is None:
            raise NullValueError(f"{node.column!r} is null")
        length = value if isinstance(value, int) else long(value, one.kinds[node.column])
        bucket = sum(bound <= length for bound in node.boundaries)
        held[bucket].append(one)
        if len(held[bucket]) == node.sizes[bucket]:
            yield held[bucket]
            held[bucket] = []
    yield from (rows for rows in held.values() if rows and not node.drop_last)


def group_by_window(
    oracle: OracleRun, node: GroupByWindow, epoch: int, units: Units
) -> Iterator[list[TypedRow]]:
    """Yield n rows of one key as soon as they are there, at the end the rest by key, null last.

    Where the key's type is inferred late, the first row raises if the column cannot be a key.
    """
    held: dict[Any, list[TypedRow]] = {}
    for one in oracle.stream(node.input, epoch, units):
        key_of(Schema(one.kinds), node.column, "group_by_window")
        key = one.row.values[node.column]
        held.setdefault(key, []).append(one)
        if len(held[key]) == node.n:
            yield held.pop(key)
    for key in sorted(key for key in held if key is not None and not node.drop_last):
        yield held[key]
    if None in held and not node.drop_last:
        yield held[None]


def window(oracle: OracleRun, node: Window, epoch: int, units: Units) -> Iterator[list[TypedRow]]:
    """Yield windows of rows at equal distances, with ids derived from the place in the window."""
    rows = oracle.stream(node.input, epoch, units)
    key, span = SLIDING + oracle.level(node), (node.n - 1) * node.stride + 1
    held: list[TypedRow] = []
    while True:
        held += islice(rows, span - len(held))
        if not held or (len(held) < span and node.drop_last):
            return
        chosen = list(enumerate(held[:: node.stride]))
        ids = [scalar_ids.derive(*one.row.id, key, i) for i, one in chosen]
        yield [one.made(one.row.values, one.kinds, id=ids[i]) for i, one in chosen]
        for _ in islice(rows, max(0, node.shift - len(held))):
            pass
        del held[: node.shift]


def _options(draw: Draw) -> dict[str, Any]:
    return {"drop_last": draw.random() < 0.3}


def _draw_padded(draw: Draw, drawn: Drawn) -> None:
    fill = draw.choice([None, 0, 1, 7])
    width = draw.choice([None, None, 3, 2])
    size = draw.choice([1, 2, 3, 7, 32])
    made = drawn.dataset.padded_batch(size, padding_values=fill, pad_to=width, **_options(draw))
    kinds = {
        n: Padded(plain(k), fill=fill or 0, width=width) if padded(k) else k
        for n, k in drawn.kinds.items()
    }
    drawn.then(made, kinds)
    drawn.batched = True


def _draw_ragged(draw: Draw, drawn: Drawn) -> None:
    made = drawn.dataset.ragged_batch(draw.choice([1, 2, 3, 7, 32]), **_options(draw))
    drawn.then(made, {n: Ragged(plain(k)) if numbers(k) else k for n, k in drawn.kinds.items()})
    drawn.batched = True


def _measured(kind: pa.DataType) -> bool:
    whole = code(kind)[0] in "iu" and not shape(kind)
    texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    return whole or kind in texts or pa.types.is_list(plain(kind))


def _draw_bucket(draw: Draw, drawn: Drawn) -> None:
    column = draw.choice([n for n, kind in drawn.kinds.items() if _measured(kind)] or ["n"])
    boundaries: list[int] = draw.choice([[], [2], [1, 4], [0, 3, 8]])
    sizes: Any = [draw.choice([1, 2, 3, 7]) for _ in range(len(boundaries) + 1)]
    made, pad = drawn.dataset, draw.random() < 0.5
    if draw.random() < 0.8:
        made = made.filter(~col(column).is_null())
    made = made.bucket_by_length(
        column, boundaries, draw.choice([[4] * len(sizes), sizes]), pad=pad, **_options(draw)
    )
    kinds = {
        n: Padded(plain(k), fill=0, width=None) if pad and padded(k) else k
        for n, k in drawn.kinds.items()
    }
    drawn.then(made, kinds)
    drawn.batched = True


def _keyed(kind: pa.DataType) -> bool:
    whole = code(kind)[0] in "biu" and not shape(kind)
    return whole or kind in (pa.string(), pa.large_string())


def _draw_group(draw: Draw, drawn: Drawn) -> None:
    keys = [n for n, k in drawn.kinds.items() if _keyed(k)]
    key: Any = draw.choice(keys or ["n"])
    if code(drawn.kinds.get(key, pa.null()))[0] in "iu" and draw.random() < 0.5:
        key = col(key) % draw.choice([2, 5])
    made = drawn.dataset.group_by_window(key, draw.choice([1, 2, 3, 7]), **_options(draw))
    drawn.then(made, drawn.kinds)
    drawn.batched = True


def _draw_window(draw: Draw, drawn: Drawn) -> Any:
    size, shift = draw.choice([1, 2, 3, 5]), draw.choice([None, 1, 2, 4])
    if drawn.growth * size > GROWTH:
        return False
    drawn.growth *= size
    stride, kept = draw.choice([1, 1, 2]), draw.random() < 0.5
    drawn.then(drawn.dataset.window(size, shift, stride, drop_last=kept), drawn.kinds)
    drawn.batched = True
    return None


MEANINGS = (
    OperatorMeaning(Pad, pad, (OperatorUse("padded_batch", _draw_padded),)),
    OperatorMeaning(Unpad, unpad, (OperatorUse("ragged_batch", _draw_ragged),)),
    OperatorMeaning(
        BucketByLength, bucket_by_length, (OperatorUse("bucket_by_length", _draw_bucket),)
    ),
    OperatorMeaning(Window, window, (OperatorUse("window", _draw_window),), makes_ids=True),
    OperatorMeaning(GroupByWindow, group_by_window, (OperatorUse("group_by_window", _draw_group),)),
)
