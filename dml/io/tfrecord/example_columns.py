"""Features of Examples are converted to columns of inferred or declared types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.data.layouts import is_text_or_bytes
from dml.data.schema import shape_of, short
from dml.errors import SchemaError
from dml.io.files.lines import RowError
from dml.io.tfrecord.examples import BYTES_LIST, FLOAT_LIST, INT64_LIST, NOTHING, WORDS, Feature

STORED = {BYTES_LIST: pa.binary(), FLOAT_LIST: pa.float32(), INT64_LIST: pa.int64()}
TRY = "schema={...} with what all records have, or the features that are wanted"


def inferred_kinds(rows: Iterable[Mapping[str, Feature]]) -> list[tuple[str, pa.DataType]]:
    """Infer the name and the type of each column, in alphabetical order of names.

    The type is a list if the feature has several values, or an empty list, in a record. Raise
    RowError if a feature has values of two kinds.
    """
    kinds: dict[str, int] = {}
    many: set[str] = set()
    for row, features in enumerate(rows):
        for name, (kind, runs) in features.items():
            before = kinds.get(name, NOTHING)
            if kind and before and kind != before:
                raise RowError(_two_kinds(name, kind, before), row, TRY)
            kinds[name] = kind or before
            if kind and sum(map(len, runs)) != 1:
                many.add(name)
    found = [(name, STORED.get(kinds[name], pa.binary())) for name in sorted(kinds)]
    return [(name, pa.list_(kind) if name in many else kind) for name, kind in found]


def _two_kinds(name: str, kind: int, other: int) -> str:
    return f"feature {name!r} has {WORDS[kind]} values, and {WORDS[other]} are expected"


def wire_kind(kind: pa.DataType, name: str) -> int:
    """Return the code of the Feature list that stores ``kind``; raise SchemaError if none can."""
    types, inner = pa.types, _element(kind)
    if types.is_integer(inner) or types.is_boolean(inner):
        return INT64_LIST
    if types.is_float32(inner) or types.is_float64(inner):
        return FLOAT_LIST
    if is_text_or_bytes(inner):
        return BYTES_LIST
    raise SchemaError(
        f"TFRecord files have no column {name!r} of {short(kind)}",
        why="features are whole numbers, float32 and bytes, and lists of these",
        try_='"int64", "float32", "string", "binary", a list or a tensor of these',
    )


def _element(kind: pa.DataType) -> pa.DataType:
    listed = isinstance(kind, pa.FixedShapeTensorType) or is_list(kind)
    return kind.value_type if listed else kind


def column(features: list[Feature | None], name: str, kind: pa.DataType) -> pa.Array:
    """Build the column of one feature; raise RowError for a value that ``kind`` does not allow."""
    wanted = wire_kind(kind, name)
    scalar, width = _element(kind) is kind, int(np.prod(shape_of(kind)))
    found: list[Any] = []
    for row, feature in enumerate(features):
        if feature is None or feature[0] == NOTHING:
            found.append(None)
            continue
        if feature[0] != wanted:
            raise RowError(_two_kinds(name, feature[0], wanted), row, TRY)
        runs = feature[1]
        values = runs[0] if len(runs) == 1 else [v for run in runs for v in run]
        if (scalar or shape_of(kind)) and len(values) != width:
            one = "one is" if width == 1 else f"{width} are"
            why = f"feature {name!r} has {len(values)} values, and {one} expected"
            raise RowError(why, row, TRY)
        found.append(values[0] if scalar else values)
    try:
        return _typed(found, STORED[wanted], kind)
    except pa.ArrowException as error:
        raise RowError(f"feature {name!r} as {short(kind)}: {error}", try_=TRY) from None


def _typed(found: list[Any], stored: pa.DataType, kind: pa.DataType) -> pa.Array:
    """Convert values of type ``stored`` to ``kind``; raise pa.ArrowException for invalid values."""
    shape = shape_of(kind)
    if shape:
        width = int(np.prod(shape))
        flat = pa.array(found, pa.list_(stored, width)).cast(pa.list_(kind.value_type, width))
        return pa.ExtensionArray.from_storage(kind, flat)
    whole = pa.array(found, pa.list_(stored) if is_list(kind) else stored)
    if whole.type == kind:
        return whole
    cast = whole.cast(kind)
    if pa.types.is_boolean(_element(kind)) and not cast.cast(whole.type).equals(whole):
        raise pa.ArrowInvalid("only 0 and 1 are booleans")
    cast.validate(full=True)
    return cast
