"""Test that frames equal those of decoding from the start, whatever is asked for first."""

from __future__ import annotations

import gc
import io
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import av
import numpy as np
import psutil
import pytest

from dml.errors import PlanError
from dml.kernels.video import video_codec
from dml.kernels.video.video_codec import Finish, FrameTimes, UnreadableVideo, frames, info
from tests.kernels.video.movies import FORMS, decoded, movie
from tests.sampling import amount

# Containers that name the time of each frame, of codecs that can begin at key frames.
TIMED = ("h264", "h264 in Matroska", "hevc", "vp9", "av1")


def _these(numbers: list[int], _video: FrameTimes) -> list[int]:
    return numbers


def _each(video: FrameTimes) -> range:
    return range(video.count())


@pytest.mark.parametrize("form", FORMS)
def test_a_frame_is_the_same_from_any_place(form: str) -> None:
    data = movie(form)
    wanted = decoded(data)
    draw = random.Random(form)
    for _ in range(amount(30, 2_500)):
        numbers = draw.choices(range(len(wanted)), k=draw.choice([1, 1, 2, 5]))
        assert frames(data, partial(_these, numbers)).tobytes() == wanted[numbers].tobytes()
    assert frames(data, _each).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("form", FORMS)
def test_facts_are_those_of_the_frames(form: str) -> None:
    found = info(movie(form))
    assert found.seconds == pytest.approx(1.2, abs=0.002)
    assert found == (30, 25.0, found.seconds, 64, 96)


@pytest.mark.parametrize("form", TIMED)
def test_decoding_starts_at_the_key_frame_before(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, seen = av.VideoFrame, []
    data, finish = movie(form, 60), Finish()
    plainly = video_codec._Video._decoded

    def counted(self: object, start: int) -> object:
        for frame in plainly(self, start):  # type: ignore[arg-type]
            assert isinstance(frame, decoder)
            seen.append(start)
            yield frame

    monkeypatch.setattr(video_codec._Video, "_decoded", counted)
    found = frames(data, lambda _: [55], finish)
    assert found[0].tobytes() == decoded(data)[55].tobytes()
    assert len(seen) < 20
    seen.clear()
    frames(data, lambda _: [2, 3, 58], finish)
    assert len(set(seen)) == 2


@pytest.mark.parametrize("form", ["h264", "hevc", "av1", "mpeg4"])
def test_a_file_that_calls_every_frame_a_key_frame(form: str) -> None:
    data = movie(form).replace(b"stss", b"free")
    wanted = decoded(data)
    for number in range(30):
        found = frames(data, partial(_these, [number]))
        assert found[0].tobytes() == wanted[number].tobytes()


@pytest.mark.parametrize(
    ("first", "last", "shown"),
    [
        (0b10_00_0_0_1_0, 0, True),
        (0b10_00_0_1_0_0, 0, False),
        (0b10_00_1_0_0_0, 0, True),  # an earlier frame is shown
        (0b10_10_0_1_0_0, 0, False),
        (0b10_11_0_0_0_1, 0, True),  # profile 3 has a bit more
        (0b10_11_0_0_1_0, 0, False),
        (0b10_00_0_1_0_0, 0b110_00_001, True),  # several frames, the last of them shown
    ],
)
def test_hidden_frames_of_vp9_are_told(first: int, last: int, *, shown: bool) -> None:
    assert video_codec._is_shown(av.Packet(bytes([first, 0, last]))) == shown


@pytest.mark.parametrize("form", ["vp9", "av1"])
def test_every_packet_of_an_encoder_is_told_to_be_shown(form: str) -> None:
    with video_codec._opened(movie(form)) as video:
        assert len(video.times) == 30


@pytest.mark.parametrize(
    "data",
    [
        b"ffconcat version 1.0\nfile secret.mp4\n",
        b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\nm=video 45678 RTP/AVP 96\r\n",
        b"#EXTM3U\n#EXTINF:1,\nhttp://host/part.ts\n",
    ],
)
def test_lists_of_files_and_addresses_are_no_videos(data: bytes) -> None:
    with pytest.raises(UnreadableVideo, match="no container of videos"):
        info(data)


def test_a_result_is_refused_before_it_is_made() -> None:
    cases: tuple[tuple[int, Any], ...] = (
        *((30_000_000, None), (1, (20_000, 20_000)), (10_000, (500, None))),
    )
    for known, size in cases:
        with pytest.raises(UnreadableVideo, match="max_pixels"):
            frames(movie(), lambda _: pytest.fail("chosen"), Finish(size), known)
    huge = Finish(most_pixels=1 << 40)
    assert frames(movie(), partial(_these, [1]), huge).shape == (1, 64, 96, 3)


def test_empty_lists_and_limits() -> None:
    data = movie()
    assert frames(data, lambda _: []).shape == (0, 64, 96, 3)
    assert frames(data, lambda _: [], Finish((8, 9))).shape == (0, 8, 9, 3)
    enough = Finish(most_pixels=2 * 64 * 96)
    assert frames(data, lambda _: [0, 9], enough).shape == (2, 64, 96, 3)
    with pytest.raises(UnreadableVideo, match="have 12288 pixels; max_pixels is 12287"):
        frames(data, lambda _: [0, 9], enough._replace(most_pixels=2 * 64 * 96 - 1))
    small = Finish((8, 8), most_pixels=64 * 96)
    assert frames(data, _each, small).shape == (30, 8, 8, 3)
    with pytest.raises(UnreadableVideo):  # the decoder refuses each frame
        frames(data, _each, small._replace(most_pixels=64 * 95))


def test_what_is_no_video_is_refused() -> None:
    sound = io.BytesIO()
    with av.open(sound, "w", format="wav") as file:
        stream = file.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        frame.rate = 8000
        file.mux(stream.encode(frame))
    for data in (b"", b"some text" * 50, movie()[:900], sound.getvalue()):
        with pytest.raises(UnreadableVideo):
            info(data)


@pytest.mark.parametrize("form", ["h264", "hevc", "av1", "mpeg4", "mpeg2"])
def test_damaged_videos_are_decoded_as_from_the_start_or_refused(form: str) -> None:
    data = movie(form)
    draw = random.Random(form)
    refused = 0
    for _ in range(amount(30, 500)):
        damaged = bytearray(data)
        if draw.random() < 0.2:
            del damaged[draw.randrange(len(damaged)) :]
        else:
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        try:
            found = frames(bytes(damaged), _each)
        except UnreadableVideo:
            refused += 1
            continue
        wanted = decoded(bytes(damaged))
        assert found.tobytes() == wanted[: len(found)].tobytes()
    assert refused


def test_memory_stays_flat_over_many_videos() -> None:
    data, process = movie(), psutil.Process()

    def use(times: int) -> int:
        for _ in range(times):
            frames(data, lambda _: [7])
        gc.collect()
        return int(process.memory_info().rss)

    before = use(50)
    assert use(amount(200, 1_000)) - before < 8 << 20


TURNS: dict[tuple[int, int, int, int], Callable[[np.ndarray], np.ndarray]] = {
    (1, 0, 0, 1): lambda frame: frame,
    (0, 1, -1, 0): lambda frame: np.rot90(frame, -1),
    (0, -1, 1, 0): np.rot90,
    (-1, 0, 0, -1): lambda frame: np.rot90(frame, 2),
    (-1, 0, 0, 1): lambda frame: frame[:, ::-1],
    (0, 1, 1, 0): lambda frame: frame.transpose(1, 0, 2),
    (0, 0, 0, 0): lambda frame: frame,
    (1, 1, -1, 1): lambda frame: frame,  # 45 degrees
}


@pytest.mark.parametrize("matrix", TURNS)
def test_frames_are_turned_and_mirrored_on_request(matrix: tuple[int, int, int, int]) -> None:
    data = bytearray(movie("mpeg4"))
    place = data.index(b"tkhd") + 4 + 40  # the matrix of the track, of nine numbers of 32 bits
    a, b, c, d = (n * (1 << 16) % (1 << 32) for n in matrix)
    numbers = (a, b, 0, c, d, 0, 0, 0, 1 << 30)
    data[place : place + 36] = b"".join(n.to_bytes(4, "big") for n in numbers)
    given = decoded(bytes(data))
    assert frames(bytes(data), lambda _: [3])[0].tobytes() == given[3].tobytes()
    (turned,) = frames(bytes(data), lambda _: [3], Finish(upright=True))
    assert turned.tobytes() == TURNS[matrix](given[3]).tobytes()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    video_codec._av.cache_clear()
    try:
        with pytest.raises(PlanError, match=r"(?s)video needs the library av.*dml\[video\]"):
            info(b"anything")
    finally:
        video_codec._av.cache_clear()


def test_what_decides_the_bytes_is_named() -> None:
    assert f"av={av.__version__} libavcodec=" in video_codec.libraries()
