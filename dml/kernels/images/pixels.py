"""``Pixels`` is an image with operations that are computed together when its bytes are needed.

Crops and flips change the view of the image; maps of values wait behind them; neighbouring tables
are composed to one; and resizing, flipping and normalising write the result in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dml.kernels.functions.function import UnfitValue
from dml.kernels.images import image_kernel
from dml.kernels.images.image_kernel import Target
from dml.kernels.images.resample_filters import NEAREST, Resize, resize

if TYPE_CHECKING:
    from dml.kernels.compiled.jit import Kernel

# A table (256,) or (channels, 256) of new values, or a function of each pixel's channels.
Map: TypeAlias = "np.ndarray | Callable[[np.ndarray], np.ndarray]"


class Misfit(UnfitValue):
    """An operation does not fit the size of an image; the text says why."""


class Pixels:
    """An image (h, w, channels) uint8, on which operations wait.

    The view is mapped by ``before``, resized to ``wanted``, mapped by ``after``, and mirrored.
    """

    def __init__(self, array: np.ndarray, kernel: Kernel | None = None) -> None:
        self.view, self.kernel = array, kernel
        self.before: list[Map] = []
        self.wanted: Resize | None = None
        self.after: list[Map] = []
        self.mirrored = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the result."""
        rows, columns, channels = self.view.shape
        if self.wanted is not None:
            rows, columns = self.wanted.height, self.wanted.width
        return rows, columns, channels

    def settled(self) -> np.ndarray:
        """Compute what waits; return the view, from which the next operation starts."""
        if self.before or self.wanted is not None or self.after or self.mirrored:
            self.replace(self.array())
        return self.view

    def replace(self, array: np.ndarray) -> Pixels:
        """Continue with ``array``, on which nothing waits."""
        self.view = array
        self.before, self.wanted, self.after, self.mirrored = [], None, [], False
        return self

    def crop(self, top: int, left: int, height: int, width: int) -> Pixels:
        """Keep a part; raise Misfit unless it has pixels and lies inside of the image."""
        rows, columns, _ = self.shape
        inside = top >= 0 and left >= 0 and top + height <= rows and left + width <= columns
        if not inside or height < 1 or width < 1:
            part = f"a part of {height} x {width} pixels from ({top}, {left})"
            raise Misfit(f"the image has {rows} x {columns} pixels, which have no {part}")
        if self.wanted is not None or self.mirrored:
            self.settled()
        self.view = self.view[top : top + height, left : left + width]
        return self

    def flip(self, *, vertical: bool = False) -> Pixels:
        """Reverse the order of columns, or of rows."""
        if vertical:
            if self.wanted is not None:
                self.settled()
            self.view = self.view[::-1]
        elif self.wanted is not None:
            self.mirrored = not self.mirrored
        else:
            self.view = self.view[:, ::-1]
        return self

    def resize(self, wanted: Resize) -> Pixels:
        """Resize to the size ``wanted``."""
        if self.before or self.wanted is not None:
            self.settled()
        self.wanted = wanted
        return self

    def map(self, change: Map) -> Pixels:
        """Map the values of each pixel; two tables in sequence become one."""
        waiting = self.before if self.wanted is None else self.after
        last = waiting[-1] if waiting else None
        if isinstance(last, np.ndarray) and isinstance(change, np.ndarray):
            waiting[-1] = _composed(last, change)
        else:
            waiting.append(change)
        return self

    def array(self) -> np.ndarray:
        """Return the result, (h, w, channels) uint8, which may be a view of the input."""
        found = self._resized()
        for change in self.after:
            found = _mapped(found, change)
        return found[:, ::-1] if self.mirrored else found

    def write(self, out: np.ndarray, table: np.ndarray | None = None, *, planes: bool) -> None:
        """Write the result to ``out``; with ``table`` (channels, 256), look up its floats there."""
        tables = self.after if self.wanted is not None else self.before
        if table is not None and len(tables) == 1 and isinstance(first := tables[0], np.ndarray):
            tables.clear()
            table = _composed(first, table)
        if self.kernel is None or self.after or self.before or not self._fits_kernel():
            _write(self.array(), out, table, planes=planes)
            return
        wanted = Resize(*self.shape[:2]) if self.wanted is None else self.wanted
        target = Target(out, planes, self.mirrored, table)
        image_kernel.write(self.kernel, self.view, wanted, target)

    def _fits_kernel(self) -> bool:
        nearest = self.wanted is not None and self.wanted.filter == NEAREST
        return self.view.shape[2] in (1, 3) and self.view.size > 0 and not nearest

    def _resized(self) -> np.ndarray:
        found = self.view
        for change in self.before:
            found = _mapped(found, change)
        if self.wanted is None:
            return found
        if self.kernel is None or not self._fits_kernel():
            return resize(found, self.wanted)
        out = np.empty((self.wanted.height, self.wanted.width, found.shape[2]), np.uint8)
        image_kernel.write(self.kernel, found, self.wanted, Target(out))
        return out


def _composed(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the table that maps by ``first``, then by ``second``."""
    if second.ndim == 1:
        return second.take(first)
    return second.take(first, 1) if first.ndim == 1 else np.take_along_axis(second, first, 1)


def _mapped(array: np.ndarray, change: Map) -> np.ndarray:
    if not isinstance(change, np.ndarray):
        return change(array)
    if change.ndim == 1:
        return change.take(array)
    out = np.empty(array.shape, change.dtype)
    for channel, table in enumerate(change):
        out[:, :, channel] = table[array[:, :, channel]]
    return out


def _write(array: np.ndarray, out: np.ndarray, table: np.ndarray | None, *, planes: bool) -> None:
    """Write ``array`` to ``out`` by NumPy, through ``table`` if there is one."""
    for channel in range(array.shape[2]):
        values = array[:, :, channel]
        place = out[channel] if planes else out[:, :, channel]
        place[...] = values if table is None else table[channel][values]
