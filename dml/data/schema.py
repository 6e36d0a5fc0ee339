"""A schema has the column names and Arrow types of rows between operators; it may be unknown."""

from __future__ import annotations

import difflib
import functools
import re
import types
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.fingerprint import digest
from dml.base.open_tensors import OpenTensor
from dml.data.layouts import usual_type
from dml.data.list_marks import Padded, plain
from dml.errors import SchemaError

# Kernel type codes of the Arrow types that live in NumPy arrays; every other type is "arrow".
CODES: dict[pa.DataType, str] = {
    pa.bool_(): "b1",
    pa.int8(): "i1",
    pa.int16(): "i2",
    pa.int32(): "i4",
    pa.int64(): "i8",
    pa.uint8(): "u1",
    pa.uint16(): "u2",
    pa.uint32(): "u4",
    pa.uint64(): "u8",
    pa.float32(): "f4",
    pa.float64(): "f8",
}
TYPES = {code: kind for kind, code in CODES.items()}

# Words that users may write for a type, besides Arrow types, NumPy dtypes and Python types.
WORDS: dict[Any, pa.DataType] = {
    **{str(kind): kind for kind in CODES},
    **TYPES,
    "float": pa.float64(),
    "double": pa.float64(),
    "int": pa.int64(),
    "string": pa.string(),
    "str": pa.string(),
    "binary": pa.binary(),
    "bytes": pa.binary(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
    bytes: pa.binary(),
}


# A tensor type as text: the type of its elements, and its axes.
TENSOR = re.compile(r"(\w+)\[((?:\d+|\?)(?: ?, ?(?:\d+|\?))*)\]")
LIST = re.compile(r"list<(.+)>")


def code_of(kind: pa.DataType) -> str:
    """Return the kernel type code of ``kind``; tensors have the code of their elements."""
    if isinstance(kind, pa.FixedShapeTensorType):
        kind = kind.value_type
    return CODES.get(kind, "arrow")


def shape_of(kind: pa.DataType) -> tuple[int, ...]:
    """Return the shape of one value: of tensors with a kernel type code, () for other types."""
    known = isinstance(kind, pa.FixedShapeTensorType) and kind.value_type in CODES
    return tuple(kind.shape) if known else ()


def tensor(code: str, shape: tuple[int, ...]) -> pa.DataType:
    """Return the Arrow type of a fixed-shape tensor column; the scalar type if ``shape`` is ()."""
    return pa.fixed_shape_tensor(TYPES[code], shape) if shape else TYPES[code]


def _by_alias(word: str) -> pa.DataType | None:
    """Return the type that Arrow prints as ``word``, such as ``timestamp[us]``, or None."""
    try:
        return pa.type_for_alias(word)
    except ValueError:
        return None


def _tensor_type(kind: pa.DataType, axes: str, *, batched: bool) -> pa.DataType:
    """Return the type of ``kind[axes]`` such as ``f4[3,?]``, where ``?`` is an axis of any length.

    With a single axis ``?`` it is a type of lists.
    """
    shape = tuple(None if axis.strip() == "?" else int(axis) for axis in axes.split(","))
    if None not in shape:
        return pa.fixed_shape_tensor(kind, shape)
    if len(shape) > 1:
        return OpenTensor(kind, shape, stacked=batched)
    return Padded(pa.list_(kind), fill=0, width=None) if batched else pa.list_(kind)


def _list_type(word: object) -> pa.DataType | None:
    """Return the type of ``list<int64>`` or ``list[int]``, at any depth; None for other words."""
    if isinstance(word, types.GenericAlias) and word.__origin__ is list:
        (element,) = word.__args__
    elif isinstance(word, str) and (found := LIST.fullmatch(word)):
        element = found[1]
    else:
        return None
    each = data_type(element)
    if isinstance(each, pa.BaseExtensionType):
        raise TypeError("lists have no tensors")
    return pa.list_(each)


def data_type(word: object, *, batched: bool = False) -> pa.DataType:
    """Return the Arrow type that a user means by an Arrow type, NumPy dtype, Python type or text.

    Alternative layouts of the same values, such as views or dictionaries, become the usual layout.
    Lists are ``list<string>`` or ``list[str]``, also of lists.
    Tensors are written as they are printed, ``f4[224,224,3]``, with ``?`` for axes of any length;
    ``batched`` tensors come as one array per batch, whose rows have one shape. Raise SchemaError
    for anything else.
    """
    if isinstance(word, pa.DataType):
        return usual_type(word)
    try:
        if word in WORDS:
            return WORDS[word]
        if isinstance(word, str) and (found := TENSOR.fullmatch(word)):
            kind = data_type(found[1])
            if kind in CODES:
                return _tensor_type(kind, found[2], batched=batched)
        if (listed := _list_type(word)) is not None:
            return listed
        if isinstance(word, str) and (known := _by_alias(word)) is not None:
            return usual_type(known)
        # NumPy itself takes None for float64
        return pa.from_numpy_dtype(np.dtype("V" if word is None else word))  # type: ignore[call-overload]
    except (SchemaError, TypeError, ValueError, OverflowError, pa.ArrowNotImplementedError):
        raise SchemaError(
            f"{word!r} is not a type",
            why="neither Arrow nor NumPy knows it",
            try_="a word such as 'float32', 'int64', 'string' or 'list<string>', a NumPy dtype, or "
            "an Arrow type such as pyarrow.decimal128(12, 2)",
        ) from None


class Schema(Mapping[str, pa.DataType]):
    """Ordered column names with Arrow types; ``known`` is False if only a run can find them.

    A schema is a value: equal names, order and types are equal schemas.
    """

    __slots__ = ("_forms", "_hash", "_selections", "_types", "known")

    def __init__(
        self,
        types: Mapping[str, pa.DataType] | Iterable[tuple[str, pa.DataType]] = (),
        *,
        known: bool = True,
    ) -> None:
        self._types = dict(types)
        self.known = known
        self._hash: int | None = None
        self._forms: tuple[tuple[str, tuple[int, ...]], ...] | None = None
        self._selections: dict[tuple[str, ...], Schema] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # without what was derived here: hashes of text differ between processes
        return functools.partial(Schema, known=self.known), (tuple(self._types.items()),)

    def __call__(self) -> Schema:
        """Return this schema: Ray Data spells it ``ds.schema()``."""
        return self

    def __getitem__(self, name: str) -> pa.DataType:
        return self._types[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def __contains__(self, name: object) -> bool:
        return name in self._types

    # the views that ``Mapping`` would give look each name up

    def values(self) -> ValuesView[pa.DataType]:
        """Types in order."""
        return self._types.values()

    def items(self) -> ItemsView[str, pa.DataType]:
        """Names and types in order."""
        return self._types.items()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Schema) or self.known != other.known:
            return False
        return self._types == other._types and list(self) == list(other)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.known, tuple(self._types.items())))
        return self._hash

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(self._types)

    @property
    def forms(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Kernel type code and element shape of every column, in order."""
        if self._forms is None:
            self._forms = tuple((code_of(k), shape_of(k)) for k in self._types.values())
        return self._forms

    @property
    def digest(self) -> bytes:
        """Fingerprint of the schema, 16 bytes."""
        return digest("Schema", self.known, tuple(self._types.items()))

    def select(self, names: tuple[str, ...]) -> Schema:
        """Return the schema of columns ``names``: one object for all blocks, cheap to compare."""
        if names not in self._selections:
            self._selections[names] = Schema((name, self[name]) for name in names)
        return self._selections[names]

    def require(self, name: object, operator: str) -> pa.DataType:
        """Return the type of column ``name``; raise SchemaError with the nearest name if absent."""
        if name in self._types:
            return self._types[name]
        near = difflib.get_close_matches(str(name), self._types, n=1)
        raise SchemaError(
            f"{operator} needs column {name!r}, which is not there",
            why=f"the input has {self}",
            try_=f"did you mean {near[0]!r}?" if near else "one of these, or make it before",
        )

    def to_arrow(self) -> pa.Schema:
        """Return the ``pyarrow.Schema``, without marks of how lists are delivered."""
        return pa.schema([(name, plain(kind)) for name, kind in self._types.items()])

    def __str__(self) -> str:
        if not self.known:
            return "unknown columns"
        return ", ".join(f"{name}: {short(kind)}" for name, kind in self._types.items())

    def __repr__(self) -> str:
        return f"Schema({self})"

    def _repr_html_(self) -> str:
        from dml.base.display import Grid, preformatted  # noqa: PLC0415 - only in a notebook

        if not self.known:
            return preformatted(str(self))
        rows = [["column", "type"], *([name, short(kind)] for name, kind in self._types.items())]
        return Grid(rows, texts={0, 1}).html()


UNKNOWN = Schema(known=False)


def short(kind: pa.DataType) -> str:
    """Return a short text for a type: ``f4[13,?]`` for tensors, Arrow's own text otherwise."""
    if isinstance(kind, OpenTensor):
        return f"{code_of(kind.value_type)}[{kind.axes}]"
    shape = shape_of(kind)
    return f"{code_of(kind)}[{','.join(map(str, shape))}]" if shape else str(kind)


def schema_of(declared: object, *, batched: bool = False) -> Schema:
    """Return the Schema for a declared Schema, Arrow schema, or dict of names to types.

    ``batched`` means that the schema describes the result of a function of batches.
    """
    if isinstance(declared, Schema):
        return declared
    if isinstance(declared, pa.Schema):
        return Schema((field.name, usual_type(field.type)) for field in declared)
    if isinstance(declared, Mapping):
        kinds = {str(n): data_type(kind, batched=batched) for n, kind in declared.items()}
        return Schema(kinds)
    raise SchemaError(
        f"{declared!r} is not a schema",
        why="a schema gives a type to every name",
        try_='schema={"x": "float32", "label": "int64"}',
    )
