"""Images of Pillow, and torchvision's rules for sizes, are the references of image functions.

An image is an array (height, width, channels) of bytes. The references are those of Pillow's
``Image``, ``ImageEnhance``, ``ImageOps`` and ``ImageFilter``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageFilter, ImageOps

from dml.kernels.rows.ids import GOLDEN, mix64_int
from dml.testing.functions.meaning import Params
from dml.testing.scalars.operations import CastFailed

MODES = {"L": 1, "P": 1, "RGB": 3, "RGBA": 4}
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
WIDE = ("I;16", "I;16B", "I;16L", "I;16N")


def pictured(array: np.ndarray) -> Image.Image:
    """Return an array as an image of Pillow."""
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def arrayed(image: Image.Image) -> np.ndarray:
    """Return an image of Pillow as an array with three axes."""
    return np.atleast_3d(np.array(image))


def opened(data: Any) -> Image.Image:
    """Open encoded bytes, or the bytes of Hugging Face's struct; raise CastFailed if unreadable."""
    given = data["bytes"] if isinstance(data, dict) else data
    try:
        return Image.open(io.BytesIO(given), formats=FORMATS)
    except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
        raise CastFailed(str(error)) from None


def decoded(data: Any, mode: str, most: int, on_error: str, upright: bool) -> Any:  # noqa: FBT001 - as written
    """Decode as Pillow's ``open(...).convert(mode)``; of sixteen bits, the upper eight."""
    try:
        image = opened(data)
        refused = image.width * image.height > most or image.mode in ("I", "F")
        image = ImageOps.exif_transpose(image) if upright else image
        if image.mode in WIDE:
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        refused |= mode == "P" and image.mode not in ("P", "L")
        image = image if mode == "P" else image.convert(mode)
        found = None if refused else arrayed(image)
    except Exception:  # noqa: BLE001 - a damaged file may raise anything
        found = None
    if found is None and on_error != "null":
        raise CastFailed("unreadable")
    return found


def sized(image: Any, most: int, on_error: str, upright: bool) -> list[int] | None:  # noqa: FBT001
    """Return height and width; of bytes, those that ``decoded`` has."""
    if isinstance(image, np.ndarray):
        return list(image.shape[:2])
    size: list[int] | None = None
    try:
        found = opened(image)
        turned = upright and found.getexif().get(0x0112) in (5, 6, 7, 8)
        if found.height * found.width <= most:
            size = [found.width, found.height] if turned else [found.height, found.width]
    except Exception:  # noqa: BLE001 - a damaged file may raise anything
        size = None
    if size is None and on_error != "null":
        raise CastFailed("unreadable")
    return size


def part(image: np.ndarray, top: int, left: int, height: int, width: int) -> np.ndarray:
    """Return a part of the image, which must lie inside."""
    if min(top, left) < 0 or top + height > image.shape[0] or left + width > image.shape[1]:
        raise CastFailed("outside")
    return image[top : top + height, left : left + width]


def middle(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the part in the middle."""
    rows, columns = image.shape[:2]
    return part(image, round((rows - height) / 2), round((columns - width) / 2), height, width)


def numbers(draw: float) -> Callable[[], float]:
    """Return the sequence that a draw starts, one number a call."""
    key, count = mix64_int(int(draw * 2**53) + 1), 0

    def following() -> float:
        nonlocal count
        count += 1
        return float((mix64_int(key + count * GOLDEN) >> 11) * 2.0**-53)

    return following


def _least(number: float, most: int) -> int:
    return min(int(number * (most + 1)), most)


def area(size: Any, following: Callable[[], float], scale: Params, ratio: Params) -> list[int]:
    """Return a part by the rule of torchvision's RandomResizedCrop."""
    rows, columns = size
    for height, width in _tries(size, following, scale, ratio):
        if 0 < width <= columns and 0 < height <= rows:
            top = _least(following(), rows - height)
            return [top, _least(following(), columns - width), height, width]
    height, width = rows, columns
    if columns / rows < ratio[0]:
        height = max(1, min(rows, round(columns / ratio[0])))
    elif columns / rows > ratio[1]:
        width = max(1, min(columns, round(rows * ratio[1])))
    return [(rows - height) // 2, (columns - width) // 2, height, width]


def _tries(size: Any, following: Callable[[], float], scale: Params, ratio: Params) -> Any:
    """Yield ten random heights and widths."""
    logs = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        wanted = size[0] * size[1] * (scale[0] + (scale[1] - scale[0]) * following())
        aspect = math.exp(logs[0] + (logs[1] - logs[0]) * following())
        yield round(math.sqrt(wanted / aspect)), round(math.sqrt(wanted * aspect))


def place(size: Any, draw: float, height: int, width: int) -> list[int]:
    """Return the part of ``random_crop``."""
    rows, columns = size
    if height > rows or width > columns:
        raise CastFailed("too small")
    following = numbers(draw)
    top = _least(following(), rows - height)
    return [top, _least(following(), columns - width), height, width]


def placed(image: Any, draw: float, height: int, width: int, *header: Any) -> list[int] | None:
    """Return the part of ``random_crop``, or None for bytes that cannot be read."""
    size = sized(image, *header)
    return None if size is None else place(size, draw, height, width)


def areas(image: Any, draw: float, _h: int, _w: int, *rest: Any) -> list[int] | None:
    """Return the part of ``random_resized_crop``, or None for bytes that cannot be read."""
    scale, ratio, _kind, _antialias, *header = rest
    size = sized(image, *header)
    return None if size is None else area(size, numbers(draw), scale, ratio)


def resized(image: np.ndarray, height: int, width: int | None, *rest: Any) -> np.ndarray:
    """Resize as Pillow 13; without a width, by torchvision's rule for the shorter side."""
    (rows, columns), (kind, antialias, box) = image.shape[:2], rest
    if width is None:
        short = height
        height = short if rows <= columns else int(short * rows / columns)
        width = short if columns < rows else int(short * columns / rows)
    if box is not None and (box[2] > columns or box[3] > rows):
        raise CastFailed("outside")
    if not antialias:
        return _four(image, height, width, box or (0, 0, columns, rows))
    found = pictured(image).resize((width, height), Image.Resampling[kind.upper()], box)
    return arrayed(found)


def _four(image: np.ndarray, height: int, width: int, box: Any) -> np.ndarray:
    """Resize by two neighbours of each axis, as two passes of 22-bit fractions."""
    left, upper, right, lower = box
    rows, columns = image.shape[:2]
    turned = rows > height and rows - height > 2 * (columns - width)
    for axis in (0, 1) if turned else (1, 0):
        start, stop, out = (upper, lower, height) if axis == 0 else (left, right, width)
        if out == image.shape[axis] and start == 0 and stop == out:
            continue
        image = np.stack([_line(image, axis, start, stop, (out, n)) for n in range(out)], axis)
    return image


def _line(
    image: np.ndarray, axis: int, start: float, stop: float, of: tuple[int, int]
) -> np.ndarray:
    out, n = of
    centre = float(np.float32(start)) + (n + 0.5) * (
        float(np.float32(stop) - np.float32(start)) / out
    )
    first = max(int(centre - 0.5), 0)
    last = min(int(centre + 1.5), image.shape[axis])
    shares = [max(0.0, 1.0 - abs(i - centre + 0.5)) for i in range(first, last)]
    total = 0.0
    for share in shares:
        total += share
    weights = [int(0.5 + share / total * (1 << 22)) for share in shares]
    total_bytes = np.zeros(image.take(0, axis).shape, np.int64)
    for i, weight in zip(range(first, last), weights, strict=True):
        total_bytes += image.take(i, axis).astype(np.int64) * weight
    found: np.ndarray = np.clip((total_bytes + (1 << 21)) >> 22, 0, 255).astype(np.uint8)
    return found


def padded(image: np.ndarray, sides: Params, fill: Params) -> np.ndarray:
    """Surround the image with one colour."""
    left, top, right, bottom = sides
    width, height = image.shape[1] + left + right, image.shape[0] + top + bottom
    colour = (fill * image.shape[2])[: image.shape[2]]
    found = np.tile(np.array(colour, np.uint8), (height, width, 1))
    found[top : top + image.shape[0], left : left + image.shape[1]] = image
    return found


def flipped(image: np.ndarray, *rest: Any) -> np.ndarray:
    """Mirror the image, unless a flag is false."""
    direction = rest[-1]
    if len(rest) > 1 and not rest[0]:
        return image
    turn = Image.Transpose
    way = turn.FLIP_TOP_BOTTOM if direction == "vertical" else turn.FLIP_LEFT_RIGHT
    return arrayed(pictured(image).transpose(way))


def rotated(image: np.ndarray, *rest: Any) -> np.ndarray:
    """Turn the image about its middle."""
    *given, angle, kind, expand, fill = rest
    colour = (fill * image.shape[2])[: image.shape[2]]
    found = pictured(image).rotate(
        given[0] if given else angle,
        Image.Resampling[kind.upper()],
        expand=expand,
        fillcolor=colour[0] if len(colour) == 1 else colour,
    )
    return arrayed(found)


def transformed(image: np.ndarray, matrix: Params, kind: str, fill: Params) -> np.ndarray:
    """Take each pixel from the place that a matrix gives."""
    colour, given = (fill * image.shape[2])[: image.shape[2]], pictured(image)
    found = given.transform(
        given.size,
        Image.Transform.AFFINE,
        matrix,
        Image.Resampling[kind.upper()],
        fillcolor=colour[0] if len(colour) == 1 else colour,
    )
    return arrayed(found)


def erased(image: np.ndarray, draw: float, p: float, *sizes: Any) -> np.ndarray:
    """Fill a random part."""
    scale, ratio, fill = sizes
    following = numbers(draw)
    if following() >= p:
        return image
    rows, columns = image.shape[:2]
    for width, height in _tries((rows, columns), following, scale, ratio):
        if 0 < height < rows and 0 < width < columns:
            break
    else:
        return image
    top, left = _least(following(), rows - height), _least(following(), columns - width)
    found = image.copy()
    found[top : top + height, left : left + width] = (fill * image.shape[2])[: image.shape[2]]
    return found


def enhanced(kind: Any) -> Callable[..., np.ndarray]:
    """Return the function of a class of ``ImageEnhance``; opacity stays."""

    def means(image: np.ndarray, *rest: Any) -> np.ndarray:
        colours = pictured(image[:, :, :3] if image.shape[2] == 4 else image)
        found = arrayed(kind(colours).enhance(np.float64(rest[0])))
        return np.dstack([found, image[:, :, 3:]]) if image.shape[2] == 4 else found

    return means


def turned(image: np.ndarray, *rest: Any) -> np.ndarray:
    """Turn the hue, as torchvision's ``adjust_hue`` of an image of Pillow."""
    if image.shape[2] == 1 or rest[0] == 0:
        return image
    hue, saturation, value = pictured(image[:, :, :3]).convert("HSV").split()
    moved = (np.array(hue).astype(int) + int(rest[0] * 255)) % 256
    hue = Image.fromarray(moved.astype(np.uint8))
    found = arrayed(Image.merge("HSV", (hue, saturation, value)).convert("RGB"))
    return np.dstack([found, image[:, :, 3:]])


def greyed(image: np.ndarray, *rest: Any) -> np.ndarray:
    """Return one channel of grey, or several."""
    channels = rest[-1]
    if len(rest) > 1 and not rest[0] and image.shape[2] == channels:
        return image
    grey = image if image.shape[2] == 1 else arrayed(pictured(image[:, :, :3]).convert("L"))
    return np.repeat(grey, channels, 2)


def looked_up(image: np.ndarray, *rest: Any) -> np.ndarray:
    """Replace each value by its entry in a table."""
    table = rest[-1]
    if len(rest) > 1 and not rest[0]:
        return image
    found = np.array([[[table[v] for v in cell] for cell in row] for row in image], np.uint8)
    found[:, :, 3:] = image[:, :, 3:]
    return found


def blurred(image: np.ndarray, *rest: Any) -> np.ndarray:
    """Blur by a Gaussian."""
    if rest[0] <= 0:
        return image
    return arrayed(pictured(image).filter(ImageFilter.GaussianBlur(rest[0])))


def operated(image: np.ndarray, name: str) -> np.ndarray:
    """Apply a function of ``ImageOps`` to the colours."""
    found = arrayed(getattr(ImageOps, name)(pictured(image[:, :, :3])))
    return np.dstack([found, image[:, :, 3:]])


def encoded(image: np.ndarray, kind: str, quality: int) -> bytes:
    """Encode by Pillow."""
    target = io.BytesIO()
    pictured(image).save(target, kind.upper(), quality=quality)
    return target.getvalue()


def floats(image: np.ndarray, mean: Params, std: Params, layout: str) -> Any:
    """Return (x / 255 - mean) / std in float32."""
    channels = image.shape[2]
    means = np.array((mean * channels)[:channels], np.float32)
    deviations = np.array((std * channels)[:channels], np.float32)
    found = (image.astype(np.float32) / np.float32(255) - means) / deviations
    return found.transpose(2, 0, 1) if layout == "CHW" else found
