"""The oracle decodes videos with FFmpeg from their first packet to the last, one at a time."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pyarrow as pa
from PIL import Image

from dml.base.open_tensors import OpenTensor
from dml.testing.functions.image_references import numbers
from dml.testing.functions.images import encoded
from dml.testing.functions.meaning import Draw, FunctionMeaning, Params, fixed
from dml.testing.scalars.operations import CastFailed

FACTS = pa.struct(
    [
        ("frames", pa.int64()),
        ("rate", pa.float64()),
        ("seconds", pa.float64()),
        ("height", pa.int64()),
        ("width", pa.int64()),
    ]
)


CONTAINERS = ("mov", "matroska", "avi", "flv", "ogg", "asf", "mpeg", "mpegvideo", "mpegts")


class _UnreadableError(Exception):
    pass


def _all(given: Any) -> tuple[list[Any], float, tuple[int, int]]:
    """Return every frame, how many there are in a second, and their height and width."""
    data = given["bytes"] if isinstance(given, dict) else given
    if data is None:
        raise _UnreadableError
    try:
        with av.open(io.BytesIO(bytes(data)), "r", metadata_errors="replace") as file:
            if file.format.name.partition(",")[0] not in CONTAINERS:
                raise _UnreadableError
            stream: Any = file.streams.best("video")
            if stream is None or stream.codec_context is None:
                raise _UnreadableError
            rate = float(stream.average_rate or 0)
            found = list(file.decode(stream))
            return found, rate, (stream.codec_context.height, stream.codec_context.width)
    except (av.FFmpegError, ValueError):
        raise _UnreadableError from None


def _or_null(on_error: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except _UnreadableError:
        if on_error == "null":
            return None
        raise CastFailed("unreadable") from None


def informed(given: Any, on_error: str) -> Any:
    """Return the facts."""

    def ask() -> Any:
        found, rate, (height, width) = _all(given)
        end = _times(found, rate)[-1]
        size = {"height": height, "width": width}
        return {"frames": len(found), "rate": rate, "seconds": end, **size}

    return _or_null(on_error, ask)


def shown(given: Any, *params: Any) -> Any:
    """Return the frames of a rule."""
    *listed, rule, number, size, upright, most, on_error = params

    def choose(found: list[Any], rate: float) -> list[int]:
        there, times = len(found), _times(found, rate)
        if rule == "every":
            return list(range(0, there, number))
        if rule == "count":
            return [int((place + 0.5) * there / number) for place in range(number)]
        if rule == "fps":
            wanted = [k / number for k in range(int(times[-1] * number) + 2)]
            return [_at(times, time) for time in wanted if time < times[-1]]
        named = list(listed[0] if listed else number)
        if rule == "times":
            return [_at(times, time) for time in named]
        if any(n is None or n >= there or n < -there or n != int(n) for n in named):
            raise _UnreadableError
        return [int(n) for n in named]

    return _or_null(on_error, lambda: _picked(given, choose, size, upright=upright, most=most))


def clip(  # noqa: PLR0917 - as written
    given: Any,
    draw: float,
    count: int,
    every: int,
    size: Any,
    upright: bool,  # noqa: FBT001 - as written
    most: int,
    on_error: str,
) -> Any:
    """Return frames from a random one on."""

    def choose(found: list[Any], _rate: float) -> list[int]:
        there = len(found)
        spare = max(0, there - 1 - (count - 1) * every)
        start = min(int(numbers(draw)() * (spare + 1)), spare)
        return [min(start + place * every, there - 1) for place in range(count)]

    return _or_null(on_error, lambda: _picked(given, choose, size, upright=upright, most=most))


def _picked(
    given: Any, choose: Callable[..., list[int]], size: Any, *, upright: bool, most: int
) -> np.ndarray:
    found, rate, (height, width) = _all(given)
    if not found:
        raise _UnreadableError
    places = choose(found, rate)
    last = max((n % len(found) for n in places), default=-1)
    if any(frame.is_corrupt for frame in found[: last + 1]) or height * width > most:
        raise _UnreadableError
    arrays = [_pixels(found[n], size, upright=upright) for n in places]
    if sum(a.shape[0] * a.shape[1] for a in arrays) > most or len({a.shape for a in arrays}) > 1:
        raise _UnreadableError
    if arrays:
        return np.stack(arrays)
    return _resized(np.zeros((height, width, 3), np.uint8), size)[None][:0]


def _times(found: list[Any], rate: float) -> list[float]:
    """Return the time of each frame, and the end."""
    rate = rate or 1.0
    if any(frame.pts is None for frame in found):
        return [n / rate for n in range(len(found) + 1)]
    times = [float((frame.pts - found[0].pts) * frame.time_base) for frame in found]
    return [*times, times[-1] + 1 / rate] if times else [0.0]


def _at(times: list[float], time: Any) -> int:
    """Return the last frame that is shown no later."""
    if time is None or not 0 <= time < times[-1]:
        raise _UnreadableError
    return max(place for place, begin in enumerate(times[:-1]) if begin <= time)


def _pixels(frame: Any, size: Any, *, upright: bool) -> np.ndarray:
    array: np.ndarray = frame.to_ndarray(format="rgb24")
    return _resized(np.rot90(array, frame.rotation // 90) if upright else array, size)


def _resized(array: np.ndarray, size: Any) -> np.ndarray:
    if size is None:
        return array
    height, width = size
    if width is None:
        rows, columns = array.shape[:2]
        short = min(rows, columns)
        height, width = (int(height * each / short) for each in (rows, columns))
    return np.asarray(Image.fromarray(array).resize((width, height), Image.Resampling.BILINEAR))


# ------------------------------------------------------------------------------------------- table


def _of(number: int | None, size: Any) -> pa.DataType:
    sides = (None, None) if size is None or size[1] is None else size
    shape = (number, *sides, 3)
    value = pa.uint8()
    return OpenTensor(value, shape) if None in shape else pa.fixed_shape_tensor(value, shape)


def _of_rule(_kind: pa.DataType, params: Params) -> pa.DataType:
    rule, number, size = params[:3]
    if rule in ("at", "times"):
        return _of(None if number is None else len(number), size)
    return _of(number if rule == "count" else None, size)


def _lists(kind: pa.DataType) -> bool:
    tensor = isinstance(kind, OpenTensor | pa.FixedShapeTensorType) and len(kind.shape) == 1
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (tensor or listed or pa.types.is_fixed_size_list(kind)):
        return False
    return bool(pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))


def _form(d: Draw) -> dict[str, Any]:
    return {
        "size": d.choice([None, None, 12, (10, 14)]),
        "rotate": d.random() < 0.3,
        "max_pixels": d.choice([1 << 20, 1 << 20, 600]),
        "on_error": d.choice(["null", "null", "raise"]),
    }


def _rule(d: Draw) -> dict[str, Any]:
    return d.choice(
        [
            *({"at": (0, -1)}, {"at": (3, 1, 1)}, {"at": ()}, {"every": 3}, {"count": 4}),
            *({"times": (0, 0.16, 0.3)}, {"times": (2.0,)}, {"fps": 7.0}, {"fps": 50}),
        ]
    )


MEANINGS = (
    FunctionMeaning(
        "video.info",
        encoded,
        fixed(FACTS),
        informed,
        lambda d, c: c.video.info(on_error=d.choice(["null", "null", "raise"])),
    ),
    FunctionMeaning(
        "video.frames",
        encoded,
        _of_rule,
        shown,
        lambda d, c: c.video.frames(**_rule(d), **_form(d)),
        rest=lambda _: (_lists,),
    ),
    FunctionMeaning(
        "video.random_frames",
        encoded,
        lambda _, params: _of(params[0], params[2]),
        clip,
        lambda d, c: c.video.random_frames(d.choice([1, 3]), every=d.choice([1, 4]), **_form(d)),
        rest=lambda _: pa.float64(),
    ),
)
