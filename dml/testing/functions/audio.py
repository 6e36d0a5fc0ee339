"""The oracle computes functions of sounds by libsndfile, libsoxr and NumPy, one sound at a time."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import soundfile
import soxr

from dml.base.open_tensors import OpenTensor
from dml.errors import SchemaError
from dml.expr.columns.column import Column
from dml.expr.columns.column import random as drawn_number
from dml.kernels.rows.ids import GOLDEN, mix64_int
from dml.testing.functions.image_references import numbers
from dml.testing.functions.images import encoded
from dml.testing.functions.meaning import Draw, FunctionMeaning, Gives, Params, fixed
from dml.testing.scalars.operations import CastFailed

FACTS = pa.struct([(name, pa.int64()) for name in ("rate", "channels", "frames")])


def _axes(kind: pa.DataType) -> tuple[int | None, ...]:
    """Return the axes of lists and tensors of float32, () for other types."""
    if kind in (pa.list_(pa.float32()), pa.large_list(pa.float32())):
        return (None,)
    tensor = isinstance(kind, OpenTensor | pa.FixedShapeTensorType)
    return tuple(kind.shape) if tensor and kind.value_type == pa.float32() else ()


def _of(*shape: int | None) -> pa.DataType:
    value = pa.float32()
    return OpenTensor(value, shape) if None in shape else pa.fixed_shape_tensor(value, shape)


def _as_long(at: int) -> Gives:
    """Return the rule that the last axis has the length of parameter ``at``."""
    return lambda kind, params: _of(*_axes(kind)[:-1], params[at])


def _any_length(kind: pa.DataType, _params: Params) -> pa.DataType:
    return _of(*_axes(kind)[:-1], None)


def _equal(kind: pa.DataType, _params: Params) -> pa.DataType:
    return _of(*_axes(kind))


# ---------------------------------------------------------------------------------------- encoded


def _data(given: Any) -> bytes:
    data = given["bytes"] if isinstance(given, dict) else given
    if data is None:
        raise CastFailed("no bytes")
    return bytes(data)


def _of_file(given: Any, ask: Callable[[str], Any], on_error: str) -> Any:
    """Return ``ask(path)`` of a file with the bytes; None if libsndfile cannot read it."""
    try:
        with tempfile.NamedTemporaryFile() as file:
            file.write(_data(given))
            file.flush()
            return ask(file.name)
    except (CastFailed, soundfile.LibsndfileError):
        if on_error == "null":
            return None
        raise CastFailed("unreadable") from None


def _whole(path: str) -> tuple[np.ndarray, int]:
    """Return all samples (frames, channels) and their rate."""
    with soundfile.SoundFile(path) as file:
        file.seek(0)
        found = file.read(dtype="float32", always_2d=True)
        if len(found) < file.frames:
            raise CastFailed("it ends too early")
        return found, file.samplerate


def decoded(  # noqa: PLR0917 - as written
    given: Any,
    rate: int | None,
    mono: bool,  # noqa: FBT001 - as written
    offset: float,
    duration: float | None,
    most: int,
    on_error: str,
) -> Any:
    """Read a whole file, cut the part out, take the mean of its channels, and resample."""
    found = _of_file(given, _whole, on_error)
    if found is None:
        return None
    samples, own = found
    part = cut(samples.T, own, offset, duration)
    sizes = [part.size, 0 if rate is None else math.ceil(part.size * rate / own)]
    if mono:
        sizes[1] = math.ceil(sizes[1] / len(part)) if len(part) else 0
    if max(sizes) > most:
        if on_error == "null":
            return None
        raise CastFailed("too long")
    if mono:
        total = part[0]
        for channel in part[1:]:
            total = total + channel
        part = total / np.float32(len(part))
    return part if rate is None else resampled(part, own, rate)


def informed(given: Any, on_error: str) -> Any:
    """Return rate, channels and frames."""
    found = _of_file(given, soundfile.info, on_error)
    if found is None:
        return None
    return {"rate": found.samplerate, "channels": found.channels, "frames": found.frames}


def resampled(sound: np.ndarray, own: int, rate: int) -> np.ndarray:
    """Resample each channel by itself."""
    if sound.ndim == 2:
        found = [resampled(channel, own, rate) for channel in sound]
        return np.stack(found) if found else sound
    return soxr.resample(sound, own, rate, "HQ") if len(sound) and own != rate else sound


# ------------------------------------------------------------------------------- parts and changes


def cut(sound: np.ndarray, *given: Any) -> np.ndarray:
    """Return the samples from a time on; ``given`` are (offset,) rate, offset and duration."""
    *drawn, rate, offset, duration = given
    begin = drawn[0] if drawn else offset
    if not 0 <= begin < 2.0**40:
        raise CastFailed("no time")
    rest = sound[..., round(begin * rate) :]
    return rest if duration is None else rest[..., : round(duration * rate)]


def lengthened(sound: np.ndarray, samples: int) -> np.ndarray:
    """Return so many samples."""
    found = np.zeros((*sound.shape[:-1], samples), np.float32)
    kept = min(samples, sound.shape[-1])
    found[..., :kept] = sound[..., :kept]
    return found


def somewhere(sound: np.ndarray, draw: float, samples: int) -> np.ndarray:
    """Return so many samples from a random place on."""
    spare = max(0, sound.shape[-1] - samples)
    start = min(int(numbers(draw)() * (spare + 1)), spare)
    return lengthened(sound[..., start:], samples)


def louder(sound: np.ndarray, decibels: float) -> np.ndarray:
    """Multiply each sample."""
    return sound * np.float32(np.power(10.0, decibels / 20))


def noisy(sound: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """Add noise from its beginning on, again and again."""
    if not sound.size or not noise.size:
        return sound
    times = -(-sound.shape[-1] // len(noise))
    repeated = np.concatenate([noise] * times)[: sound.shape[-1]]
    own, other = (np.mean(np.square(np.float64(each))) for each in (sound, repeated))
    if other == 0:
        return sound
    return sound + repeated * np.float32(math.sqrt(own / other) * np.power(10.0, -snr / 20))


def hissing(sound: np.ndarray, draw: float, low: float, high: float) -> np.ndarray:
    """Add white noise."""
    drawn = numbers(draw)
    snr = low + (high - low) * drawn()
    seed = min(int(drawn() * (1 << 53)), (1 << 53) - 1)
    noise = []
    for place in range(1, sound.shape[-1] + 1):
        bits = mix64_int(seed + place * GOLDEN)
        total = sum(bits >> shift & 0xFFFF for shift in (0, 16, 32, 48))
        noise.append((total - 2 * 0xFFFF) / 2.0**17)
    return noisy(sound, np.array(noise, np.float32), snr)


# ----------------------------------------------------------------------------------------- spectra


def frames(sound: np.ndarray, windows: Params) -> list[np.ndarray]:
    """Return the weighed windows of one channel."""
    size, hop, length, name, centered = windows
    if centered:
        sound = np.pad(sound, size // 2, mode="reflect" if len(sound) else "constant")
    shape = np.zeros(size, np.float32)
    for place in range(length):
        turn = np.cos(2 * np.pi * place / length)
        weight = {"hann": 0.5 - 0.5 * turn, "hamming": 0.54 - 0.46 * turn, "ones": 1.0}[name]
        shape[(size - length) // 2 + place] = weight
    starts = range(0, len(sound) - size + 1, hop)
    return [sound[start : start + size] * shape for start in starts]


def spectrum(sound: np.ndarray, windows: Params, power: float, log: str | None) -> np.ndarray:
    """Return the powers of each window, transformed alone."""
    if sound.ndim == 2:
        each = [spectrum(channel, windows, power, log) for channel in sound]
        rows = windows[0] // 2 + 1
        return np.stack(each) if each else np.zeros((0, rows, count(sound.shape[1], windows)), "f4")
    columns = [powers(window, power) for window in frames(sound, windows)]
    shape = (windows[0] // 2 + 1, len(columns))
    return logged(np.array(columns, np.float32).reshape(shape[::-1]).T, log)


def powers(window: np.ndarray, power: float) -> np.ndarray:
    """Return the powers of one window."""
    found = np.fft.rfft(window)
    squared = found.real * found.real + found.imag * found.imag
    if power == 2:
        return squared
    return np.sqrt(squared) if power == 1 else np.power(squared, np.float32(power / 2))


def count(samples: int, windows: Params) -> int:
    """Return the number of windows."""
    return len(frames(np.zeros(samples, np.float32), windows))


def logged(values: np.ndarray, log: str | None) -> np.ndarray:
    """Return logarithms of at least 1e-10."""
    if log is None:
        return values
    floor = np.maximum(values, np.float32(1e-10))
    found: np.ndarray = np.log(floor) if log == "ln" else np.log10(floor)
    return found * np.float32(10) if log == "db" else found


def banded(
    sound: np.ndarray, windows: Params, power: float, log: str | None, bands: Params
) -> np.ndarray:
    """Return the sums of each band: those of the rising side, and of the falling side."""
    if sound.ndim == 2:
        each = [banded(channel, windows, power, log, bands) for channel in sound]
        shape = (0, bands[0], count(sound.shape[1], windows))
        return np.stack(each) if each else np.zeros(shape, "f4")
    columns = [powers(window, power) for window in frames(sound, windows)]
    found = np.zeros((bands[0], len(columns)), np.float32)
    sides = triangles(windows[0], *bands)
    for at, column in enumerate(columns):
        for band, (rising, falling) in enumerate(sides):
            found[band, at] = side(column, rising) + side(column, falling)
    return logged(found, log)


def side(column: np.ndarray, weights: dict[int, float]) -> np.float32:
    """Return the weighed sum of rows, in the order of ``numpy.add.reduceat``."""
    if not weights:
        return np.float32(0)
    products = [np.float32(weight) * column[row] for row, weight in weights.items()]
    return np.float32(np.add.reduceat(np.array(products, np.float32), [0])[0])


def triangles(  # noqa: PLR0917 - as written
    size: int, number: int, rate: int, low: float, high: float, scale: str, norm: str | None
) -> list[tuple[dict[int, float], dict[int, float]]]:
    """Return the weights of the rows on the rising and the falling side of each band."""
    to, back = SCALES[scale]
    ends = to(low), to(high)
    points = [back(mel) for mel in np.linspace(*ends, number + 2)]
    found = []
    for left, middle, right in zip(points, points[1:], points[2:], strict=False):
        height = 2 / (right - left) if norm == "slaney" else 1.0
        rising, falling = {}, {}
        for row in range(size // 2 + 1):
            hertz = row * (rate / size)
            if left <= hertz < middle:
                rising[row] = (hertz - left) / (middle - left) * height
            if middle <= hertz < right:
                falling[row] = (right - hertz) / (right - middle) * height
        found.append((rising, falling))
    return found


def _slaney(hertz: float) -> float:
    if hertz < 1000:
        return hertz / (200 / 3)
    return 1000 / (200 / 3) + float(np.log(np.float64(hertz / 1000))) / (math.log(6.4) / 27)


def _slaney_back(mel: float) -> float:
    if mel < 15:
        return mel * (200 / 3)
    return 1000 * float(np.exp(np.float64(math.log(6.4) / 27 * (mel - 15))))


SCALES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "htk": (
        lambda hertz: 2595 * float(np.log10(np.float64(1 + hertz / 700))),
        lambda mel: 700 * (float(np.power(np.float64(10), mel / 2595)) - 1),
    ),
    "slaney": (_slaney, _slaney_back),
}


def masked(  # noqa: PLR0917 - as written
    values: np.ndarray, draw: float, times: int, rows: int, number: int, fill: float
) -> np.ndarray:
    """Return a spectrum with random rows, and then random windows, at one value."""
    drawn, found = numbers(draw), values.copy()
    for axis, widest in ((-2, rows), (-1, times)):
        length = found.shape[axis]
        for _ in range(number):
            most = min(widest, length)
            width = min(int(drawn() * (most + 1)), most)
            start = min(int(drawn() * (length - width + 1)), length - width)
            for place in range(start, start + width):
                index = (..., place, slice(None)) if axis == -2 else (..., place)
                found[index] = fill
    return found


# ------------------------------------------------------------------------------------------- table

NUMBER = fixed(pa.float64())
SOUNDS, SPECTRA = (1, 2), (2, 3)
NAN = np.float32(np.nan)


def _draw_type(_kind: pa.DataType) -> pa.DataType:
    return pa.float64()


def _rows_of(rows: Callable[[Params], int]) -> Gives:
    """Return the type of spectra with ``rows(params)`` rows."""

    def gives(kind: pa.DataType, params: Params) -> pa.DataType:
        samples = _axes(kind)[-1]
        windows = None if samples is None else count(samples, params[0])
        if windows == 0:
            raise SchemaError("no window fits")
        return _of(*_axes(kind)[:-1], rows(params), windows)

    return gives


def _meaning(
    name: str,
    gives: Gives,
    means: Callable[..., Any],
    drawn: Callable[[Draw, Any], Column],
    **facts: Any,
) -> FunctionMeaning:
    takes = facts.pop("takes", lambda kind: len(_axes(kind)) in SOUNDS)

    def settled(*given: Any) -> Any:
        given = tuple(np.array(x, np.float32) if isinstance(x, list) else x for x in given)
        with np.errstate(all="ignore"):  # overflow is not an error of samples
            found = means(*given)
        return np.where(np.isnan(found), NAN, found) if isinstance(found, np.ndarray) else found

    return FunctionMeaning(f"audio.{name}", takes, gives, settled, drawn, **facts)


def _windows(d: Draw) -> dict[str, Any]:
    size = d.choice([4, 6, 7, 16])
    return {
        "n_fft": size,
        "hop_length": d.choice([1, 3, 8]),
        "win_length": d.choice([None, None, 3]),
        "window": d.choice(["hann", "hamming", "ones"]),
        "center": d.random() < 0.7,
        "power": d.choice([2.0, 1.0, 3.0]),
        "log": d.choice([None, None, "db", "ln", "log10"]),
    }


MEANINGS = (
    _meaning(
        "decode",
        lambda _, params: _of(None) if params[1] else _of(None, None),
        decoded,
        lambda d, c: c.audio.decode(
            d.choice([None, 8000, 11025, 3000]),
            mono=d.random() < 0.6,
            offset=d.choice([0.0, 0.0, 0.001, 1.0]),
            duration=d.choice([None, None, 0.002]),
            max_samples=d.choice([30, 10000]),
            on_error=d.choice(["null", "null", "raise"]),
        ),
        takes=encoded,
    ),
    _meaning(
        "info",
        fixed(FACTS),
        informed,
        lambda d, c: c.audio.info(on_error=d.choice(["null", "null", "raise"])),
        takes=encoded,
    ),
    _meaning(
        "length",
        fixed(pa.int64()),
        lambda values: values.shape[-1],
        lambda _, c: c.audio.length(),
        takes=lambda kind: len(_axes(kind)) in (1, 2, 3),
    ),
    _meaning(
        "resample",
        _any_length,
        resampled,
        lambda d, c: c.audio.resample(d.choice([8000, 5000]), from_rate=d.choice([8000, 16000])),
    ),
    _meaning(
        "slice",
        _any_length,
        cut,
        lambda d, c: c.audio.slice(
            d.choice([0.0, 0.3, 9.0, drawn_number()]), d.choice([None, 0.0, 0.4]), rate=10
        ),
        rest=_draw_type,
    ),
    _meaning(
        "pad_or_trim",
        _as_long(0),
        lengthened,
        lambda d, c: c.audio.pad_or_trim(d.choice([0.1, 0.5, 2.0]), rate=10),
    ),
    _meaning(
        "random_slice",
        _as_long(0),
        somewhere,
        lambda d, c: c.audio.random_slice(d.choice([0.1, 0.5, 2.0]), rate=10),
        rest=_draw_type,
    ),
    _meaning(
        "gain",
        _equal,
        louder,
        lambda d, c: c.audio.gain(d.choice([0.0, -6.0, 3.5, drawn_number() * 9])),
        rest=_draw_type,
    ),
    _meaning(
        "mix",
        _equal,
        noisy,
        lambda d, c: c.audio.mix_noise(
            c if d.random() < 0.5 else c.audio.pad_or_trim(0.3, rate=10),
            d.choice([0.0, 10.0, drawn_number() * 20]),
        ),
        rest=lambda _: (lambda kind: len(_axes(kind)) == 1, pa.float64()),
    ),
    _meaning(
        "add_noise",
        _equal,
        hissing,
        lambda d, c: c.audio.random_noise(d.choice([5.0, (0.0, 20.0)])),
        rest=_draw_type,
    ),
    _meaning(
        "spectrogram",
        _rows_of(lambda params: params[0][0] // 2 + 1),
        spectrum,
        lambda d, c: c.audio.spectrogram(**_windows(d)),
    ),
    _meaning(
        "mel",
        _rows_of(lambda params: params[3][0]),
        banded,
        lambda d, c: c.audio.mel(
            d.choice([1, 3, 5]),
            rate=d.choice([100, 8000]),
            f_min=d.choice([0.0, 20.0]),
            f_max=d.choice([None, 45.0]),
            mel_scale=d.choice(["htk", "slaney"]),
            norm=d.choice([None, "slaney"]),
            **_windows(d),
        ),
    ),
    _meaning(
        "random_mask",
        _equal,
        masked,
        lambda d, c: c.audio.random_mask(
            d.choice([0, 2, 9]), d.choice([0, 2, 9]), count=d.choice([1, 2]), fill=d.choice([0, -1])
        ),
        takes=lambda kind: len(_axes(kind)) in SPECTRA,
        rest=_draw_type,
    ),
)
