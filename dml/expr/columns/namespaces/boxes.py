"""``col("x").boxes`` has functions of columns of boxes, which follow the images that they mark."""

from __future__ import annotations

from typing import Any

from dml.base.user_line import door
from dml.expr.columns.literal import whole
from dml.expr.columns.namespaces.namespace import Namespace
from dml.expr.columns.value import C
from dml.kernels.images.codec import LONGEST


class Boxes(Namespace[C]):
    """Functions of lists of boxes (left, top, right, bottom), in pixels; null gives null.

    Each changes the boxes as the function of the same name changes their image.
    """

    __slots__ = ()
    _title, _place = ".boxes", "boxes"

    @door
    def crop(self, box: Any) -> C:
        """Return the boxes in the part (top, left, height, width) of a column, cut at its edges.

        A box outside of the part becomes empty: its right is not beyond its left, or its bottom not
        below its top.
        """
        return self._apply("boxes.crop", others=(box,))

    @door
    def resize(self, height: int, width: int, *, size: Any) -> C:
        """Scale the boxes of images of ``size``, a column (height, width), to a new size."""
        wanted = whole("height", height, 1, LONGEST), whole("width", width, 1, LONGEST)
        return self._apply("boxes.resize", *wanted, others=(size,))

    @door
    def flip(self, width: int, *, where: Any = True) -> C:
        """Mirror the boxes of images of ``width`` pixels, in rows ``where`` that is true."""
        return self._apply("boxes.flip", whole("width", width, 1, LONGEST), others=(where,))
