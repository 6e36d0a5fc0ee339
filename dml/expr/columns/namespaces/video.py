"""``col("x").video`` has functions of columns of encoded videos, which decode frames of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.literal import whole
from dml.expr.columns.namespaces.image_arguments import finite, odd, one_of, size_of
from dml.expr.columns.namespaces.media import MediaFunctions, MediaNamespace
from dml.expr.columns.value import C
from dml.kernels.video.video_codec import MOST_PIXELS

# Most frames that can be asked for, and the largest number of one.
MOST_FRAMES, MOST_FPS = 1 << 31, 1_000
# Rules that name each frame.
LISTED = ("at", "times")


class VideoFunctions(MediaFunctions[C]):
    """Functions of encoded videos, row by row; null gives null.

    Videos are bytes of MP4, WebM, Matroska and other formats of FFmpeg. Frames are numbered from 0
    in the order in which they are shown; the one with a number is the same, bit for bit, as if the
    file had been decoded from its start.
    """

    __slots__ = ()
    _title, _place = ".video", "video"

    @door
    def info(self, *, on_error: str = "raise") -> C:
        """Return a struct of the frames' number, rate, seconds in all, height and width.

        ``rate`` is frames in a second, on average. Height and width are those before frames are
        turned as the file says.
        """
        return self._plain("video.info", one_of("on_error", on_error, ("raise", "null")))

    @door
    def duration(self, *, on_error: str = "raise") -> C:
        """Return the time from the first frame to the end of the last one, in seconds; float64."""
        info: Any = self.info(on_error=on_error)
        seconds: C = info.struct.field("seconds")
        return seconds

    @door
    def frames(
        self,
        *,
        count: int | None = None,
        every: int | None = None,
        fps: float | None = None,
        at: Any = None,
        times: Any = None,
        size: int | Sequence[int] | None = None,
        rotate: bool = False,
        max_pixels: int = MOST_PIXELS,
        on_error: str = "raise",
    ) -> C:
        """Decode the frames that one of the first five arguments names, uint8 (n, h, w, 3).

        Parameters
        ----------
        count : take so many: the middle one of each of ``count`` equal parts of the video
        every : take frames 0, every, 2 * every and so on
        fps : take the frames that are shown at 0, 1 / fps, 2 / fps seconds and so on
        at : numbers of frames, or a column of lists of them; those below 0 count from the end
        times : seconds at which frames are shown, from the first one on, or a column of such lists
        size : None keeps the size; (height, width) or, for the shorter side, one number, resizes
            as ``.image.resize`` does
        rotate : turn frames as the file says, which phones rely on
        max_pixels : refuse more pixels in all frames of a row together
        on_error : "raise" CastError for a row whose frames cannot be decoded or are not there, or
            give "null" for it
        """
        rules = {"count": count, "every": every, "fps": fps, "at": at, "times": times}
        rule, given = _only(rules)
        form = _form(size, rotate, max_pixels, on_error)
        if rule in LISTED and isinstance(given, self._kind):
            return self._plain("video.frames", rule, None, *form, others=(given,))
        return self._plain("video.frames", rule, _rule(rule, given), *form)

    @door
    def random_frames(
        self,
        count: int,
        *,
        every: int = 1,
        size: int | Sequence[int] | None = None,
        rotate: bool = False,
        max_pixels: int = MOST_PIXELS,
        on_error: str = "raise",
        seed: int | None = None,
    ) -> C:
        """Decode a clip of ``count`` frames from a random one on, each ``every`` frames apart.

        It is drawn by seed, epoch and row, as ``dml.random`` does. In a video that is shorter, the
        last frame is repeated. Other arguments are those of ``frames``.
        """
        params = (
            whole("count of random_frames", count, 1, MOST_FRAMES),
            whole("every of random_frames", every, 1, MOST_FRAMES),
            *_form(size, rotate, max_pixels, on_error),
        )
        draw = self._draw("random_frames", seed)
        return self._plain("video.random_frames", *params, others=(draw,))


class Video(VideoFunctions[C], MediaNamespace[C]):
    """The namespace ``.video`` of a column."""

    __slots__ = ()


def _only(rules: dict[str, Any]) -> tuple[str, Any]:
    """Return the only rule that is given; raise PlanError for several, and for none."""
    given = [(rule, value) for rule, value in rules.items() if value is not None]
    if len(given) == 1:
        return given[0]
    raise PlanError(
        f"frames has {' and '.join(rule for rule, _ in given) or 'no rule'}",
        why=f"it takes one of {', '.join(rules)}",
        try_=".video.frames(count=8)",
    )


def _rule(rule: str, given: Any) -> Any:
    """Return what a rule of ``frames`` says, checked: a number, or a tuple of them."""
    if rule == "fps":
        found = finite("fps of frames", given)
        if not 0 < found <= MOST_FPS:
            raise odd("fps of frames", given, f"frames in a second, up to {MOST_FPS}")
        return found
    if rule not in LISTED:
        return whole(f"{rule} of frames", given, 1, MOST_FRAMES)
    if isinstance(given, np.ndarray) and given.ndim == 1:
        given = given.tolist()
    if not isinstance(given, list | tuple | range):
        wanted = f"a list, {rule}=[{given}], or a column of lists"
        raise odd(rule, given, wanted)
    if rule == "times":
        return tuple(finite("a time of frames", each) for each in given)
    return tuple(whole("a number in at", n, -MOST_FRAMES, MOST_FRAMES) for n in given)


def _form(
    size: Any, rotate: Any, max_pixels: Any, on_error: Any
) -> tuple[tuple[int, int | None] | None, bool, int, str]:
    if not isinstance(rotate, bool):
        raise odd("rotate", rotate, "True or False")
    wanted: tuple[int, int | None] | None = None
    if size is not None:
        wanted = size_of("frames", size, None)
        wanted = wanted if isinstance(size, list | tuple) else (wanted[0], None)
    return (
        wanted,
        rotate,
        whole("max_pixels", max_pixels, 1),
        one_of("on_error", on_error, ("raise", "null")),
    )
