"""``col("x").video`` has functions of columns of encoded videos, which decode frames of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dml.base.user_line import door
from dml.errors import PlanError
from dml.expr.columns.literal import whole
from dml.expr.columns.namespaces.image_arguments import odd, one_of, size_of
from dml.expr.columns.namespaces.media import MediaFunctions, MediaNamespace
from dml.expr.columns.value import C
from dml.kernels.video.video_codec import MOST_PIXELS

# Most frames that can be asked for, and the largest number of one.
MOST_FRAMES = 1 << 31


class VideoFunctions(MediaFunctions[C]):
    """Functions of encoded videos, row by row; null gives null.

    Videos are bytes of MP4, WebM, Matroska and other formats of FFmpeg. Frames are numbered from 0
    in the order in which they are shown, whatever their times; the one with a number is the same,
    bit for bit, as if the file had been decoded from its start.

    Functions that decode have these arguments:

    size : None keeps the size; (height, width) or, for the shorter side, one number, resizes
        as ``.image.resize`` does
    rotate : turn frames as the file says, which phones rely on
    max_pixels : refuse more pixels in all frames of a row together
    on_error : "raise" CastError for a video that cannot be decoded, or give "null" for it
    """

    __slots__ = ()
    _title, _place = ".video", "video"

    @door
    def info(self, *, on_error: str = "raise") -> C:
        """Return a struct of frames, rate (float64, a second, on average), height and width."""
        return self._plain("video.info", one_of("on_error", on_error, ("raise", "null")))

    @door
    def frames(
        self,
        *,
        at: Any = None,
        every: int | None = None,
        count: int | None = None,
        size: int | Sequence[int] | None = None,
        rotate: bool = False,
        max_pixels: int = MOST_PIXELS,
        on_error: str = "raise",
    ) -> C:
        """Decode frames to uint8 (n, height, width, 3); give one of ``at``, ``every``, ``count``.

        Parameters
        ----------
        at : numbers of frames, or a column of lists of them; those below 0 count from the end
        every : take frames 0, every, 2 * every and so on
        count : take so many: the middle one of each of ``count`` equal parts of the video
        size, rotate, max_pixels, on_error : as the class says
        """
        given = {"at": at, "every": every, "count": count}
        named = [rule for rule, value in given.items() if value is not None]
        if len(named) != 1:
            raise PlanError(
                "frames has no rule" if not named else f"frames has {' and '.join(named)}",
                why="it takes the frames that one rule names",
                try_=".video.frames(count=8)",
            )
        (rule,) = named
        form = _form(size, rotate, max_pixels, on_error)
        if isinstance(at, self._kind):
            return self._plain("video.frames", rule, None, *form, others=(at,))
        return self._plain("video.frames", rule, _number(rule, given[rule]), *form)

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
        last frame is repeated.
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


def _number(rule: str, given: Any) -> Any:
    if rule != "at":
        return whole(f"{rule} of frames", given, 1, MOST_FRAMES)
    if isinstance(given, list | tuple | range):
        return tuple(whole("a number in at", n, -MOST_FRAMES, MOST_FRAMES) for n in given)
    raise odd("at", given, "a list of numbers, or a column of such lists")


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
