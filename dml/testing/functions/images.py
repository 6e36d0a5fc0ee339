"""The oracle computes functions of images by Pillow, one picture at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import ImageEnhance

from dml.base.open_tensors import OpenTensor
from dml.errors import SchemaError
from dml.expr.columns.column import Column
from dml.expr.columns.column import random as drawn_number
from dml.testing.functions import image_references as references
from dml.testing.functions.meaning import BYTES, Draw, FunctionMeaning, Gives, Params, fixed

BOX, PAIR = (pa.fixed_shape_tensor(pa.int64(), (n,)) for n in (4, 2))


def encoded(kind: pa.DataType) -> bool:
    """Return True for bytes, and for a struct that has them."""
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and field.type in BYTES for field in kind)
    return kind in BYTES


def _image(kind: pa.DataType) -> bool:
    tensor = isinstance(kind, OpenTensor | pa.FixedShapeTensorType) and len(kind.shape) == 3
    return tensor and kind.value_type == pa.uint8() and kind.shape[2] in (1, 3, 4)


def _either(kind: pa.DataType) -> bool:
    return encoded(kind) or _image(kind)


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
        made = references.resized(
            np.zeros((rows, columns, 1), np.uint8), height, None, *("nearest", True, None)
        )
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
        lambda _, params: _of(None, None, references.MODES[params[0]]),
        references.decoded,
        lambda d, c: c.image.decode(
            d.choice(["RGB", "L", "RGBA", "P"]),
            max_pixels=d.choice([40, 1000]),
            on_error=d.choice(["null", "null", "raise"]),
            exif_transpose=d.random() < 0.3,
        ),
        takes=encoded,
    ),
    _meaning(
        "size",
        fixed(PAIR),
        references.sized,
        lambda d, c: c.image.size(
            max_pixels=d.choice([40, 1000]),
            on_error=d.choice(["raise", "null"]),
            exif_transpose=d.random() < 0.3,
        ),
        takes=_either,
    ),
    _meaning(
        "crop",
        lambda kind, params: _cut(kind, *params),
        references.part,
        lambda d, c: c.image.crop(d.randint(0, 2), d.randint(0, 2), *d.choice(SIZES)),
    ),
    _meaning(
        "crop_box",
        lambda kind, _: _of(None, None, kind.shape[2]),
        lambda image, box: references.part(image, *(int(n) for n in box)),
        lambda d, c: c.image.crop(c.image.random_crop(*d.choice(SIZES), params=True)),
        rest=_given(BOX),
    ),
    _meaning(
        "center_crop",
        lambda kind, params: _cut(kind, 0, 0, *params),
        references.middle,
        lambda d, c: c.image.center_crop(*d.choice(SIZES)),
    ),
    _meaning(
        "random_crop",
        lambda kind, params: _cut(kind, 0, 0, *params),
        lambda image, draw, *size: references.part(
            image, *references.place(image.shape[:2], draw, *size)
        ),
        lambda d, c: c.image.random_crop(*d.choice(SIZES)),
        rest=NUMBER,
    ),
    _meaning(
        "random_crop_box",
        fixed(BOX),
        references.placed,
        lambda d, c: c.image.random_crop(*d.choice(SIZES), params=True),
        takes=_either,
        rest=NUMBER,
    ),
    _meaning(
        "random_resized_crop",
        lambda kind, params: _of(*params[:2], kind.shape[2]),
        lambda image, draw, height, width, scale, ratio, kind, antialias: references.resized(
            references.part(
                image, *references.area(image.shape[:2], references.numbers(draw), scale, ratio)
            ),
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
        references.areas,
        lambda d, c: c.image.random_resized_crop(
            *d.choice(SIZES), params=True, on_error=d.choice(["raise", "null"])
        ),
        takes=_either,
        rest=NUMBER,
    ),
    _meaning(
        "resize",
        _scaled,
        references.resized,
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
        references.padded,
        lambda d, c: c.image.pad(d.choice([1, (0, 1, 2, 3)]), fill=d.choice([0, 200])),
    ),
    _meaning(
        "flip",
        _like,
        references.flipped,
        lambda d, c: c.image.flip(d.choice(["horizontal", "vertical"]), where=_where(d)),
        rest=FLAG,
    ),
    _meaning(
        "rotate",
        lambda kind, params: _of(None, None, kind.shape[2]) if params[2] else _like(kind, params),
        references.rotated,
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
        references.transformed,
        lambda d, c: c.image.affine(
            (1, 0.2, -1, 0, 1.1, 0.5), filter=d.choice(["nearest", "bilinear"])
        ),
    ),
    _meaning(
        "random_erasing",
        _like,
        references.erased,
        lambda d, c: c.image.random_erasing(d.choice([0.5, 1.0]), fill=d.choice([0, 77])),
        rest=NUMBER,
    ),
    _meaning(
        "brightness",
        _like,
        references.enhanced(ImageEnhance.Brightness),
        lambda d, c: c.image.brightness(_factor(d)),
        rest=NUMBER,
    ),
    _meaning(
        "contrast",
        _like,
        references.enhanced(ImageEnhance.Contrast),
        lambda d, c: c.image.contrast(_factor(d)),
        rest=NUMBER,
    ),
    _meaning(
        "saturation",
        _like,
        references.enhanced(ImageEnhance.Color),
        lambda d, c: c.image.saturation(_factor(d)),
        rest=NUMBER,
    ),
    _meaning(
        "hue",
        _like,
        references.turned,
        lambda d, c: c.image.hue(d.choice([0.0, 0.1, -0.3, 0.5, drawn_number() - 0.5])),
        rest=NUMBER,
    ),
    _meaning(
        "gray",
        lambda kind, params: _of(*kind.shape[:2], params[0]),
        references.greyed,
        lambda d, c: c.image.gray(d.choice([1, 3])),
        rest=FLAG,
    ),
    _meaning(
        "lut",
        _like,
        references.looked_up,
        lambda d, c: c.image.lut(TABLE, where=_where(d)),
        rest=FLAG,
    ),
    _meaning(
        "blur",
        _like,
        references.blurred,
        lambda d, c: c.image.blur(d.choice([0.0, 0.5, 2.0, drawn_number()])),
        rest=NUMBER,
    ),
    _meaning(
        "enhance",
        _like,
        references.operated,
        lambda d, c: d.choice([c.image.equalize, c.image.autocontrast])(),
    ),
    _meaning(
        "encode",
        _bytes,
        references.encoded,
        lambda d, c: c.image.encode(d.choice(["png", "jpeg"])),
    ),
    _meaning(
        "normalize",
        _normal,
        references.floats,
        lambda d, c: c.image.normalize(
            d.choice([0.5, (0.1, 0.2, 0.3)]), 0.25, layout=d.choice(["CHW", "HWC"])
        ),
    ),
)
