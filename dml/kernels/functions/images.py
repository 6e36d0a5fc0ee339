"""Functions of images: encoded ones are bytes, decoded ones tensors (height, width, channels) u1.

Sizes that are known before any image is read, as after ``resize``, give tensors of fixed shape.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from dml.base.open_tensors import OpenTensor
from dml.errors import SchemaError
from dml.kernels.functions.function import Function, Kinds, Params, always, is_bytes
from dml.kernels.functions.row_chain import RowChain, alone
from dml.kernels.images.codec import CHANNELS, COLOURS, MOST_PIXELS, libraries
from dml.kernels.images.resample_filters import short_side

Dims = tuple[int | None, int | None, int]
BOX = pa.fixed_shape_tensor(pa.int64(), (4,))
SIZE = pa.fixed_shape_tensor(pa.int64(), (2,))


def is_encoded(kind: pa.DataType) -> bool:
    """Return True for bytes, and for Hugging Face's struct of bytes and path."""
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type)
    return is_bytes(kind)


def is_image(kind: pa.DataType) -> bool:
    """Return True for tensors of bytes whose last axis has 1, 3 or 4 channels, or is open."""
    if not isinstance(kind, OpenTensor | pa.FixedShapeTensorType):
        return False
    shape = tuple(kind.shape)
    known = (None, *CHANNELS.values())
    return kind.value_type == pa.uint8() and len(shape) == 3 and shape[2] in known


ENCODED = Kinds("encoded images, which are bytes", is_encoded)
IMAGE = Kinds("decoded images, u1[?,?,3]", is_image)
EITHER = Kinds("images", lambda kind: is_encoded(kind) or is_image(kind))


def dims_of(kind: pa.DataType) -> Dims:
    """Return height, width (None: not known before the rows are read) and channels."""
    height, width, channels = kind.shape
    return height, width, COLOURS if channels is None else channels


def image_type(dims: tuple[int | None, ...], value: pa.DataType | None = None) -> pa.DataType:
    """Return the type of images with axes ``dims``, of bytes or of ``value``."""
    value = pa.uint8() if value is None else value
    return OpenTensor(value, dims) if None in dims else pa.fixed_shape_tensor(value, dims)


def _decoded(_kind: pa.DataType, params: Params) -> pa.DataType:
    return image_type((None, None, CHANNELS[params[0]]))


def _same(kind: pa.DataType, _params: Params) -> pa.DataType:
    return image_type(dims_of(kind))


def _sized(height_at: int) -> Callable[[pa.DataType, Params], pa.DataType]:
    """Return ``gives`` of a function whose parameters have height and width at ``height_at``."""

    def gives(kind: pa.DataType, params: Params) -> pa.DataType:
        rows, columns, channels = dims_of(kind)
        height, width = params[height_at : height_at + 2]
        top, left = params[:height_at] if height_at else (0, 0)
        if _beyond(rows, top + height) or _beyond(columns, left + width):
            raise SchemaError(
                f"a part of {height} x {width} pixels does not fit",
                why=f"the image has {rows} x {columns}",
                try_=".image.pad(...) before, or a smaller part",
            )
        return image_type((height, width, channels))

    return gives


def _beyond(size: int | None, stop: int) -> bool:
    return size is not None and stop > size


def _open(kind: pa.DataType, _params: Params) -> pa.DataType:
    return image_type((None, None, dims_of(kind)[2]))


def _resized(kind: pa.DataType, params: Params) -> pa.DataType:
    rows, columns, channels = dims_of(kind)
    height, width = params[:2]
    if width is None and rows is not None and columns is not None:
        height, width = short_side((rows, columns), height)
    return image_type((None, None, channels) if width is None else (height, width, channels))


def _random_resized(kind: pa.DataType, params: Params) -> pa.DataType:
    return image_type((*params[:2], dims_of(kind)[2]))


def _filled(
    gives: Callable[[pa.DataType, Params], pa.DataType],
) -> Callable[[pa.DataType, Params], pa.DataType]:
    """Return ``gives`` of a function whose last parameter is a colour."""

    def checked(kind: pa.DataType, params: Params) -> pa.DataType:
        channels, fill = dims_of(kind)[2], params[-1]
        if len(fill) not in (1, channels):
            raise SchemaError(
                f"fill {fill} does not fit",
                why=f"the image has {channels} channels",
                try_="one number, or one for each channel",
            )
        return gives(kind, params)

    return checked


def _padded(kind: pa.DataType, params: Params) -> pa.DataType:
    rows, columns, channels = dims_of(kind)
    left, top, right, bottom = params[0]
    height = None if rows is None else rows + top + bottom
    return image_type((height, None if columns is None else columns + left + right, channels))


def _rotated(kind: pa.DataType, params: Params) -> pa.DataType:
    return _open(kind, params) if params[2] else _same(kind, params)


def _grey(kind: pa.DataType, params: Params) -> pa.DataType:
    return image_type((*dims_of(kind)[:2], params[0]))


def _floats(kind: pa.DataType, params: Params) -> pa.DataType:
    mean, std, layout = params
    rows, columns, channels = dims_of(kind)
    if not {len(mean), len(std)} <= {1, channels}:
        raise SchemaError(
            f"{len(mean)} means and {len(std)} deviations do not fit",
            why=f"the image has {channels} channels",
            try_="one number, or one for each channel",
        )
    dims = (channels, rows, columns) if layout == "CHW" else (rows, columns, channels)
    return image_type(dims, pa.float32())


def _written(kind: pa.DataType, params: Params) -> pa.DataType:
    if params[0] == "jpeg" and dims_of(kind)[2] == 4:
        raise SchemaError(
            "jpeg cannot encode four channels",
            why="it has no opacity",
            try_='.image.encode("png")',
        )
    return pa.binary()


def _chain() -> type[RowChain]:
    from dml.kernels.images.image_rows import ImageRows  # noqa: PLC0415 - few programs have images

    return ImageRows


def _further(kind: pa.DataType) -> Callable[[pa.DataType], pa.DataType]:
    return lambda _: kind


UNREADABLE = ("", ".image.decode(on_error='null'), and drop_nulls after it")
NO_SIZE = ("", "rows without it: .image.decode(on_error='null') and drop_nulls before")
MISFIT = ("", ".image.resize(...) or .image.pad(...) before, or a filter on .image.size()")
AREAS = ((0.08, 1.0), (3 / 4, 4 / 3), "bilinear", True)
DRAW, FLAG, FACTOR = _further(pa.float64()), _further(pa.bool_()), _further(pa.float64())


def _image(
    op: str,
    gives: Callable[[pa.DataType, Params], pa.DataType] = _same,
    *,
    takes: Kinds = IMAGE,
    rest: Callable[[pa.DataType], pa.DataType] | None = None,
    fails: Callable[[Params], bool] = lambda _: False,
    usual: Params = (),
) -> Function:
    return Function(
        f"image.{op}",
        takes,
        gives,
        alone(f"image.{op}", _chain, gives),
        rest,
        fails,
        {ENCODED.words: UNREADABLE, EITHER.words: NO_SIZE}.get(takes.words, MISFIT),
        vectors=True,
        tool=libraries,
        usual=usual,
    )


def _always(_params: Params) -> bool:
    return True


def _unread(params: Params) -> bool:
    """Return True if an image that cannot be read is an error, by its last parameters."""
    return bool(params[-2] != "null")


def _of_column(params: Params) -> bool:
    """Return True if an amount is a column, whose values may have no meaning."""
    return not params or params[0] is None


# The most pixels, what an image gives that cannot be read, and whether EXIF orientation counts.
HEADER = (MOST_PIXELS, "raise", False)

FUNCTIONS = (
    _image(
        "decode",
        _decoded,
        takes=ENCODED,
        fails=lambda params: params[2] != "null",
        usual=("RGB", MOST_PIXELS, "raise", False),
    ),
    _image("size", always(SIZE), takes=EITHER, fails=_unread, usual=HEADER),
    _image("crop", _sized(2), fails=_always),
    _image("crop_box", _open, rest=_further(BOX), fails=_always),
    _image("center_crop", _sized(0), fails=_always),
    _image("random_crop", _sized(0), rest=DRAW, fails=_always),
    _image(
        "random_crop_box",
        always(BOX),
        takes=EITHER,
        rest=DRAW,
        fails=_always,
        usual=HEADER,
    ),
    _image("random_resized_crop", _random_resized, rest=DRAW, usual=AREAS),
    _image(
        "random_resized_crop_box",
        always(BOX),
        takes=EITHER,
        rest=DRAW,
        fails=_unread,
        usual=(*AREAS, *HEADER),
    ),
    _image(
        "resize",
        _resized,
        fails=lambda params: params[1] is None or params[4] is not None,
        usual=("bilinear", True, None),
    ),
    _image("pad", _filled(_padded)),
    _image("flip", rest=FLAG),
    _image("rotate", _filled(_rotated), rest=FACTOR, fails=_of_column),
    _image("affine", _filled(_same)),
    _image("random_erasing", _filled(_same), rest=DRAW),
    _image("brightness", rest=FACTOR, fails=_of_column),
    _image("contrast", rest=FACTOR, fails=_of_column),
    _image("saturation", rest=FACTOR, fails=_of_column),
    _image("hue", rest=FACTOR, fails=_of_column),
    _image("gray", _grey, rest=FLAG),
    _image("lut", rest=FLAG),
    _image("blur", rest=FACTOR, fails=_of_column),
    _image("enhance"),
    _image("encode", _written, fails=_always),
    _image("normalize", _floats),
)
BY_NAME = {function.name: function for function in FUNCTIONS}
