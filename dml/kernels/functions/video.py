"""Functions of encoded videos: facts about their frames, and frames as tensors (n, h, w, 3)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.base.open_tensors import OpenTensor
from dml.kernels.functions.function import Function, Kinds, Params, Rest, always
from dml.kernels.functions.images import is_encoded
from dml.kernels.functions.row_chain import RowChain, alone
from dml.kernels.images import codec
from dml.kernels.video import video_codec
from dml.kernels.video.video_codec import MOST_PIXELS


def _are_numbers(kind: pa.DataType) -> bool:
    """Return whether rows are lists of numbers, or tensors with one axis."""
    tensor = isinstance(kind, OpenTensor | pa.FixedShapeTensorType) and len(kind.shape) == 1
    if not tensor and not is_list(kind):
        return False
    return bool(pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))


WHOLE, REAL = pa.int64(), pa.float64()
INFO = pa.struct(
    {"frames": WHOLE, "rate": REAL, "seconds": REAL, "height": WHOLE, "width": WHOLE}.items()
)
VIDEO = Kinds("encoded videos, which are bytes", is_encoded)
NUMBERS = Kinds("lists of numbers", _are_numbers)
COLOURS = 3


def _frames(number: int | None, size: tuple[int, int | None] | None) -> pa.DataType:
    """Return the type of so many frames; None where rows differ."""
    height, width = (None, None) if size is None or size[1] is None else size
    shape = (number, height, width, COLOURS)
    value = pa.uint8()
    return OpenTensor(value, shape) if None in shape else pa.fixed_shape_tensor(value, shape)


def _chosen(_kind: pa.DataType, params: Params) -> pa.DataType:
    rule, number, size = params[:3]
    if rule in ("at", "times") and number is not None:
        number = len(number)
    return _frames(None if rule in ("every", "fps") else number, size)


def _drawn(_kind: pa.DataType, params: Params) -> pa.DataType:
    return _frames(params[0], params[2])


def _chain() -> type[RowChain]:
    from dml.kernels.video.video_rows import VideoRows  # noqa: PLC0415 - few programs have videos

    return VideoRows


def _libraries() -> str:
    """Return what decides the bytes of frames, and of resized ones."""
    return f"{video_codec.libraries()} {codec.libraries()}"


def _video(
    op: str,
    gives: Callable[[pa.DataType, Params], pa.DataType],
    *,
    rest: Callable[[pa.DataType], Rest] | None = None,
    usual: Params = (None, False, MOST_PIXELS, "raise"),
) -> Function:
    return Function(
        f"video.{op}",
        VIDEO,
        gives,
        alone(f"video.{op}", _chain, gives),
        rest,
        lambda params: params[-1] != "null",
        ("", "on_error='null', and drop_nulls after it"),
        vectors=True,
        tool=_libraries,
        usual=usual,
    )


FUNCTIONS = (
    _video("info", always(INFO), usual=("raise",)),
    _video("frames", _chosen, rest=lambda _: (NUMBERS,)),
    _video("random_frames", _drawn, rest=lambda _: pa.float64()),
)
