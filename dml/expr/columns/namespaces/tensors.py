"""``col("x").tensor`` has functions of columns of fixed-shape tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.literal import whole
from dml.expr.columns.namespaces.namespace import Namespace, filler
from dml.expr.columns.value import C

Axes = int | Sequence[int] | None
# Maximum size of an axis: a block of rows must fit into memory.
LONGEST = 1 << 24


class Tensors(Namespace[C]):
    """Functions of a tensor column, row by row; axis 0 is a row's first axis. Null gives null."""

    __slots__ = ()
    _title, _place = ".tensor", "arr"

    @door
    def reshape(self, *shape: int) -> C:
        """Return the elements, in row-major order, as ``shape``; one axis may be -1 (inferred)."""
        given = _numbers("shape of reshape", shape, -1)
        if not given or 0 in given or given.count(-1) > 1:
            raise PlanError(
                f"reshape to {given}",
                why="a shape has axes of at least one element, one of which may be -1",
                try_=".tensor.reshape(-1)",
            )
        return self._apply("tensor.reshape", given)

    @door
    def transpose(self, *axes: int) -> C:
        """Permute the axes into the order ``axes``; without arguments, reverse their order."""
        return self._apply("tensor.transpose", _numbers("axis of transpose", axes) or None)

    @door
    def flip(self, axes: Axes = None) -> C:
        """Return the elements in reverse order along ``axes``, or along all axes."""
        return self._apply("tensor.flip", _axes("flip", axes))

    @door
    def pad(self, widths: Any, value: Any = 0) -> C:
        """Surround the tensor with ``value``; ``widths`` has (before, after) for each axis."""
        pairs = tuple(_numbers("width of pad", pair, 0, LONGEST) for pair in _each(widths))
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise PlanError(
                f"pad by {widths!r}",
                why="each axis has a width before and one after",
                try_=".tensor.pad([(0, 0), (1, 1)])",
            )
        return self._apply("tensor.pad", pairs, filler("value of pad", value))

    @door
    def crop(self, size: Sequence[int], offset: Sequence[int] | None = None) -> C:
        """Return the part of shape ``size`` that begins at ``offset``, or else in the middle."""
        start = None if offset is None else _numbers("offset of crop", offset, 0)
        return self._apply("tensor.crop", _numbers("size of crop", size, 1), start)

    @door
    def sum(self, axes: Axes = None) -> C:
        """Return the sum along ``axes``, or of all elements.

        Integers are summed in int64 with overflow. Floats are added in float64, in row-major order
        starting from 0.0, and the sum is rounded to their type once.
        """
        return self._apply("tensor.sum", _axes("sum", axes))

    @door
    def mean(self, axes: Axes = None) -> C:
        """Return the mean, adding as ``sum`` does: float64, or float32 for float32."""
        return self._apply("tensor.mean", _axes("mean", axes))

    def to_list(self) -> C:
        """Return the elements as a list; nested lists if there are more axes."""
        return self._apply("tensor.to_list")

    def shape(self) -> C:
        """Return the shape, an int64 tensor that is the same for each row."""
        return self._apply("tensor.shape")


def _axes(verb: str, axes: Any) -> tuple[int, ...] | None:
    if axes is None:
        return None
    return _numbers(f"axis of {verb}", axes if isinstance(axes, Sequence) else (axes,))


def _numbers(
    what: str, values: Any, least: int | None = None, most: int | None = None
) -> tuple[int, ...]:
    return tuple(whole(what, value, least, most) for value in _each(values))


def _each(values: Any) -> Sequence[Any]:
    if isinstance(values, list | tuple):
        return values
    raise PlanError(
        f"a list of numbers is needed, got {values!r}",
        why=f"it is of type {type(values).__name__}",
        try_="one number for each axis, such as (2, 3)",
    )
