"""Each image function is a step from one image to the next, with its parameters and arguments.

``STEPS`` has them by name. A step gets ``Pixels``, or bytes if it decodes, and returns ``Pixels``,
an array, bytes, or None for null. Arguments, such as a random draw, belong to the row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dml.kernels.images import codec
from dml.kernels.images.draws import area_box, erased_box
from dml.kernels.images.pixels import Misfit, Pixels
from dml.kernels.images.resample_filters import Resize, picture, pixels_of, short_side
from dml.kernels.rows.row_draws import RowDraws

Params: TypeAlias = tuple[Any, ...]
Step: TypeAlias = Callable[[Any, Params, tuple[Any, ...]], Any]

LEVELS = np.arange(256)


def decode(data: Any, params: Params, _: Params) -> Any:
    """Decode bytes; with ``on_error`` "null", return None if they cannot be read."""
    mode, most, on_error, upright = params
    try:
        return codec.decode(data, mode, most, upright=upright)
    except codec.UnreadableImage:
        if on_error == "null":
            return None
        raise


def size(image: Any, params: Params, _: Params) -> np.ndarray | None:
    """Return (height, width), of bytes by their header."""
    found = _shape(image, params)
    return None if found is None else np.array(found, np.int64)


def _shape(image: Any, header: Params) -> tuple[int, ...] | None:
    """Return height and width; with ``on_error`` "null", None for bytes that cannot be read.

    ``header`` has the most pixels, ``on_error``, and True if EXIF orientation counts.
    """
    if isinstance(image, Pixels):
        return image.shape[:2]
    most, on_error, upright = header
    try:
        return codec.size(image, most, upright=upright)
    except codec.UnreadableImage:
        if on_error == "null":
            return None
        raise


# ------------------------------------------------------------------------------------------- parts


def crop(image: Pixels, params: Params, _: Params) -> Pixels:
    """Keep the part from (top, left) of the given height and width."""
    return image.crop(*params)


def crop_box(image: Pixels, _: Params, given: Params) -> Pixels:
    """Keep the part that the row's box has: top, left, height, width."""
    top, left, height, width = (int(each) for each in given[0])
    return image.crop(top, left, height, width)


def center_crop(image: Pixels, params: Params, _: Params) -> Pixels:
    """Keep the middle; the upper left corner is rounded half to even, as in torchvision."""
    (rows, columns, _channels), (height, width) = image.shape, params
    return image.crop(round((rows - height) / 2), round((columns - width) / 2), height, width)


def random_crop(image: Pixels, params: Params, given: Params) -> Pixels:
    """Keep a part of the given size at a random place."""
    return image.crop(*_random_place(image.shape, params, given))


def random_crop_box(image: Any, params: Params, given: Params) -> np.ndarray | None:
    """Return top, left, height and width of ``random_crop``."""
    shape = _shape(image, params[2:])
    return None if shape is None else np.array(_random_place(shape, params, given))


def _random_place(shape: tuple[int, ...], size: Params, given: Params) -> tuple[int, ...]:
    (rows, columns), (height, width) = shape[:2], size[:2]
    if height > rows or width > columns:
        raise Misfit(f"the image has {rows} x {columns} pixels")
    draws = RowDraws(given[0])
    return draws.integer(rows - height), draws.integer(columns - width), height, width


def random_resized_crop(image: Pixels, params: Params, given: Params) -> Pixels:
    """Keep a part of random area and ratio, and resize it."""
    height, width, scale, ratio, kind, antialias = params
    image.crop(*area_box(image.shape, RowDraws(given[0]), scale, ratio))
    return image.resize(Resize(height, width, kind, antialias))


def random_resized_crop_box(image: Any, params: Params, given: Params) -> np.ndarray | None:
    """Return top, left, height and width of ``random_resized_crop``."""
    shape = _shape(image, params[6:])
    if shape is None:
        return None
    return np.array(area_box(shape, RowDraws(given[0]), params[2], params[3]))


def resize(image: Pixels, params: Params, _: Params) -> Pixels:
    """Resize to a height and width; without a width, the shorter side gets the height."""
    height, width, kind, antialias, box = params
    if width is None:
        height, width = short_side(image.shape, height)
        if max(height, width) > codec.LONGEST or min(height, width) < 1:
            rows, columns, _channels = image.shape
            text = f"the image of {rows} x {columns} pixels would have {height} x {width}"
            raise Misfit(text)
    rows, columns, _channels = image.shape
    if box is not None and (box[2] > columns or box[3] > rows):
        raise Misfit(f"the image has {rows} x {columns} pixels")
    return image.resize(Resize(height, width, kind, antialias, box))


def pad(image: Pixels, params: Params, _: Params) -> Pixels:
    """Add rows and columns of one colour."""
    (left, top, right, bottom), fill = params
    rows, columns, channels = image.shape
    array = np.empty((top + rows + bottom, left + columns + right, channels), np.uint8)
    array[:] = _channels(fill, channels)
    array[top : top + rows, left : left + columns] = image.settled()
    return image.replace(array)


def flip(image: Pixels, params: Params, given: Params) -> Pixels:
    """Mirror the image, if the row's flag is true or there is none."""
    if given and not given[0]:
        return image
    return image.flip(vertical=params[0] == "vertical")


def rotate(image: Pixels, params: Params, given: Params) -> Pixels:
    """Turn counterclockwise about the middle by Pillow; right angles move pixels alone."""
    angle, kind, expand, fill = params
    turned = _finite(given[0] if given else angle)
    if turned % 90 == 0 and (expand or turned % 180 == 0):
        return image.replace(np.rot90(image.settled(), int(turned // 90) % 4))
    found = picture(image.settled()).rotate(
        turned, _resampling(kind), expand=expand, fillcolor=_colour(fill, image)
    )
    return image.replace(pixels_of(found))


def affine(image: Pixels, params: Params, _: Params) -> Pixels:
    """Take the pixel at (x, y) from (ax + by + c, dx + ey + f), by Pillow."""
    matrix, kind, fill = params
    given = picture(image.settled())
    found = given.transform(
        given.size, _affine(), matrix, _resampling(kind), fillcolor=_colour(fill, image)
    )
    return image.replace(pixels_of(found))


def _resampling(kind: str) -> Any:
    from PIL.Image import Resampling  # noqa: PLC0415 - an extra

    return Resampling[kind.upper()]


def _affine() -> Any:
    from PIL.Image import Transform  # noqa: PLC0415 - an extra

    return Transform.AFFINE


def _colour(fill: tuple[int, ...], image: Pixels) -> Any:
    found = _channels(fill, image.shape[2])
    return found[0] if len(found) == 1 else found


def _channels(fill: tuple[int, ...], channels: int) -> tuple[int, ...]:
    return (fill * channels)[:channels]


def random_erasing(image: Pixels, params: Params, given: Params) -> Pixels:
    """Fill a random part with one colour, with a probability."""
    p, scale, ratio, fill = params
    draws = RowDraws(given[0])
    box = None if draws.uniform() >= p else erased_box(image.shape, draws, scale, ratio)
    if box is None:
        return image
    top, left, height, width = box
    array = image.settled().copy()
    array[top : top + height, left : left + width] = _channels(fill, image.shape[2])
    return image.replace(array)


# ----------------------------------------------------------------------------------------- colours


def _blend(first: Any, second: Any, factor: float) -> np.ndarray:
    """Return ``first`` + ``factor`` * (``second`` - ``first``) as Pillow blends: float32, cut."""
    low, high = np.asarray(first).astype(np.float32), np.asarray(second).astype(np.float32)
    mixed = low + np.float32(factor) * (high - low)
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _factor(params: Params, given: Params) -> float:
    """Return the amount of a change; raise Misfit for a column's value that has no meaning."""
    found = _finite(given[0] if given else params[0])
    if found < 0:
        raise Misfit(f"the amount is {found}, less than 0")
    return found


def _finite(given: Any) -> float:
    found = float(given)
    if not math.isfinite(found):
        raise Misfit(f"the amount is {found}")
    return found


def brightness(image: Pixels, params: Params, given: Params) -> Pixels:
    """Multiply the values, as Pillow's ImageEnhance.Brightness."""
    return image.map(_coloured(image, _blend(0, LEVELS, _factor(params, given))))


def contrast(image: Pixels, params: Params, given: Params) -> Pixels:
    """Move the values away from the mean grey, as Pillow's ImageEnhance.Contrast."""
    array = image.settled()
    grey = array[:, :, 0] if array.shape[2] == 1 else codec.to_grey(array[:, :, :3])
    mean = int(grey.sum(dtype=np.int64) / grey.size + 0.5)
    return image.map(_coloured(image, _blend(mean, LEVELS, _factor(params, given))))


def saturation(image: Pixels, params: Params, given: Params) -> Pixels:
    """Move the values away from the pixel's grey, as Pillow's ImageEnhance.Color."""
    factor = _factor(params, given)

    def change(array: np.ndarray) -> np.ndarray:
        if array.shape[2] == 1:
            return array
        made = _blend(codec.to_grey(array[:, :, :3]), array[:, :, :3], factor)
        return np.dstack([made, array[:, :, 3:]])

    return image.map(change)


def hue(image: Pixels, params: Params, given: Params) -> Pixels:
    """Turn the hue by a part of the circle in steps of 1/256, as torchvision does for Pillow.

    A shift of 0.0 changes nothing, while the way to another colour space and back would.
    """
    amount = _finite(given[0] if given else params[0])
    shift = np.uint8(int(amount * 255) % 256)

    def change(array: np.ndarray) -> np.ndarray:
        if array.shape[2] == 1 or amount == 0:
            return array
        turned = np.array(picture(array[:, :, :3]).convert("HSV"))
        turned[:, :, 0] += shift
        from PIL import Image  # noqa: PLC0415 - an extra

        made = np.asarray(Image.fromarray(turned, "HSV").convert("RGB"))
        return np.dstack([made, array[:, :, 3:]])

    return image.map(change)


def gray(image: Pixels, params: Params, given: Params) -> Pixels:
    """Weigh red, green and blue to one channel, or to ``channels`` equal ones."""
    channels = params[0]
    if given and not given[0] and image.shape[2] == channels:
        return image

    def change(array: np.ndarray) -> np.ndarray:
        grey = array if array.shape[2] == 1 else codec.to_grey(array[:, :, :3])
        return grey if channels == 1 else np.repeat(grey, channels, 2)

    # the number of channels changes, which a map may not
    return image.replace(change(image.settled()))


def lut(image: Pixels, params: Params, given: Params) -> Pixels:
    """Map every value by a table, if the row's flag is true or there is none."""
    if given and not given[0]:
        return image
    return image.map(_coloured(image, _table(params[0])))


@functools.lru_cache(maxsize=256)
def _table(values: bytes) -> np.ndarray:
    return np.frombuffer(values, np.uint8)


def _coloured(image: Pixels, table: np.ndarray) -> np.ndarray:
    """Return ``table`` for all channels but the fourth, opacity, which stays."""
    if image.shape[2] < 4:
        return table
    return np.stack([table, table, table, LEVELS.astype(np.uint8)])


def blur(image: Pixels, params: Params, given: Params) -> Pixels:
    """Blur by Pillow's GaussianBlur."""
    from PIL import ImageFilter  # noqa: PLC0415 - an extra

    radius = _factor(params, given)
    if radius <= 0:
        return image
    return image.replace(
        pixels_of(picture(image.settled()).filter(ImageFilter.GaussianBlur(radius)))
    )


def enhance(image: Pixels, params: Params, _: Params) -> Pixels:
    """Apply a function of Pillow's ImageOps that needs the whole image; opacity stays."""
    from PIL import ImageOps  # noqa: PLC0415 - an extra

    array = image.settled()
    made = pixels_of(getattr(ImageOps, params[0])(picture(array[:, :, :3])))
    return image.replace(np.dstack([made, array[:, :, 3:]]))


# ----------------------------------------------------------------------------------------- results


def encode(image: Pixels, params: Params, _: Params) -> bytes:
    """Encode by Pillow."""
    kind, quality = params
    target = pa.BufferOutputStream()
    array = np.ascontiguousarray(image.settled())
    try:
        picture(array).save(target, kind.upper(), quality=quality)
    except (OSError, ValueError) as error:
        height, width, _channels = array.shape
        raise Misfit(f"{kind} cannot have {height} x {width} pixels: {error}") from None
    return bytes(target.getvalue())


@functools.lru_cache(maxsize=256)
def float_table(mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    """Return ``(value / 255 - mean) / std``, in float32, of each value: (channels, 256)."""
    levels = LEVELS.astype(np.float32) / np.float32(255)
    pairs = zip(mean, std, strict=True)
    return np.stack([(levels - np.float32(m)) / np.float32(s) for m, s in pairs])


STEPS: dict[str, Step] = {
    "image.decode": decode,
    "image.size": size,
    "image.crop": crop,
    "image.crop_box": crop_box,
    "image.center_crop": center_crop,
    "image.random_crop": random_crop,
    "image.random_crop_box": random_crop_box,
    "image.random_resized_crop": random_resized_crop,
    "image.random_resized_crop_box": random_resized_crop_box,
    "image.resize": resize,
    "image.pad": pad,
    "image.flip": flip,
    "image.rotate": rotate,
    "image.affine": affine,
    "image.random_erasing": random_erasing,
    "image.brightness": brightness,
    "image.contrast": contrast,
    "image.saturation": saturation,
    "image.hue": hue,
    "image.gray": gray,
    "image.lut": lut,
    "image.blur": blur,
    "image.enhance": enhance,
    "image.encode": encode,
}
