"""A pipeline is presented to TensorFlow as a ``tf.data.Dataset`` of dicts of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dml.errors import NullValueError, PlanError
from dml.exec.delivery.tables import nothing
from dml.interop.handover import Element, batched
from dml.kernels.functions.function import is_bytes, is_text

try:
    import tensorflow as tf
except ModuleNotFoundError as missing:
    raise PlanError(
        "to_tf needs TensorFlow", why=str(missing), try_="pip install tensorflow"
    ) from None


def to_tf(
    source: Any, *, batches: bool, batch_size: int | None = None, drop_last: bool = False
) -> Any:
    """Return the elements of ``source`` as a ``tf.data.Dataset``; each iteration is the next epoch.

    Numbers and booleans become tensors of their type, text and bytes ``tf.string``, times int64.
    With ``batch_size`` and ``drop_last=True`` the first dimension is static. TensorFlow copies each
    element once. ``batches`` is True if the elements of ``source`` are batches.

    Raise PlanError for columns that are not known yet or have lists, and NullValueError for a null
    among texts or in a row.
    """
    source = batched(source, batch_size, drop_last=drop_last)
    if not source.schema.known:
        raise PlanError(
            "to_tf needs to know the columns",
            why="TensorFlow wants types and shapes before the first element",
            try_="schema={...} where the function is given",
        )
    first = (batch_size if drop_last else None,) if batches or batch_size else ()
    spec = {
        name: tf.TensorSpec((*first, *_shape(array)), _type(source, name, array))
        for name, array in nothing(source.schema).items()
    }

    def elements() -> Iterator[Element]:
        for element in source:
            yield {name: _value(name, element[name]) for name in spec}

    return tf.data.Dataset.from_generator(elements, output_signature=spec)


def _shape(array: np.ndarray) -> tuple[int | None, ...]:
    """Return the shape of one row; padded lists have no fixed length."""
    return tuple(size or None for size in array.shape[1:])


def _type(source: Any, name: str, array: np.ndarray) -> Any:
    if array.dtype.kind != "O":
        return tf.as_dtype(np.dtype("i8") if array.dtype.kind in "mM" else array.dtype)
    kind = source.schema.get(name)
    if kind is None or not (is_text(kind) or is_bytes(kind)):
        raise PlanError(
            f"column {name!r} has no tensor of one shape",
            why=f"its type is {kind}",
            try_=f".padded_batch(n) for lists, a declared shape, or .drop({name!r})",
        )
    return tf.string


def _value(name: str, value: Any) -> Any:
    """Return ``value`` as TensorFlow takes it: times as integers, no null."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "mM":
            return value.view("i8")
        if value.dtype.kind != "O" or not any(each is None for each in value.flat):
            return value
    elif value is not None:
        return value
    raise NullValueError(
        f"column {name!r} has a null, which tensors cannot hold",
        why="TensorFlow has no nulls",
        try_=f'.fill_null({{"{name}": ...}}) or .drop_nulls("{name}")',
    )
