"""Encoded sounds are decoded by libsndfile and resampled by libsoxr, each sound by itself."""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dml.base.host import vector_instructions
from dml.base.memory_files import MemoryReader, memory_file
from dml.base.memory_turns import TURNS
from dml.errors import PlanError
from dml.kernels.functions.function import UnfitValue

Encoded: TypeAlias = "bytes | memoryview"
# Most samples of a sound, in all channels, unless the user gives another number: 1 GiB of floats.
MOST_SAMPLES = 1 << 28
# Samples in a second: the rates that files may have and sounds may be resampled to.
LEAST_RATE, MOST_RATE = 1, 1 << 20
# Most by which a rate grows or shrinks; libsoxr does not end where it grows by 2**19 and more.
MOST_RATIO = 1 << 12
# Frames of files whose header does not say it, such as FLAC that was streamed, are at least these.
UNKNOWN = 1 << 62
# Frames that are decoded at once, since a damaged header may claim more than there are.
BLOCK_FRAMES = 1 << 20
# Bytes of a sample while it is decoded: as it is read, and as it is returned.
WORKING_BYTES = 8
# Formats in which reading from the middle on gives other bytes than reading it all.
FROM_START = ("MP3", "MPEG")


class UnreadableSound(UnfitValue):
    """An encoded sound is not readable; the text says why."""


class Info(NamedTuple):
    """What the header of a file says."""

    rate: int
    channels: int
    frames: int | None


class SoundPart(NamedTuple):
    """The part of a sound from ``offset`` on, in seconds; ``duration`` None: to its end."""

    offset: float = 0.0
    duration: float | None = None

    def frames(self, rate: int, frames: int) -> tuple[int, int]:
        """Return the first frame and the one after the last, within a sound of ``frames``."""
        start = min(round(self.offset * rate), frames)
        if self.duration is None:
            return start, frames
        return start, min(start + round(self.duration * rate), frames)


WHOLE = SoundPart()


@functools.cache
def libraries() -> str:
    """Return what decides a sound's bytes, for fingerprints: versions, and the processor.

    Decoders, the resampler and Fourier transforms compute floats, whose last bits depend on the
    instructions that a processor has.
    """
    names = {"soundfile": "__libsndfile_version__", "soxr": "__libsoxr_version__"}
    versions = (f"{each}={_version(each, name)}" for each, name in names.items())
    return " ".join((*versions, f"numpy={np.__version__}", vector_instructions()))


def _version(package: str, of_library: str) -> str:
    """Return the versions of a package, and of the library that it found in this system."""
    try:
        module = importlib.import_module(package)
    except (ImportError, OSError):
        return "absent"
    return f"{module.__version__}/{getattr(module, of_library)}"


@functools.cache
def _soundfile() -> Any:
    return _imported("soundfile")


@functools.cache
def _soxr() -> Any:
    return _imported("soxr")


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: libsndfile is not there
        what, way = f"audio needs the library {name}", 'pip install "dml[audio]"'
        raise PlanError(what, why=str(error), try_=way) from None


def info(data: Encoded) -> Info:
    """Return rate, channels and frames; raise UnreadableSound if the bytes are no sound.

    Frames are None where the header does not say them.
    """
    with _opened(MemoryReader(data)) as file:
        frames = None if file.frames >= UNKNOWN else file.frames
        return Info(file.samplerate, file.channels, frames)


def decode(
    data: Encoded,
    rate: int | None,
    part: SoundPart = WHOLE,
    most_samples: int = MOST_SAMPLES,
    *,
    mono: bool = True,
) -> np.ndarray:
    """Return float32 (samples,), or (channels, samples) unless ``mono``, at ``rate``.

    Channels are averaged before the sound is resampled. Raise UnreadableSound for bytes that
    cannot be decoded, and for more than ``most_samples``.
    """
    # from a file in memory, since libsndfile calls Python to read bytes
    with (
        memory_file(data) as given,
        _opened(MemoryReader(data) if given is None else given) as file,
    ):
        if file.frames >= UNKNOWN:
            raise UnreadableSound("its header does not say how long it is, as libsndfile needs it")
        start, stop = part.frames(file.samplerate, file.frames)
        _limit(start, stop, file, most_samples)
        found = _frames(file, start, stop)
        own_rate = file.samplerate
    sound = averaged(found) if mono else np.ascontiguousarray(found.T)
    return sound if rate is None else resample(sound, own_rate, rate, most_samples)


def _opened(file: Any) -> Any:
    """Open a file in memory, or a ``MemoryReader``; raise UnreadableSound for what is no sound."""
    library = _soundfile()
    try:
        sound = library.SoundFile(file, closefd=False)
    except (library.LibsndfileError, TypeError, ValueError, RuntimeError) as error:
        raise UnreadableSound(_reason(error)) from None
    rate, frames = sound.samplerate, sound.frames
    if LEAST_RATE <= rate <= MOST_RATE and frames >= 0:
        return sound
    sound.close()
    raise UnreadableSound(f"its header claims {frames} samples at {rate} a second")


def _limit(start: int, stop: int, file: Any, most: int) -> None:
    first = _first(file, start)
    count = (stop - first) * file.channels
    if count > most:
        raise UnreadableSound(f"it has {count} samples; max_samples is {most}")
    TURNS.take(count * WORKING_BYTES)


def _frames(file: Any, start: int, stop: int) -> np.ndarray:
    """Return frames ``start`` to ``stop`` (n, channels); raise UnreadableSound if some lack."""
    first = _first(file, start)
    library = _soundfile()
    blocks: list[np.ndarray] = []
    place = first
    try:
        file.seek(first)  # also to 0, as soundfile.read does: a decoder of MP3 rounds otherwise
        while place < stop or not blocks:
            wanted = min(stop - place, BLOCK_FRAMES)
            block = file.read(wanted, dtype="float32", always_2d=True)
            blocks.append(block)
            place += len(block)
            if len(block) < wanted:
                raise UnreadableSound(f"it ends after {place} of {file.frames} samples")
    except (library.LibsndfileError, RuntimeError) as error:
        raise UnreadableSound(_reason(error)) from None
    found = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    return found[start - first :]


def _first(file: Any, start: int) -> int:
    """Return the frame from which on ``file`` has to be decoded to have those from ``start`` on."""
    return 0 if file.format in FROM_START else start


def averaged(frames: np.ndarray) -> np.ndarray:
    """Return the mean of the channels of (frames, channels), summed from the first on."""
    channels = frames.shape[1]
    if channels == 1:
        return frames[:, 0]
    total = frames[:, 0] + frames[:, 1]
    for channel in range(2, channels):
        total += frames[:, channel]
    mean: np.ndarray = total / np.float32(channels)
    return mean


def resample(
    sound: np.ndarray, given: int, rate: int, most_samples: int = MOST_SAMPLES
) -> np.ndarray:
    """Return a sound at ``rate`` samples a second, by libsoxr in its quality HQ.

    The sound is (samples,) or (channels, samples), and has ``given`` samples a second.
    """
    if given == rate or not sound.size:
        return sound
    count = math.ceil(sound.size * rate / given)
    if count > most_samples:
        raise UnreadableSound(f"at {rate} it has {count} samples; max_samples is {most_samples}")
    if max(rate, given) > MOST_RATIO * min(rate, given):
        raise UnreadableSound(f"it has {given} samples a second, which is too far from {rate}")
    try:
        return np.ascontiguousarray(_soxr().resample(sound.T, given, rate, quality="HQ").T)
    except ValueError as error:  # so many channels
        raise UnreadableSound(_reason(error)) from None


def _reason(error: BaseException) -> str:
    """Return the error's text without addresses of objects, which differ between runs."""
    text = " ".join(str(getattr(error, "error_string", error)).split())
    return text.removeprefix("Error : ") or type(error).__name__
