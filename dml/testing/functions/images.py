"""The oracle computes functions of images by Pillow, one picture at a time.

An image is an array (height, width, channels) of bytes. The references are those of Pillow's
``Image``, ``ImageEnhance``, ``ImageOps`` and ``ImageFilter``, and torchvision's rules for sizes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from dml.base.open_tensors import OpenTensor
from dml.errors import SchemaError
from dml.expr.columns.column import Column
from dml.expr.columns.column import random as drawn_number
from dml.kernels.rows.ids import GOLDEN, mix64_int
from dml.testing.functions.meaning import BYTES, Draw, FunctionMeaning, Gives, Params, fixed
from dml.testing.scalars.operations import CastFailed

MODES = {"L": 1, "P": 1, "RGB": 3, "RGBA": 4}
BOX, PAIR = (pa.fixed_shape_tensor(pa.int64(), (n,)) for n in (4, 2))
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


def sized(image: Any, most: int) -> list[int]:
    """Return height and width."""
    if isinstance(image, np.ndarray):
        return list(image.shape[:2])
    found = opened(image)
    if found.height * found.width > most:
        raise CastFailed("too large")
    return [found.height, found.width]


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


def area(image: Any, following: Callable[[], float], scale: Params, ratio: Params) -> list[int]:
    """Return a part by the rule of torchvision's RandomResizedCrop."""
    rows, columns = sized(image, 1 << 62)
    logs = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        wanted = rows * columns * (scale[0] + (scale[1] - scale[0]) * following())
        aspect = math.exp(logs[0] + (logs[1] - logs[0]) * following())
        width, height = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < width <= columns and 0 < height <= rows:
            top = _least(following(), rows - height)
            return [top, _least(following(), columns - width), height, width]
    height, width = rows, columns
    if columns / rows < ratio[0]:
        height = max(1, min(rows, round(columns / ratio[0])))
    elif columns / rows > ratio[1]:
        width = max(1, min(columns, round(rows * ratio[1])))
    return [(rows - height) // 2, (columns - width) // 2, height, width]


def place(image: Any, draw: float, height: int, width: int) -> list[int]:
    """Return the part of ``random_crop``."""
    rows, columns = sized(image, 1 << 62)
    if height > rows or width > columns:
        raise CastFailed("too small")
    following = numbers(draw)
    top = _least(following(), rows - height)
    return [top, _least(following(), columns - width), height, width]


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
    top, left, height, width = area(image, following, scale, ratio)
    found = image.copy()
    found[top : top + height, left : left + width] = (fill * image.shape[2])[: image.shape[2]]
    return found


def _enhanced(kind: Any) -> Callable[..., np.ndarray]:
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


# ------------------------------------------------------------------------------------------- types


def _encoded(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and field.type in BYTES for field in kind)
    return kind in BYTES


def _image(kind: pa.DataType) -> bool:
    tensor = isinstance(kind, OpenTensor | pa.FixedShapeTensorType) and len(kind.shape) == 3
    return tensor and kind.value_type == pa.uint8() and kind.shape[2] in (1, 3, 4)


def _either(kind: pa.DataType) -> bool:
    return _encoded(kind) or _image(kind)


def _of(*shape: int | None, value: pa.DataType | None = None) -> pa.DataType:
    value = pa.uint8() if value is None else value
    return OpenTensor(value, shape) if None in shape else pa.fixed_shape_tensor(value, shape)


def _like(kind: pa.DataType, _params: Params) -> pa.DataType:
    return _of(*kind.shape)


def _cut(kind: pa.DataType, top: int, left: int, height: int, width: int) -> pa.DataType:
    for size, stop in zip(kind.shape, (top + height, left + width), strict=False):
        if size is not None and stop > size:
            raise SchemaError("outside")
    return _of(height, width, kind.shape[2])


def _scaled(kind: pa.DataType, params: Params) -> pa.DataType:
    height, width = params[:2]
    rows, columns, channels = kind.shape
    if width is None and None not in kind.shape:
        made = resized(np.zeros((rows, columns, 1), np.uint8), height, None, "nearest", True, None)  # noqa: FBT003
        height, width = made.shape[:2]
    return _of(None, None, channels) if width is None else _of(height, width, channels)


def _wider(kind: pa.DataType, params: Params) -> pa.DataType:
    left, top, right, bottom = params[0]
    rows, columns, channels = kind.shape
    return _of(rows and rows + top + bottom, columns and columns + left + right, channels)


def _normal(kind: pa.DataType, params: Params) -> pa.DataType:
    rows, columns, channels = kind.shape
    if any(len(each) not in (1, channels) for each in params[:2]):
        raise SchemaError("other channels")
    shape = (channels, rows, columns) if params[2] == "CHW" else (rows, columns, channels)
    return _of(*shape, value=pa.float32())


def _bytes(kind: pa.DataType, params: Params) -> pa.DataType:
    if params[0] == "jpeg" and kind.shape[2] == 4:
        raise SchemaError("jpeg has no opacity")
    return pa.binary()


def _given(kind: pa.DataType) -> Callable[[pa.DataType], pa.DataType]:
    return lambda _: kind


NUMBER, FLAG = _given(pa.float64()), _given(pa.bool_())


def _meaning(
    name: str,
    gives: Gives,
    means: Callable[..., Any],
    drawn: Callable[[Draw, Any], Column],
    **facts: Any,
) -> FunctionMeaning:
    takes = facts.pop("takes", _image)
    return FunctionMeaning(f"image.{name}", takes, gives, means, drawn, **facts)


SIZES = ((3, 4), (4, 3), (6, 6), (2, 7))
FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
TABLE = [(7 * i) % 256 for i in range(256)]


def _factor(d: Draw) -> Any:
    return d.choice([0.0, 0.4, 1.0, 1.3, 2.5, drawn_number() * 2])


def _where(d: Draw) -> Any:
    return d.choice([None, drawn_number() < 0.5])


MEANINGS = (
    _meaning(
        "decode",
        lambda _, params: _of(None, None, MODES[params[0]]),
        decoded,
        lambda d, c: c.image.decode(
            d.choice(["RGB", "L", "RGBA", "P"]),
            max_pixels=d.choice([40, 1000]),
            on_error=d.choice(["null", "null", "raise"]),
            exif_transpose=d.random() < 0.3,
        ),
        takes=_encoded,
    ),
    _meaning(
        "size",
        fixed(PAIR),
        sized,
        lambda d, c: c.image.size(max_pixels=d.choice([40, 1000])),
        takes=_either,
    ),
    _meaning(
        "crop",
        lambda kind, params: _cut(kind, *params),
        part,
        lambda d, c: c.image.crop(d.randint(0, 2), d.randint(0, 2), *d.choice(SIZES)),
    ),
    _meaning(
        "crop_box",
        lambda kind, _: _of(None, None, kind.shape[2]),
        lambda image, box: part(image, *(int(n) for n in box)),
        lambda d, c: c.image.crop(c.image.random_crop(*d.choice(SIZES), params=True)),
        rest=_given(BOX),
    ),
    _meaning(
        "center_crop",
        lambda kind, params: _cut(kind, 0, 0, *params),
        middle,
        lambda d, c: c.image.center_crop(*d.choice(SIZES)),
    ),
    _meaning(
        "random_crop",
        lambda kind, params: _cut(kind, 0, 0, *params),
        lambda image, draw, *size: part(image, *place(image, draw, *size)),
        lambda d, c: c.image.random_crop(*d.choice(SIZES)),
        rest=NUMBER,
    ),
    _meaning(
        "random_crop_box",
        fixed(BOX),
        place,
        lambda d, c: c.image.random_crop(*d.choice(SIZES), params=True),
        takes=_either,
        rest=NUMBER,
    ),
    _meaning(
        "random_resized_crop",
        lambda kind, params: _of(*params[:2], kind.shape[2]),
        lambda image, draw, height, width, scale, ratio, kind, antialias: resized(
            part(image, *area(image, numbers(draw), scale, ratio)),
            height,
            width,
            kind,
            antialias,
            None,
        ),
        lambda d, c: c.image.random_resized_crop(
            *d.choice(SIZES), filter=d.choice(FILTERS), scale=d.choice([(0.08, 1.0), (0.5, 0.6)])
        ),
        rest=NUMBER,
    ),
    _meaning(
        "random_resized_crop_box",
        fixed(BOX),
        lambda image, draw, _h, _w, scale, ratio, *_: area(image, numbers(draw), scale, ratio),
        lambda d, c: c.image.random_resized_crop(*d.choice(SIZES), params=True),
        takes=_either,
        rest=NUMBER,
    ),
    _meaning(
        "resize",
        _scaled,
        resized,
        lambda d, c: d.choice(
            [
                c.image.resize(*d.choice(SIZES), filter=d.choice(FILTERS)),
                c.image.resize(d.choice([3, 9])),
                c.image.resize(5, 3, antialias=False),
                c.image.resize(4, 4, box=(0.5, 0, 2.25, 3), filter=d.choice(FILTERS)),
            ]
        ),
    ),
    _meaning(
        "pad",
        _wider,
        padded,
        lambda d, c: c.image.pad(d.choice([1, (0, 1, 2, 3)]), fill=d.choice([0, 200])),
    ),
    _meaning(
        "flip",
        _like,
        flipped,
        lambda d, c: c.image.flip(d.choice(["horizontal", "vertical"]), where=_where(d)),
        rest=FLAG,
    ),
    _meaning(
        "rotate",
        lambda kind, params: _of(None, None, kind.shape[2]) if params[2] else _like(kind, params),
        rotated,
        lambda d, c: c.image.rotate(
            d.choice([0, 90, 180, 270, -45, 30.5, drawn_number() * 360]),
            filter=d.choice(["nearest", "bilinear", "bicubic"]),
            expand=d.random() < 0.5,
            fill=9,
        ),
        rest=NUMBER,
    ),
    _meaning(
        "affine",
        _like,
        transformed,
        lambda d, c: c.image.affine(
            (1, 0.2, -1, 0, 1.1, 0.5), filter=d.choice(["nearest", "bilinear"])
        ),
    ),
    _meaning(
        "random_erasing",
        _like,
        erased,
        lambda d, c: c.image.random_erasing(d.choice([0.5, 1.0]), fill=d.choice([0, 77])),
        rest=NUMBER,
    ),
    _meaning(
        "brightness",
        _like,
        _enhanced(ImageEnhance.Brightness),
        lambda d, c: c.image.brightness(_factor(d)),
        rest=NUMBER,
    ),
    _meaning(
        "contrast",
        _like,
        _enhanced(ImageEnhance.Contrast),
        lambda d, c: c.image.contrast(_factor(d)),
        rest=NUMBER,
    ),
    _meaning(
        "saturation",
        _like,
        _enhanced(ImageEnhance.Color),
        lambda d, c: c.image.saturation(_factor(d)),
        rest=NUMBER,
    ),
    _meaning(
        "hue",
        _like,
        turned,
        lambda d, c: c.image.hue(d.choice([0.0, 0.1, -0.3, 0.5, drawn_number() - 0.5])),
        rest=NUMBER,
    ),
    _meaning(
        "gray",
        lambda kind, params: _of(*kind.shape[:2], params[0]),
        greyed,
        lambda d, c: c.image.gray(d.choice([1, 3])),
        rest=FLAG,
    ),
    _meaning("lut", _like, looked_up, lambda d, c: c.image.lut(TABLE, where=_where(d)), rest=FLAG),
    _meaning(
        "blur",
        _like,
        blurred,
        lambda d, c: c.image.blur(d.choice([0.0, 0.5, 2.0, drawn_number()])),
        rest=NUMBER,
    ),
    _meaning(
        "enhance",
        _like,
        operated,
        lambda d, c: d.choice([c.image.equalize, c.image.autocontrast])(),
    ),
    _meaning(
        "encode",
        _bytes,
        encoded,
        lambda d, c: c.image.encode(d.choice(["png", "jpeg"])),
    ),
    _meaning(
        "normalize",
        _normal,
        floats,
        lambda d, c: c.image.normalize(
            d.choice([0.5, (0.1, 0.2, 0.3)]), 0.25, layout=d.choice(["CHW", "HWC"])
        ),
    ),
)
