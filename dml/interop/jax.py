"""A pipeline is presented to JAX as a checkpointable iterable of dicts of ``jax.Array``.

On a CPU an array may share memory with the array that dml delivers; the caller owns this memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dml.errors import CastError, PlanError
from dml.interop.handover import Element, Handover, batched

try:
    import jax
except ModuleNotFoundError as missing:
    raise PlanError("to_jax needs JAX", why=str(missing), try_="pip install jax") from None

NARROW = {"i": np.dtype("i4"), "u": np.dtype("u4")}
OBJECTS = ("list", "error")


def to_jax(
    source: Any,
    *,
    batch_size: int | None = None,
    drop_last: bool = False,
    sharding: Any = None,
    objects: str = "list",
) -> Handover:
    """Convert the elements of ``source``, a Dataset or a rank of a ``streaming_split``, to arrays.

    Numbers, booleans and times become ``jax.Array``; times are integers (NaT: the minimum). Without
    ``jax_enable_x64``, arrays of 64 bits become ones of 32 bits, as everywhere in JAX; an integer
    that does not fit raises CastError, where JAX alone would wrap it. The result has
    ``state_dict`` and ``load_state_dict``.

    Parameters
    ----------
    batch_size, drop_last : as in ``source.batch(batch_size, drop_last=drop_last)``; with
        ``drop_last=True`` a compiled step sees one shape
    sharding : a device or sharding; each process gives its part of a batch that lies on several
        hosts, by ``jax.make_array_from_process_local_data``
    objects : values that have no array (text, bytes, lists): "list" gives a list, "error" raises
    """
    if objects not in OBJECTS:
        raise PlanError(
            f"objects={objects!r} has no meaning",
            why=f"it is one of {', '.join(OBJECTS)}",
            try_='objects="list"',
        )
    source = batched(source, batch_size, drop_last=drop_last)
    return Handover(source, ArrayConversion(sharding, objects).of)


@dataclasses.dataclass(frozen=True)
class ArrayConversion:
    """The options that control how arrays of NumPy become arrays of JAX."""

    sharding: Any
    objects: str

    def of(self, element: Element) -> Element:
        """Convert the arrays of an element; Python values of rows stay unchanged."""
        return {
            name: self._value(name, value) if isinstance(value, np.ndarray) else value
            for name, value in element.items()
        }

    def _value(self, name: str, array: np.ndarray) -> Any:
        if array.dtype.kind != "O":
            array = _narrowed(name, array.view("i8") if array.dtype.kind in "mM" else array)
            if isinstance(self.sharding, jax.sharding.Sharding):
                return jax.make_array_from_process_local_data(self.sharding, array)
            return jax.device_put(array, self.sharding)
        if self.objects == "error":
            raise PlanError(
                f"column {name!r} has no array of JAX",
                why="it holds texts, bytes, lists, or arrays of differing shapes",
                try_=f'.drop({name!r}), numbers for it, .padded_batch(n), or objects="list"',
            )
        return array.tolist()


def _narrowed(name: str, array: np.ndarray) -> np.ndarray:
    """Return 64-bit integers as JAX holds them; raise CastError for one that does not fit."""
    kind = NARROW.get(array.dtype.kind)
    if kind is None or array.itemsize < 8 or jax.config.jax_enable_x64:
        return array
    narrow = array.astype(kind)
    if (narrow != array).any():
        bad = array[narrow != array].flat[0]
        raise CastError(
            f"column {name!r} has {bad}, which {kind.name} arrays cannot hold",
            why="JAX has arrays of 32 bits unless jax_enable_x64 is set",
            try_='jax.config.update("jax_enable_x64", True), or .cast to a float',
        )
    return narrow
