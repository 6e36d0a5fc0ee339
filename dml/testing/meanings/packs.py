"""The oracle computes ``pack``: rows are put into bins, one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dml.data.list_marks import plain
from dml.errors import CastError, NullValueError, SchemaError
from dml.ops.batch.pack import Pack
from dml.testing.draws import Draw, Drawn
from dml.testing.meaning import OperatorMeaning, OperatorUse, OracleRun, TypedRow, Units
from dml.testing.meanings.elements import element
from dml.testing.oracle_types import code, of_code
from dml.testing.scalars import ids

PACKED = int.from_bytes(b"pack", "big")
ADDED = ("segment_ids", "positions")


@dataclasses.dataclass
class OpenBin:
    """An open bin: its number, its first row (which gives the id), and the lists of each row."""

    number: int
    first: TypedRow
    part: int
    segments: list[dict[str, list[Any]]] = dataclasses.field(default_factory=list)

    def tokens(self, column: str) -> int:
        """Return the number of tokens in the bin."""
        return sum(len(each[column]) for each in self.segments)


def pack(oracle: OracleRun, node: Pack, epoch: int, units: Units) -> Iterator[TypedRow]:
    """Put rows into bins; a bin is yielded when it is full, too old, or the input ends."""
    held: list[OpenBin] = []
    opened = 0
    for one in oracle.stream(node.input, epoch, units):
        left, part = _lists(node, one), 0
        while left[node.column]:
            size = 1 if node.strategy == "concat_split" else len(left[node.column])
            bin_ = _place(node, held, size)
            if bin_ is None:
                while held and held[0].number <= opened - node.bins:
                    yield _given(oracle, node, held.pop(0))
                bin_ = OpenBin(opened, one, part)
                held.append(bin_)
                opened += 1
            room = node.size - bin_.tokens(node.column)
            bin_.segments.append({name: values[:room] for name, values in left.items()})
            left, part = {name: values[room:] for name, values in left.items()}, part + 1
            if bin_.tokens(node.column) == node.size:
                held.remove(bin_)
                yield _given(oracle, node, bin_)
    yield from (_given(oracle, node, each) for each in held)


def _place(node: Pack, held: list[OpenBin], size: int) -> OpenBin | None:
    """Return the first bin that has room, or for "best_fit" the bin with the least room."""
    fitting = [each for each in held if each.tokens(node.column) + size <= node.size]
    if node.strategy == "best_fit":
        fitting.sort(key=lambda each: -each.tokens(node.column))
    return fitting[0] if fitting else None


def _lists(node: Pack, one: TypedRow) -> dict[str, list[Any]]:
    """Return the lists of a row, truncated or emptied if the row is too long."""
    kinds = _kinds(node, one)
    if one.row.values[node.column] is None:
        raise NullValueError(f"{node.column!r} is null")
    lists = {n: [] if v is None else list(v) for n, v in one.row.values.items()}
    size = len(lists[node.column])
    long = size > node.size and node.strategy != "concat_split"
    if long and node.long == "error":
        raise CastError(f"{size} tokens for {node.size}")
    for name, values in lists.items():
        if len(values) != size:
            raise CastError("lists of different lengths")
        if node.fill is not None and None in values and code(kinds[name])[0] != "f":
            raise NullValueError(f"a null in {name!r}")
    kept = {"drop": 0, "truncate": node.size}.get(node.long, size) if long else size
    return {name: values[:kept] for name, values in lists.items()}


def _kinds(node: Pack, one: TypedRow) -> dict[str, pa.DataType]:
    if node.column not in one.kinds or set(ADDED) & set(one.kinds):
        raise SchemaError(f"{list(one.kinds)} cannot be packed by {node.column!r}")
    inner = {name: element(plain(kind)) for name, kind in one.kinds.items()}
    inner |= dict.fromkeys(ADDED, pa.int32())
    if node.fill is None:
        return {name: pa.list_(kind) for name, kind in inner.items()}
    return {name: of_code(code(kind), (node.size,)) for name, kind in inner.items()}


def _given(oracle: OracleRun, node: Pack, bin_: OpenBin) -> TypedRow:
    kinds = _kinds(node, bin_.first)
    values: dict[str, Any] = {name: [] for name in kinds}
    for number, lists in enumerate(bin_.segments, 1):
        size = len(lists[node.column])
        more = {**lists, "segment_ids": [number] * size, "positions": list(range(size))}
        for name, each in more.items():
            values[name] += each
    if node.fill is not None:
        values = {name: _padded(node, name, kinds[name], each) for name, each in values.items()}
    key = PACKED + oracle.level(node)
    made = ids.derive(*bin_.first.row.id, key, bin_.part)
    return bin_.first.made(values, kinds, id=made)


def _padded(node: Pack, name: str, kind: pa.DataType, values: list[Any]) -> np.ndarray:
    fill = dict(node.fill).get(name, 0) if isinstance(node.fill, tuple) else node.fill
    out = np.full(node.size, 0 if name in ADDED else fill, dtype=code(kind))
    out[: len(values)] = [np.nan if value is None else value for value in values]
    return out


def _tokens(row: dict[str, Any]) -> dict[str, Any]:
    """Return lists of equal length, sometimes empty, once longer than for all other rows."""
    n = row["n"]
    size = 9 if n == 19 else n * 7 % 6
    return {"t": list(range(n, n + size)), "w": [None if n == 5 else 0.5] * size}


def _rough(row: dict[str, Any]) -> dict[str, Any]:
    """Return the lists of ``_tokens``, except for two rows that cannot be packed."""
    made = _tokens(row)
    made["t"] = None if row["n"] == 21 else made["t"]
    return {**made, "w": made["w"][1:] if row["n"] == 22 else made["w"]}


TOKENS = {"t": pa.list_(pa.int64()), "w": pa.list_(pa.float64())}


def _draw_pack(draw: Draw, drawn: Drawn) -> Any:
    if not drawn.functional:
        return False
    strategy = draw.choice(["first_fit", "best_fit", "concat_split"])
    options: dict[str, Any] = {"pad_value": draw.choice([None, None, 0, -1, {"t": 7}])}
    if strategy != "concat_split":
        options |= {"long": draw.choice(["error", "truncate", "drop"]), "bins": draw.randint(1, 4)}
    given = drawn.dataset.map(draw.choice([_tokens, _tokens, _rough]), schema=TOKENS)
    made = given.pack(draw.choice([3, 6, 8, 20]), "t", strategy, **options)
    drawn.then(made, dict(made.schema))
    return None


MEANINGS = (OperatorMeaning(Pack, pack, (OperatorUse("pack", _draw_pack),), makes_ids=True),)
