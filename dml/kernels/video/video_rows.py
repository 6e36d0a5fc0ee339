"""Each video function is a step from the bytes of a row to its frames, or to facts about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dml.kernels.functions.function import Params
from dml.kernels.functions.row_chain import RowChain
from dml.kernels.images import codec
from dml.kernels.rows.row_draws import RowDraws
from dml.kernels.video import video_codec
from dml.kernels.video.video_codec import Finish, FrameTimes, UnreadableVideo

# Most frames at a rate: damaged files claim any length.
MOST_FRAMES = 1 << 24


def info(data: Any, params: Params, _: Params) -> Any:
    """Return the number of frames, their rate, seconds in all, height and width."""
    return _or_null(params[-1], lambda: video_codec.info(data)._asdict())


def frames(data: Any, params: Params, given: Params) -> Any:
    """Return the frames that the parameters, or the row's list, name."""
    rule, number, *rest = params
    choose = partial(RULES[rule], given[0] if given else number)
    return _decoded(data, choose, rest, number if rule == "count" else 0)


def random_frames(data: Any, params: Params, given: Params) -> Any:
    """Return frames from a random one on; the last one is repeated in a shorter video."""
    count, every, *rest = params

    def choose(video: FrameTimes) -> list[int]:
        there = video.count()
        start = RowDraws(given[0]).integer(max(0, there - 1 - (count - 1) * every))
        return [min(start + place * every, there - 1) for place in range(count)]

    return _decoded(data, choose, rest, count)


STEPS = {"video.info": info, "video.frames": frames, "video.random_frames": random_frames}


class VideoRows(RowChain):
    """Passes one video after the other through ``links``."""

    steps: ClassVar = STEPS


def _decoded(
    data: Any,
    choose: Callable[[FrameTimes], Sequence[int]],
    params: Sequence[Any],
    known: int = 0,
) -> Any:
    size, upright, most_pixels, on_error = params
    if size is not None:
        codec.pillow()
    finish = Finish(size, upright, most_pixels)
    return _or_null(on_error, lambda: video_codec.frames(data, choose, finish, known))


def _or_null(on_error: str, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except UnreadableVideo:
        if on_error == "null":
            return None
        raise


def _every(step: int, video: FrameTimes) -> range:
    return range(0, video.count(), step)


def _middles(count: int, video: FrameTimes) -> list[int]:
    """Return the frame in the middle of each of ``count`` equal parts."""
    return [(2 * place + 1) * video.count() // (2 * count) for place in range(count)]


def _named(numbers: Sequence[Any], video: FrameTimes) -> list[int]:
    """Return the numbers, those below 0 counted from the end."""
    there = video.count()
    for number in numbers:
        if not -there <= number < there or number != int(number):
            raise UnreadableVideo(f"it has {there} frames, and no frame {number}")
    return [int(number) % there for number in numbers]


def _shown(times: Sequence[Any], video: FrameTimes) -> list[int]:
    """Return the frames that are shown at times, in seconds from the first frame on."""
    seconds = video.seconds()
    for time in times:
        if not 0 <= time < seconds[-1]:
            raise UnreadableVideo(f"it has {seconds[-1]:g} seconds, and no frame at {time}")
    found: list[int] = (np.searchsorted(seconds, times, side="right") - 1).tolist()
    return found


def _paced(fps: float, video: FrameTimes) -> list[int]:
    """Return the frames that are shown ``fps`` times a second."""
    end = video.seconds()[-1]
    if end * fps > MOST_FRAMES:
        raise UnreadableVideo(f"it has {end:g} seconds")
    times = np.arange(math.ceil(end * fps)) / fps
    return _shown(times[times < end].tolist(), video)


RULES: dict[str, Callable[[Any, FrameTimes], Sequence[int]]] = {
    "at": _named,
    "times": _shown,
    "every": _every,
    "fps": _paced,
    "count": _middles,
}
