"""Images are resized as Pillow 13 resizes them: in two passes of fixed-point sums.

Pillow's bytes depend on which pass is first, and versions of Pillow choose differently; the order
is part of this definition. NumPy's tier lets Pillow compute one pass at a time, so the bytes are
the same with all versions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

# Left, upper, right and lower edge of the part of an image that is resized, in pixels.
Box: TypeAlias = tuple[float, float, float, float]

# Half the width of each filter, in pixels of an image that is not made smaller.
SUPPORTS = {"box": 0.5, "bilinear": 1.0, "hamming": 1.0, "bicubic": 2.0, "lanczos": 3.0}
NEAREST = "nearest"
# Bits of the fractions of weights.
PRECISION = 22


class Resize(NamedTuple):
    """The result's size and filter; without ``box``, the whole image is resized.

    Without ``antialias``, a filter has the width that it has for enlarging, as in OpenCV.
    """

    height: int
    width: int
    filter: str = "bilinear"
    antialias: bool = True
    box: Box | None = None

    def edges(self, shape: tuple[int, ...]) -> Box:
        """Return the box, or the whole of an image of ``shape``."""
        return (0.0, 0.0, float(shape[1]), float(shape[0])) if self.box is None else self.box

    def passes(self, shape: tuple[int, ...]) -> tuple[bool, bool]:
        """Return whether the horizontal and the vertical pass change anything."""
        left, upper, right, lower = self.edges(shape)
        across = self.width != shape[1] or left != 0 or right != self.width
        return across, self.height != shape[0] or upper != 0 or lower != self.height


def vertical_first(shape: tuple[int, ...], wanted: Resize) -> bool:
    """Return True if rows shrink by more than twice as many pixels as columns do."""
    less = shape[0] - wanted.height
    return less > 0 and less > 2 * (shape[1] - wanted.width)


def short_side(shape: tuple[int, ...], size: int) -> tuple[int, int]:
    """Return the height and width with shorter side ``size`` and the same ratio, rounded down."""
    height, width = shape[:2]
    if height <= width:
        return size, int(size * width / height)
    return int(size * height / width), size


def resize(array: np.ndarray, wanted: Resize) -> np.ndarray:
    """Return ``array`` (h, w, channels) uint8, resized by NumPy or Pillow.

    With four channels, the last is opacity, by which the others are multiplied in between.
    """
    if wanted.filter == NEAREST:
        return _nearest(array, wanted)
    across, down = wanted.passes(array.shape)
    if not (across or down):
        return array
    if not wanted.antialias:
        return _by_numpy(array, wanted)
    image = picture(array)
    if array.shape[2] == 4:
        image = image.convert("RGBa")
    left, upper, right, lower = wanted.edges(array.shape)
    filters = _filters()
    for vertical in (True, False) if vertical_first(array.shape, wanted) else (False, True):
        width, height = image.size
        if vertical and down:
            size, box = (width, wanted.height), (0.0, upper, float(width), lower)
        elif not vertical and across:
            size, box = (wanted.width, height), (left, 0.0, right, float(height))
        else:
            continue
        image = image.resize(size, filters[wanted.filter], box)
    return pixels_of(image.convert("RGBA") if array.shape[2] == 4 else image)


def picture(array: np.ndarray) -> Image:
    """Return (h, w, channels) uint8 as an image of Pillow: L, RGB or RGBA."""
    from PIL import Image  # noqa: PLC0415 - an extra

    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def pixels_of(image: Image) -> np.ndarray:
    """Return an image of Pillow as (h, w, channels) uint8."""
    array = np.asarray(image)
    return np.atleast_3d(array)


@functools.cache
def _filters() -> dict[str, Any]:
    from PIL.Image import Resampling  # noqa: PLC0415 - an extra

    return {name: Resampling[name.upper()] for name in SUPPORTS}


def _nearest(array: np.ndarray, wanted: Resize) -> np.ndarray:
    """Return the pixels in whose middles the results' middles lie."""
    left, upper, right, lower = wanted.edges(array.shape)
    down = _places(upper, lower, wanted.height, array.shape[0])
    across = _places(left, right, wanted.width, array.shape[1])
    found: np.ndarray = array[down[:, None], across]
    return found


def _places(start: float, stop: float, out: int, size: int) -> np.ndarray:
    """Return the place of each result, summed one step at a time, as Pillow does."""
    step = (stop - start) / out
    steps = np.full(out, step)
    steps[0] = start + 0.5 * step
    places = np.add.accumulate(steps).astype(np.int64)
    return np.minimum(places, size - 1)


def _by_numpy(array: np.ndarray, wanted: Resize) -> np.ndarray:
    """Resize by bilinear weights of two pixels for each axis."""
    left, upper, right, lower = wanted.edges(array.shape)
    across, down = wanted.passes(array.shape)
    for vertical in (True, False) if vertical_first(array.shape, wanted) else (False, True):
        if vertical and down:
            array = _axis(array, 0, upper, lower, wanted.height)
        elif not vertical and across:
            array = _axis(array, 1, left, right, wanted.width)
    return array


def _axis(array: np.ndarray, axis: int, start: float, stop: float, out: int) -> np.ndarray:
    """Return ``array`` with ``out`` weighted sums of neighbours along ``axis``."""
    size = array.shape[axis]
    low, high = np.float32(start), np.float32(stop)
    scale = float(high - low) / out
    centre = float(low) + (np.arange(out) + 0.5) * scale
    first = np.maximum((centre - 0.5).astype(np.int64), 0)
    count = np.minimum((centre + 1.5).astype(np.int64), size) - first
    weights = np.zeros((out, 3))
    for i in range(3):
        part = np.maximum(1.0 - np.abs(i + first - centre + 0.5), 0.0)
        weights[:, i] = np.where(i < count, part, 0.0)
    total = weights[:, 0] + weights[:, 1] + weights[:, 2]
    weights /= np.where(total == 0.0, 1.0, total)[:, None]
    fixed = (0.5 + weights * (1 << PRECISION)).astype(np.int32)
    shape = [1, 1, 1]
    shape[axis] = out
    sums = np.full((*array.shape[:axis], out, *array.shape[axis + 1 :]), 1 << 21, np.int32)
    for i in range(3):
        part = array.take(np.minimum(first + i, size - 1), axis)
        sums += part.astype(np.int32) * fixed[:, i].reshape(shape)
    made: np.ndarray = np.clip(sums >> PRECISION, 0, 255).astype(np.uint8)
    return made
