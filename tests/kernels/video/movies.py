"""Videos for tests: a moving texture, encoded in several formats."""

from __future__ import annotations

import functools
import io
import os
from typing import Any, NamedTuple

import av
import numpy as np


class Form(NamedTuple):
    """A codec, a container, and the encoder's settings."""

    codec: str
    container: str
    options: dict[str, str]
    bidirectional: int = 3


os.environ.setdefault("SVT_LOG", "1")  # errors alone

FORMS = {
    "h264": Form(
        *("libx264", "mp4", {"x264-params": "open-gop=1:bframes=3:keyint=9:scenecut=0:threads=1"})
    ),
    "h264 in Matroska": Form("libx264", "matroska", {"threads": "1"}),
    "h264 in a transport stream": Form("libx264", "mpegts", {"threads": "1"}),
    "h264 in fields": Form(
        *("libx264", "mp4", {"flags": "+ildct+ilme", "x264-params": "interlaced=1:threads=1"})
    ),
    "hevc": Form(
        *("libx265", "mp4"),
        {"x265-params": "open-gop=1:bframes=4:keyint=9:log-level=none:frame-threads=1:wpp=0"},
    ),
    "vp9": Form(
        *("libvpx-vp9", "webm"),
        {"auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "8", "threads": "1"},
        0,
    ),
    "av1": Form("libsvtav1", "mp4", {"preset": "12", "svtav1-params": "lp=1"}, 0),
    "mpeg4 in AVI": Form("mpeg4", "avi", {}),
    "mpeg4": Form("mpeg4", "mp4", {}),
    "mpeg2": Form("mpeg2video", "mpeg", {}),
    "ffv1": Form("ffv1", "matroska", {}, 0),
}


def texture(seed: int, frames: int, height: int, width: int) -> np.ndarray:
    """Frames (n, h, w, 3) uint8 of noise that moves, with a number of them at the top."""
    rng = np.random.default_rng(seed)
    still = rng.integers(0, 255, (height, width, 3), np.uint8)
    found = np.stack([np.roll(still, 3 * n, axis=1) for n in range(frames)])
    for n, frame in enumerate(found):
        frame[: height // 4] = n * 7 % 256
    return found


@functools.cache
def movie(
    form: str = "h264", frames: int = 30, size: tuple[int, int] = (64, 96), seed: int = 0
) -> bytes:
    """The bytes of a file, with a key frame in every nine frames or so.

    The encoder of HEVC writes beyond its memory for sides of less than 48 pixels.
    """
    given, out = FORMS[form], io.BytesIO()
    with av.open(out, "w", format=given.container) as file:
        stream: Any = file.add_stream(given.codec, rate=25, options=given.options)
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = 9
        stream.codec_context.max_b_frames = given.bidirectional
        for array in texture(seed, frames, *size):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(array, format="rgb24")))
        file.mux(stream.encode())
    return out.getvalue()


def decoded(data: bytes) -> np.ndarray:
    """All frames (n, h, w, 3), decoded from the first to the last."""
    with av.open(io.BytesIO(data), "r", metadata_errors="replace") as file:
        found = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    return np.stack(found) if found else np.zeros((0, 0, 0, 3), np.uint8)
