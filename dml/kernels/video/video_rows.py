"""Each video function is a step from the bytes of a row to its frames, or to facts about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dml.kernels.functions.function import Params, UnfitValue
from dml.kernels.functions.row_chain import RowChain
from dml.kernels.images import codec, steps
from dml.kernels.images.pixels import Pixels
from dml.kernels.rows.row_draws import RowDraws
from dml.kernels.video import video_codec
from dml.kernels.video.video_codec import Finish, UnreadableVideo


def info(data: Any, params: Params, _: Params) -> Any:
    """Return the number of frames, their rate, height and width."""
    return _or_null(params[-1], lambda: video_codec.info(data)._asdict())


def frames(data: Any, params: Params, given: Params) -> Any:
    """Return the frames that the parameters, or the row's list, name."""
    rule, number, *rest = params
    return _decoded(data, partial(RULES[rule], given[0] if given else number), rest)


def random_frames(data: Any, params: Params, given: Params) -> Any:
    """Return frames from a random one on; the last one is repeated in a shorter video."""
    count, every, *rest = params

    def choose(there: int) -> list[int]:
        start = RowDraws(given[0]).integer(max(0, there - 1 - (count - 1) * every))
        return [min(start + place * every, there - 1) for place in range(count)]

    return _decoded(data, choose, rest)


STEPS = {"video.info": info, "video.frames": frames, "video.random_frames": random_frames}


class VideoRows(RowChain):
    """Passes one video after the other through ``links``."""

    steps: ClassVar = STEPS


def _decoded(data: Any, choose: Callable[[int], Sequence[int]], params: Sequence[Any]) -> Any:
    size, upright, most_pixels, on_error = params
    resize = None if size is None else partial(_resized, codec.pillow(), size)
    finish = Finish(resize, upright, most_pixels)

    def numbers(there: int) -> Sequence[int]:
        if not there:
            raise UnreadableVideo("it has no frames")
        return choose(there)

    return _or_null(on_error, lambda: video_codec.frames(data, numbers, finish))


def _resized(_pillow: Any, size: tuple[int, int | None], frame: np.ndarray) -> np.ndarray:
    """Return a frame as ``.image.resize`` gives it, which needs Pillow."""
    return steps.resize(Pixels(frame), (*size, "bilinear", True, None), ()).array()


def _or_null(on_error: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except UnreadableVideo:
        if on_error == "null":
            return None
        raise


def _every(step: int, there: int) -> range:
    return range(0, there, step)


def _middles(count: int, there: int) -> list[int]:
    """Return the frame in the middle of each of ``count`` equal parts."""
    return [(2 * place + 1) * there // (2 * count) for place in range(count)]


def _named(numbers: Any, there: int) -> list[int]:
    """Return the numbers, those below 0 counted from the end."""
    found = [int(each) for each in numbers]
    for number in found:
        if not -there <= number < there:
            raise UnfitValue(f"it has {there} frames, and no frame {number}")
    return [number % there for number in found]


RULES: dict[str, Callable[[Any, int], Sequence[int]]] = {
    "at": _named,
    "every": _every,
    "count": _middles,
}
