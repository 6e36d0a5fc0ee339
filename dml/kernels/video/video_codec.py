"""Frames of encoded videos are decoded by FFmpeg, through PyAV, as decoding from the start does.

In files that name the time of each frame, decoding starts at the last key frame before a frame that
is asked for. Packets are given to the decoder one by one, so no demuxer has to seek.
"""

from __future__ import annotations

import functools
import importlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from dml.base.cached_property import cached_property
from dml.base.host import vector_instructions
from dml.base.memory_files import MemoryReader
from dml.base.memory_turns import TURNS
from dml.errors import PlanError
from dml.kernels.functions.function import UnfitValue

Encoded: TypeAlias = "bytes | memoryview"
# Most pixels of all frames that are asked for, unless the user gives another number.
MOST_PIXELS = 1 << 28
# Containers that store whole frames with their times; in others, one packet may be half a frame.
TIMED = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
# Bytes of a pixel while frames are decoded: one by one, and together.
WORKING_BYTES = 6
# Orders of fields, of which those that a packet may have alone are not: unknown, and no fields.
PROGRESSIVE = (0, 1)
# Pixels by which decoders may make small frames wider, to align rows.
PADDING = 1 << 16
# Turns of frames, in degrees to the left.
QUARTER = 90


class UnreadableVideo(UnfitValue):
    """An encoded video is not readable; the text says why."""


class VideoFacts(NamedTuple):
    """Facts about the frames of a video; ``rate`` is frames in a second, on average.

    ``seconds`` is the time from the first frame to the end of the last one.
    """

    frames: int
    rate: float
    seconds: float
    height: int
    width: int


class Finish(NamedTuple):
    """What is done with frames: they are turned as the file says, and resized.

    Together they have at most ``most_pixels`` then, and each of them before.
    """

    resize: Callable[[np.ndarray], np.ndarray] | None = None
    upright: bool = False
    most_pixels: int = MOST_PIXELS

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of finished frames of a size that are not turned."""
        frame = np.zeros((height, width, 3), np.uint8)
        return frame.shape if self.resize is None else self.resize(frame).shape

    def __call__(self, frame: Any, converter: Any) -> np.ndarray:
        """Return (h, w, 3) uint8."""
        found: np.ndarray = converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
        if self.upright and frame.rotation:
            found = np.rot90(found, round(frame.rotation / QUARTER) % 4)
        return found if self.resize is None else self.resize(found)


AS_DECODED = Finish()


@functools.cache
def libraries() -> str:
    """Return what decides the bytes of frames, for fingerprints: versions, and the processor."""
    try:
        av = importlib.import_module("av")
    except (ImportError, OSError):
        return "av=absent"
    parts = ("libavcodec", "libavformat", "libswscale")
    own = (f"{part}={'.'.join(map(str, av.library_versions[part]))}" for part in parts)
    return " ".join((f"av={av.__version__}", *own, vector_instructions()))


@functools.cache
def _av() -> Any:
    try:
        return importlib.import_module("av")
    except (ImportError, OSError) as error:
        what, way = "video needs the library av", 'pip install "dml[video]"'
        raise PlanError(what, why=str(error), try_=way) from None


class FrameTimes(Protocol):
    """What chooses frames knows of a video."""

    def count(self) -> int:
        """Return the number of frames."""

    def seconds(self) -> np.ndarray:
        """Return the time of each frame, from the first one on, and the end: (n + 1,) float64."""


def info(data: Encoded) -> VideoFacts:
    """Return the facts about a video; raise UnreadableVideo if the bytes are none.

    Frames are counted: no header is trusted for their number.
    """
    with _opened(data) as video:
        rate, seconds = float(video.stream.average_rate or 0), float(video.seconds()[-1])
        return VideoFacts(video.count(), rate, seconds, *video.size)


def frames(
    data: Encoded, choose: Callable[[FrameTimes], Sequence[int]], finish: Finish = AS_DECODED
) -> np.ndarray:
    """Return the frames that ``choose`` names, as uint8 (n, h, w, 3).

    Frames are numbered from 0, in the order in which they are shown. Raise UnreadableVideo if they
    cannot be decoded, and for too many pixels.
    """
    with _opened(data, finish.most_pixels) as video:
        if not video.count():
            raise UnreadableVideo("it has no frames")
        numbers = choose(video)
        height, width = video.size
        large = height * width * (len(numbers) if finish.resize is None else 1)
        _limit(large, finish.most_pixels)
        TURNS.take(large * WORKING_BYTES)
        found = video.wanted(sorted(set(numbers)), finish)
    shapes = {frame.shape for frame in found.values()}
    if len(shapes) > 1:
        sizes = ", ".join(f"{h} x {w}" for h, w, _ in sorted(shapes))
        raise UnreadableVideo(f"its frames have different sizes: {sizes}; size= makes them equal")
    shape = shapes.pop() if shapes else finish.shape(height, width)
    _limit(len(numbers) * shape[0] * shape[1], finish.most_pixels)
    out = np.empty((len(numbers), *shape), np.uint8)
    for place, number in enumerate(numbers):
        out[place] = found[number]
    return out


def _limit(pixels: int, most: int) -> None:
    if pixels > most:
        raise UnreadableVideo(f"its frames have {pixels} pixels; max_pixels is {most}")


class _Video:
    """An open file: its stream, and the packets of it that have bytes."""

    def __init__(self, container: Any, most_pixels: int) -> None:
        self.stream = container.streams.best("video")
        if self.stream is None or self.stream.codec_context is None:
            raise UnreadableVideo("it has no video that can be decoded")
        self.decoder = self.stream.codec_context
        self.decoder.thread_type, self.decoder.thread_count = "NONE", 1
        self.decoder.options = {"max_pixels": str(2 * most_pixels + PADDING)}
        self.packets = [packet for packet in container.demux(self.stream) if packet.size]
        whole_frames = self.decoder.field_order in PROGRESSIVE
        self.times = self._shown_at() if whole_frames and container.format.name in TIMED else []

    def _shown_at(self) -> list[int]:
        """Return the times of all frames in order; [] unless each packet has one of its own."""
        times = [packet.pts for packet in self.packets]
        if None in times or any(packet.is_discard for packet in self.packets):
            return []
        found = sorted(set(times))
        whole = len(found) == len(times) and found[:1] == times[:1]
        return found if whole and all(packet.is_keyframe for packet in self.packets[:1]) else []

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.decoder.height, self.decoder.width

    @cached_property
    def every_time(self) -> list[int | None]:
        """The times of all frames; all of them are decoded unless packets have times."""
        return [*self.times] or [frame.pts for frame in self._decoded(0)]

    def count(self) -> int:
        """Return the number of frames."""
        return len(self.every_time)

    def seconds(self) -> np.ndarray:
        """Return the time of each frame, from the first one on, and the end: (n + 1,) float64.

        The last frame is shown as long as the mean frame.
        """
        rate = self.stream.average_rate or 1
        times = [time for time in self.every_time if time is not None]
        if len(times) < self.count():
            return np.arange(self.count() + 1) / float(rate)
        unit = self.stream.time_base
        found = [(time - times[0]) * unit.numerator / unit.denominator for time in times]
        end = found[-1] + float(1 / rate) if found else 0.0
        return np.maximum.accumulate(np.array([*found, end]))

    def wanted(self, numbers: Sequence[int], finish: Finish) -> dict[int, np.ndarray]:
        """Return the finished frames of increasing ``numbers``."""
        if self.times:
            by_runs = (self._from_key(start, run) for start, run in self._runs(numbers))
            try:
                return _finished(chain.from_iterable(by_runs), finish)
            except UnreadableVideo:
                pass  # some decoders need more than the key frame; damage is met again below
        return _finished(self._from_start(numbers), finish)

    def _from_start(self, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield the frames of ``numbers``, decoded from the first one on."""
        wanted, last = set(numbers), max(numbers, default=-1)
        number = -1
        for number, frame in zip(range(last + 1), self._decoded(0), strict=False):
            _check(frame)
            if number in wanted:
                yield number, frame
        if number < last:
            raise UnreadableVideo(f"it ends before frame {last}")

    def _from_key(self, start: int, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield frames that are shown at the times of ``numbers``, decoded from a key frame on."""
        left = deque(numbers)
        for frame in self._decoded(start):
            if frame.pts is None or frame.pts < self.packets[start].pts:
                continue  # it is shown before the key frame, and may need frames before that
            _check(frame)
            if frame.pts == self.times[left[0]]:
                yield left.popleft(), frame
                if not left:
                    return
        raise UnreadableVideo(f"it ends before frame {left[0]}")

    def _runs(self, numbers: Sequence[int]) -> list[tuple[int, list[int]]]:
        """Return for each run of ``numbers`` the packet of the key frame before it.

        Decoding goes on over a key frame where the next number follows at once.
        """
        keys = sorted((each.pts, n) for n, each in enumerate(self.packets) if each.is_keyframe)
        runs: list[tuple[int, list[int]]] = []
        last = None
        for number in numbers:
            key = keys[bisect_right(keys, (self.times[number], len(self.packets))) - 1]
            if runs and (key == last or number == runs[-1][1][-1] + 1):
                runs[-1][1].append(number)
            else:
                runs.append((key[1], [number]))
            last = key
        return runs

    def _decoded(self, start: int) -> Iterator[Any]:
        """Yield frames from packet ``start`` on; raise UnreadableVideo where that fails."""
        self.decoder.flush_buffers()
        try:
            for packet in chain(self.packets[start:], (None,)):
                yield from self.decoder.decode(packet)
        except (_av().FFmpegError, ValueError) as error:
            raise UnreadableVideo(_reason(error)) from None


def _finished(numbered: Iterable[tuple[int, Any]], finish: Finish) -> dict[int, np.ndarray]:
    """Return finished frames by number."""
    converter = _av().video.reformatter.VideoReformatter()
    found: dict[int, np.ndarray] = {}
    pixels = 0
    for number, frame in numbered:
        _limit(frame.height * frame.width, finish.most_pixels)
        found[number] = finish(frame, converter)
        height, width, _ = found[number].shape
        pixels += height * width
        _limit(pixels, finish.most_pixels)
    return found


def _check(frame: Any) -> None:
    """Raise UnreadableVideo for a frame of which the decoder guessed a part."""
    if frame.is_corrupt:
        raise UnreadableVideo("a frame is damaged")


@contextmanager
def _opened(data: Encoded, most_pixels: int = MOST_PIXELS) -> Iterator[_Video]:
    """Open a video; raise UnreadableVideo for bytes that are none."""
    av = _av()
    try:
        container = av.open(MemoryReader(data), metadata_errors="replace")
    except (av.FFmpegError, ValueError) as error:
        raise UnreadableVideo(_reason(error)) from None
    with container:
        try:
            video = _Video(container, most_pixels)
        except (av.FFmpegError, ValueError) as error:
            raise UnreadableVideo(_reason(error)) from None
        yield video


def _reason(error: BaseException) -> str:
    """Return the error's text without names of files, which differ between runs."""
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return text or type(error).__name__
