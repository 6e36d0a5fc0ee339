"""Marks are types of list columns that are delivered as padded arrays, or as values and offsets.

A mark is a type over lists of numbers, or over tensors whose shapes differ, which are padded. It
changes only how a batch is delivered: in blocks, tables and files such a column still consists of
lists, so that rows may leave or join a batch before it is delivered, and the width is that of the
delivered batch.
"""

from __future__ import annotations

import json
from typing import Any, Self

import numpy as np
import pyarrow as pa

from dml.base.open_tensors import ExactType


class Mark(ExactType):
    """Base of the types that say how lists of ``storage`` are delivered; equal by parameters."""

    def __init__(self, storage: pa.DataType, **params: Any) -> None:
        self.params = params
        super().__init__(storage, f"dml.{type(self).__name__.lower()}")

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps(self.params, sort_keys=True).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Self:
        return cls(storage, **json.loads(serialized))

    def __str__(self) -> str:
        shown = "".join(f", {name}={value!r}" for name, value in self.params.items())
        kind = self.storage_type
        kind = kind if isinstance(kind, pa.BaseExtensionType) else kind.value_type
        return f"{type(self).__name__.lower()}<{kind}{shown}>"

    def parts(self) -> tuple[object, ...]:
        """Return the type of the lists, and the parameters."""
        return self.storage_type, self.__arrow_ext_serialize__()


class Padded(Mark):
    """Lists padded with ``fill`` to ``width`` (None: the batch's longest list), as one array.

    Tensors are padded on each axis whose length differs.
    """

    def __init__(self, storage: pa.DataType, *, fill: float, width: int | None) -> None:
        super().__init__(storage, fill=fill, width=width)


class Ragged(Mark):
    """Lists delivered as two arrays: the values of all lists, and the offsets (n + 1,) i8."""


NOTE = b"dml.mark"


def noted(name: str, kind: pa.DataType) -> pa.Field:
    """Return a field of type ``kind`` without its mark, which is stored in the field's metadata."""
    note = (
        {NOTE: json.dumps([type(kind).__name__, kind.params])} if isinstance(kind, Mark) else None
    )
    return pa.field(name, plain(kind), metadata=note)


def of_note(field: pa.Field) -> pa.DataType:
    """Return the type, with its mark, from a field made by ``noted``."""
    note = (field.metadata or {}).get(NOTE)
    if note is None:
        return field.type
    word, params = json.loads(note)
    return {"Padded": Padded, "Ragged": Ragged}[word](field.type, **params)


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without its mark."""
    return kind.storage_type if isinstance(kind, Mark) else kind


def lengths_of(lists: pa.Array) -> np.ndarray:
    """Return the number of elements of each list: (n,) int64, 0 where a list is null."""
    if pa.types.is_fixed_size_list(lists.type):
        found = np.full(len(lists), lists.type.list_size, dtype=np.int64)
    else:
        found = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    if lists.null_count:
        found[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    return found
