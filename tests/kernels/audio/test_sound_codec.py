"""Test that sounds are decoded as libsndfile and libsoxr do, and what is refused."""

from __future__ import annotations

import os
import random
import tempfile

import numpy as np
import pytest
import soundfile
import soxr

from dml.base import memory_files
from dml.errors import PlanError
from dml.kernels.audio import sound_codec
from dml.kernels.audio.sound_codec import SoundPart, UnreadableSound, decode, info, resample
from tests.kernels.audio.clips import FORMATS, clip, saved
from tests.sampling import amount


def whole(data: bytes) -> tuple[np.ndarray, int] | None:
    """What libsndfile reads from a file; None if it refuses it, has less than it says, or too much.

    Too much are more samples or a higher rate than dml takes.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            with soundfile.SoundFile(file.name) as opened:
                if opened.frames * opened.channels > sound_codec.MOST_SAMPLES:
                    return None
                if opened.samplerate > sound_codec.MOST_RATE:
                    return None
                opened.seek(0)
                found = opened.read(dtype="float32", always_2d=True)
                return (found, opened.samplerate) if len(found) == opened.frames else None
        except soundfile.LibsndfileError:
            return None


@pytest.mark.parametrize(
    ("form", "kind", "channels"),
    [(*each, n) for each in FORMATS for n in (1, 2, 3) if each[0] != "MP3" or n < 3],
)
def test_samples_are_those_of_the_libraries(form: str, kind: str, channels: int) -> None:
    data = saved(clip(3, 9_000, channels, 48_000), 48_000, form, kind)
    read = whole(data)
    assert read is not None
    samples, rate = read
    assert info(data) == (rate, channels, len(samples))
    assert np.array_equal(decode(data, None, mono=False), samples.T)
    single = decode(data, None)
    total = samples[:, 0]
    for channel in range(1, channels):
        total = total + samples[:, channel]
    assert np.array_equal(single, total / np.float32(channels))
    for wanted in (16_000, 22_050, rate):
        plain = soxr.resample(single, rate, wanted) if wanted != rate else single
        assert np.array_equal(decode(data, wanted), plain)
        both = decode(data, wanted, mono=False)
        each = [soxr.resample(x, rate, wanted) if wanted != rate else x for x in samples.T]
        assert np.array_equal(both, np.stack(each))


@pytest.mark.parametrize(("form", "kind"), FORMATS)
def test_a_part_is_the_part_of_the_whole(form: str, kind: str) -> None:
    """Also where a decoder that jumps to a place gives other samples, as that of MP3 does."""
    data = saved(clip(5, 48_000, 2, 48_000), 48_000, form, kind)
    every, draw = decode(data, None, mono=False), random.Random(form + kind)
    for _ in range(amount(20, 300)):
        offset, duration = draw.uniform(0, 1.1), draw.choice([None, draw.uniform(0, 1)])
        start = round(offset * 48_000)
        stop = None if duration is None else start + round(duration * 48_000)
        found = decode(data, None, SoundPart(offset, duration), mono=False)
        assert np.array_equal(found, every[:, start:stop]), (offset, duration)


@pytest.mark.parametrize(("form", "kind"), FORMATS)
def test_damaged_files_are_read_as_libsndfile_reads_them_or_refused(form: str, kind: str) -> None:
    data, draw = saved(clip(7, 4_000, 2), 16_000, form, kind), random.Random(form + kind)
    refused = 0
    for number in range(amount(40, 200)):
        broken = bytearray(data)
        if number % 4 == 0:
            del broken[draw.randrange(len(broken)) :]
        else:
            place = draw.randrange(min(len(broken), 200) if number % 2 else len(broken))
            broken[place] ^= 1 << draw.randrange(8)
        wanted = whole(bytes(broken))
        if wanted is None:
            with pytest.raises(UnreadableSound, match=r"\w"):
                decode(bytes(broken), None, mono=False)
            refused += 1
        else:
            found = decode(bytes(broken), None, mono=False)
            assert np.array_equal(found, wanted[0].T, equal_nan=True)
    assert refused


def test_a_header_that_claims_too_much_is_refused_before_memory_is_taken() -> None:
    data = bytearray(saved(clip(1, 500), 16_000, "FLAC"))
    data[21] |= 0x0F  # the upper bits of the number of samples, which has 36
    data[22:26] = b"\xff\xff\xff\xff"
    assert info(bytes(data)).frames == (1 << 36) - 1
    with pytest.raises(UnreadableSound, match="68719476735 samples; max_samples is 268435456"):
        decode(bytes(data), None)
    with pytest.raises(UnreadableSound):
        decode(bytes(data), None, most_samples=1 << 40)
    long = saved(clip(1, 5_000, 2), 16_000)
    with pytest.raises(UnreadableSound, match="10000 samples; max_samples is 9999"):
        decode(long, None, most_samples=9_999)
    assert decode(long, None, SoundPart(0.1, 0.1), 9_999).shape == (1_600,)
    with pytest.raises(UnreadableSound, match="at 1048576 it has"):
        decode(long, 1 << 20, most_samples=100_000)


@pytest.mark.parametrize("data", [b"", b"RIFF", b"no sound at all", b"\xff\xfb\x90" * 40])
def test_what_is_no_sound_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableSound, match=r"\w"):
        decode(data, 16_000)
    with pytest.raises(UnreadableSound):
        info(data)


def test_nothing_is_resampled_to_nothing() -> None:
    for shape in ((0,), (2, 0), (0, 4)):
        assert resample(np.zeros(shape, np.float32), 8_000, 16_000).shape == shape
    assert decode(saved(clip(1, 0), 8_000), 16_000).shape == (0,)


def test_without_the_library_there_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(PlanError, match=r"audio needs the library soxr[\s\S]*dml\[audio\]"):
        sound_codec._imported("soxr")
    assert sound_codec._version("soxr", "__libsoxr_version__") == "absent"


def test_what_decides_the_bytes_is_named() -> None:
    named = sound_codec.libraries()
    assert f"soxr={soxr.__version__}/{soxr.__libsoxr_version__}" in named
    assert f"soundfile={soundfile.__version__}/{soundfile.__libsndfile_version__}" in named
    assert len(named.split()) == 4, "versions and the instructions of the processor"


def test_no_file_stays_open_and_none_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    data, before = saved(clip(1, 2_000), 8_000), len(os.listdir("/dev/fd"))
    wanted = decode(data, None)
    for number in range(50):
        with pytest.raises(UnreadableSound):
            decode(data[: number % 40], None)
        assert info(data).frames == 2_000
    assert len(os.listdir("/dev/fd")) == before

    def none(name: str) -> int:
        raise OSError(24, name)

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", none, raising=False)
        assert np.array_equal(decode(data, None), wanted)
    monkeypatch.setattr(memory_files, "MOST_BYTES", 10)
    assert np.array_equal(decode(data, None), wanted)


def test_rates_that_are_too_far_apart_are_refused() -> None:
    """The resampler does not end if the rate grows by 2**19."""
    with pytest.raises(UnreadableSound, match="too far from 1048576"):
        resample(np.ones(3, np.float32), 1, 1 << 20)
    slow = bytearray(saved(clip(1, 4_000), 8_000))
    slow[24:28] = (1).to_bytes(4, "little")
    assert info(bytes(slow)).rate == 1
    with pytest.raises(UnreadableSound, match=r"samples; max_samples is|too far from 16000"):
        decode(bytes(slow), 16_000)
    with pytest.raises(UnreadableSound, match="Channel num"):
        resample(np.ones((70_000, 2), np.float32), 8_000, 9_000)


def test_a_file_that_does_not_say_its_length_is_refused() -> None:
    data = bytearray(saved(clip(4, 3_000), 16_000, "FLAC"))
    data[21] &= 0xF0  # the number of samples, of 36 bits: 0 is unknown
    data[22:26] = bytes(4)
    assert info(bytes(data)) == (16_000, 1, None)
    with pytest.raises(UnreadableSound, match="does not say how long it is"):
        decode(bytes(data), None)
