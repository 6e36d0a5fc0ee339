"""Random parts of one image, drawn from its sequence of random numbers.

The arithmetic is exact or of single IEEE operations, so all processors draw the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from dml.kernels.rows.row_draws import RowDraws

# Tries of a random area and ratio before the middle of the image is taken.
TRIES = 10
# Terms of the series of the exponential function, exact to a float's last bit for small arguments.
TERMS = 20


def exponential(x: float) -> float:
    """Return e to the power ``x``, from sums and products alone, so that no library decides."""
    halvings = max(0, math.frexp(x)[1] + 1)
    small, total = x / (1 << halvings), 1.0
    for term in range(TERMS, 0, -1):
        total = 1.0 + small / term * total
    for _ in range(halvings):
        total *= total
    return total


def erased_box(
    shape: tuple[int, ...],
    draws: RowDraws,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int] | None:
    """Return (top, left, height, width) to erase, as torchvision's RandomErasing.

    The part is smaller than the image on both sides; None if ten tries do not fit.
    """
    rows, columns = shape[:2]
    for height, width in _sides(rows * columns, draws, scale, ratio):
        if 0 < height < rows and 0 < width < columns:
            return draws.integer(rows - height), draws.integer(columns - width), height, width
    return None


def _sides(
    size: int, draws: RowDraws, scale: tuple[float, float], ratio: tuple[float, float]
) -> Iterator[tuple[int, int]]:
    """Yield ten random rectangles of a share of ``size`` pixels: two sides, of a random ratio."""
    low, high = _logarithms(ratio)
    for _ in range(TRIES):
        area = size * draws.uniform(*scale)
        aspect = exponential(draws.uniform(low, high))
        yield round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))


@functools.lru_cache
def _logarithms(ratio: tuple[float, float]) -> tuple[float, float]:
    return math.log(ratio[0]), math.log(ratio[1])


def area_box(
    shape: tuple[int, ...],
    draws: RowDraws,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a random part, as torchvision's RandomResizedCrop.

    The part's share of the area is uniform in ``scale``, the logarithm of its width over its height
    uniform in ``ratio``. If ten tries do not fit, it is the largest part in the middle whose ratio
    is allowed.
    """
    rows, columns = shape[:2]
    for width, height in _sides(rows * columns, draws, scale, ratio):
        if 0 < width <= columns and 0 < height <= rows:
            return draws.integer(rows - height), draws.integer(columns - width), height, width
    width, height = columns, rows
    if columns < ratio[0] * rows:
        height = round(columns / ratio[0])
    elif columns > ratio[1] * rows:
        width = round(rows * ratio[1])
    height, width = max(min(height, rows), 1), max(min(width, columns), 1)
    return (rows - height) // 2, (columns - width) // 2, height, width
