"""Frames of encoded videos are decoded by FFmpeg, through PyAV, as decoding from the start does.

In files that name the time of each frame, decoding starts at the last key frame before a frame that
is asked for. Packets are given to the decoder one by one, so no demuxer has to seek. The container
is told by the first bytes: FFmpeg's own search also knows lists of other files and of addresses.
"""

from __future__ import annotations

import functools
import importlib
import math
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
from dml.kernels.images.resample_filters import Resize, resize, short_side

Encoded: TypeAlias = "bytes | memoryview"
# Most pixels of all frames that are asked for, unless the user gives another number.
MOST_PIXELS = 1 << 28
# Containers by their first bytes: place, bytes, and FFmpeg's name.
CONTAINERS = (
    *((4, word, "mov") for word in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),
    (8, b"AVI ", "avi"),
    (0, b"FLV", "flv"),
    (0, b"OggS", "ogg"),
    (0, b"\x30\x26\xb2\x75", "asf"),
    (0, b"\0\0\x01\xba", "mpeg"),
    (0, b"\0\0\x01\xb3", "mpegvideo"),
    (188, b"G", "mpegts"),  # the second packet
)
# Those that store whole frames with their times; in others, one packet may be half a frame. And
# codecs whose decoders can begin at any key frame, and tell if it is none.
TIMED, JUMPING = ("mov", "matroska"), ("h264", "hevc", "vp9", "av1")
# The order of fields of frames that have none; a field may be a packet.
PROGRESSIVE = 1
# Pixels by which decoders may make small frames wider, to align rows; FFmpeg's largest number.
PADDING, INT_MAX = 1 << 16, (1 << 31) - 1
# Bytes of a pixel while frames are decoded: one by one, and together.
WORKING_BYTES = 6


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
    """What is done with frames: they are turned as the file says, and resized to ``size``.

    ``size`` is height and width, or the shorter side and None. Together the frames have at most
    ``most_pixels`` then, and each of them before.
    """

    size: tuple[int, int | None] | None = None
    upright: bool = False
    most_pixels: int = MOST_PIXELS

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of a finished frame."""
        if self.size is None:
            return height, width
        high, wide = self.size
        return short_side((height, width), high) if wide is None else (high, wide)

    def __call__(self, frame: Any, converter: Any) -> np.ndarray:
        """Return (h, w, 3) uint8."""
        found: np.ndarray = converter.reformat(frame, format="rgb24", threads=1).to_ndarray()
        if self.upright:
            found = _turned(found, frame)
        if self.size is None:
            return found
        return resize(found, Resize(*self.sides(*found.shape[:2])))


def _turned(array: np.ndarray, frame: Any) -> np.ndarray:
    """Return a frame as its display matrix says, if that only turns and mirrors it."""
    given = frame.side_data.get("DISPLAYMATRIX")
    if given is None:
        return array
    a, b, _, c, d = np.frombuffer(bytes(given), "<i4").tolist()[:5]
    if a and d and not (b or c):
        return array[:: 1 if d > 0 else -1, :: 1 if a > 0 else -1]
    if b and c and not (a or d):
        return array.transpose(1, 0, 2)[:: 1 if b > 0 else -1, :: 1 if c > 0 else -1]
    return array


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
    data: Encoded,
    choose: Callable[[FrameTimes], Sequence[int]],
    finish: Finish = AS_DECODED,
    known: int = 0,
) -> np.ndarray:
    """Return the frames that ``choose`` names, at least ``known``, as uint8 (n, h, w, 3).

    Frames are numbered from 0, in the order in which they are shown. Raise UnreadableVideo if they
    cannot be decoded, and for too many pixels.
    """
    most = finish.most_pixels
    with _opened(data, most) as video:
        if not video.count():
            raise UnreadableVideo("it has no frames")
        each, height, width = math.prod(video.size), *finish.sides(*video.size)
        _limit(max(each, known * height * width), most)
        numbers = choose(video)
        _limit(len(numbers) * height * width, most)
        TURNS.take((each + len(numbers) * height * width) * WORKING_BYTES)
        found = video.from_keys(numbers, finish) if video.times else None
    if found is None:  # by another decoder, since some keep pictures of the pass before
        with _opened(data, most) as video:
            found = video.from_start(numbers, finish)
    shapes = {frame.shape for frame in found.values()}
    if len(shapes) > 1:
        sizes = ", ".join(f"{h} x {w}" for h, w, _ in sorted(shapes))
        raise UnreadableVideo(f"its frames have different sizes: {sizes}; size= makes them equal")
    out = np.empty((len(numbers), *(shapes.pop() if shapes else (height, width, 3))), np.uint8)
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
        self.decoder.options = {"max_pixels": str(min(2 * most_pixels + PADDING, INT_MAX))}
        self.size = self.decoder.height, self.decoder.width
        self.packets = [packet for packet in container.demux(self.stream) if packet.size]
        self.times = self._shown_at() if self._jumps(container) else []

    def _jumps(self, container: Any) -> bool:
        """Return whether each packet is a frame that is shown, and decoding may begin at keys."""
        codec = self.decoder.codec.canonical_name
        if not container.format.name.startswith(TIMED) or codec not in JUMPING:
            return False
        if codec == "h264" and self.decoder.field_order != PROGRESSIVE:
            return False
        return codec != "vp9" or all(map(_is_shown, self.packets))

    def _shown_at(self) -> list[int]:
        """Return the times of all frames in order; [] unless each packet has one of its own."""
        times = [packet.pts for packet in self.packets]
        if None in times or any(packet.is_discard for packet in self.packets):
            return []
        found = sorted(set(times))
        whole = len(found) == len(times) and found[:1] == times[:1]
        return found if whole and all(packet.is_keyframe for packet in self.packets[:1]) else []

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

    def from_keys(self, numbers: Sequence[int], finish: Finish) -> dict[int, np.ndarray] | None:
        """Return finished frames, decoded from key frames on; None where that fails.

        Whether it is an error is found by decoding from the start.
        """
        runs = (self._from_key(start, run) for start, run in self._runs(sorted(set(numbers))))
        try:
            return _finished(chain.from_iterable(runs), finish)
        except UnreadableVideo:
            return None

    def from_start(self, numbers: Sequence[int], finish: Finish) -> dict[int, np.ndarray]:
        """Return finished frames, decoded from the first packet on; nothing was decoded before."""
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
        if start:
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


def _is_shown(packet: Any) -> bool:
    """Return whether a packet of VP9 has a frame that is shown (bitstream specification, 7.2)."""
    data = memoryview(packet)
    if data[-1] & 0xE0 == 0xC0:  # several frames, of which one is shown
        return True
    at = 3 if data[0] & 0x30 != 0x30 else 2
    existing, shown = data[0] >> at & 1, data[0] >> (at - 2) & 1
    return bool(existing or shown)


def _check(frame: Any) -> None:
    """Raise UnreadableVideo for a frame of which the decoder guessed a part."""
    if frame.is_corrupt:
        raise UnreadableVideo("a frame is damaged")


@contextmanager
def _opened(data: Encoded, most_pixels: int = MOST_PIXELS) -> Iterator[_Video]:
    """Open a video; raise UnreadableVideo for bytes that are none."""
    av, start = _av(), bytes(data[:189])
    found = (name for at, word, name in CONTAINERS if start.startswith(word, at))
    if (name := next(found, None)) is None:
        raise UnreadableVideo("its first bytes are those of no container of videos that is known")
    try:
        container = av.open(MemoryReader(data), "r", name, metadata_errors="replace")
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
