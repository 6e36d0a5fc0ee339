"""Each audio function is a step from one sound to the next, with its parameters and arguments.

``STEPS`` has them by name. A step gets an array, or bytes if it reads a file, and returns an array,
or None for null. Arguments, such as a random draw, belong to the row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dml.kernels.audio import sound_codec
from dml.kernels.audio.sound_codec import SoundPart, UnreadableSound
from dml.kernels.audio.spectra import MelBands, Windows, logarithm, mel, spectrogram
from dml.kernels.functions.function import Params, UnfitValue
from dml.kernels.rows.ids import GOLDEN, mix64
from dml.kernels.rows.row_draws import RowDraws

# White noise is the sum of numbers of so many bits, of one number of 64.
NOISE_BITS = 16


def decode(data: Any, params: Params, _: Params) -> np.ndarray | None:
    """Decode bytes; with ``on_error`` "null", return None if they cannot be read."""
    rate, mono, offset, duration, most, on_error = params
    try:
        return sound_codec.decode(data, rate, SoundPart(offset, duration), most, mono=mono)
    except UnreadableSound:
        if on_error == "null":
            return None
        raise


def info(data: Any, params: Params, _: Params) -> dict[str, int] | None:
    """Return rate, channels and frames of a file, by its header."""
    try:
        return sound_codec.info(data)._asdict()
    except UnreadableSound:
        if params[0] == "null":
            return None
        raise


def resample(sound: np.ndarray, params: Params, _: Params) -> np.ndarray:
    """Return the sound at another rate."""
    return sound_codec.resample(sound, *params)


def length(values: np.ndarray, _params: Params, _: Params) -> int:
    """Return the number of samples, or of a spectrum's windows."""
    return int(values.shape[-1])


# ------------------------------------------------------------------------------------------- parts


def cut(sound: np.ndarray, params: Params, given: Params) -> np.ndarray:
    """Keep the samples from a time on; the part ends with the sound."""
    rate, offset, duration = params
    begin = offset if offset is not None else float(given[0])
    if not 0 <= begin < float(1 << 40):
        raise UnfitValue(f"its offset is {begin}")
    start, stop = SoundPart(begin, duration).frames(rate, sound.shape[-1])
    return sound[..., start:stop]


def pad_or_trim(sound: np.ndarray, params: Params, _: Params) -> np.ndarray:
    """Keep the first samples, or add zeros at the end."""
    return _fitted(sound, 0, params[0])


def random_slice(sound: np.ndarray, params: Params, given: Params) -> np.ndarray:
    """Keep samples from a random place on; add zeros at the end of a shorter sound."""
    spare = max(0, sound.shape[-1] - params[0])
    return _fitted(sound, RowDraws(given[0]).integer(spare), params[0])


def _fitted(sound: np.ndarray, start: int, samples: int) -> np.ndarray:
    found = sound[..., start : start + samples]
    missing = samples - found.shape[-1]
    if not missing:
        return found
    return np.concatenate((found, np.zeros((*found.shape[:-1], missing), np.float32)), axis=-1)


# ----------------------------------------------------------------------------------------- changes


def gain(sound: np.ndarray, params: Params, given: Params) -> np.ndarray:
    """Make a sound louder by so many decibels, or quieter by negative ones."""
    decibels = params[0] if params else float(given[0])
    return sound * np.float32(np.power(10.0, decibels / 20))


def mix(sound: np.ndarray, params: Params, given: Params) -> np.ndarray:
    """Add the row's noise, which is repeated or cut to the length of the sound."""
    noise, snr = given[0], params[0] if params else float(given[1])
    if not noise.size:
        return sound
    repeated = np.resize(noise, sound.shape[-1])
    return _mixed(sound, repeated, snr)


def add_noise(sound: np.ndarray, params: Params, given: Params) -> np.ndarray:
    """Add white noise, drawn for the row, at a random ratio of powers."""
    draws = RowDraws(given[0])
    snr = draws.uniform(*params)
    return _mixed(sound, white(draws.integer((1 << 53) - 1), sound.shape[-1]), snr)


def white(seed: int, samples: int) -> np.ndarray:
    """Return white noise between -1 and 1, near to normal: sums of four random numbers."""
    bits = mix64(np.uint64(seed) + np.arange(1, samples + 1, dtype=np.uint64) * np.uint64(GOLDEN))
    parts = bits.view(np.uint16).reshape(-1, 4).sum(axis=1, dtype=np.int64)
    found: np.ndarray = (parts - 2 * ((1 << NOISE_BITS) - 1)) / (1 << (NOISE_BITS + 1))
    return found.astype(np.float32)


def _mixed(sound: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """Return the sound and the noise, whose power is that of the sound, ``snr`` decibels less."""
    if not sound.size:
        return sound
    powers = [float(np.square(each, dtype=np.float64).mean()) for each in (sound, noise)]
    if not powers[1]:
        return sound
    return sound + noise * np.float32(math.sqrt(powers[0] / powers[1]) * np.power(10.0, -snr / 20))


# ----------------------------------------------------------------------------------------- spectra


def spectrum(sound: np.ndarray, params: Params, _: Params) -> np.ndarray:
    """Return the spectrogram."""
    windows, power, kind = params
    return logarithm(spectrogram(sound, Windows(*windows), power), kind)


def mel_spectrum(sound: np.ndarray, params: Params, _: Params) -> np.ndarray:
    """Return the mel spectrogram."""
    windows, power, kind, bands = params
    return logarithm(mel(sound, Windows(*windows), power, MelBands(*bands)), kind)


def random_mask(spectrum: np.ndarray, params: Params, given: Params) -> np.ndarray:
    """Replace random bands of frequencies and of windows by one value (SpecAugment)."""
    times, frequencies, count, fill = params
    draws, found = RowDraws(given[0]), spectrum.copy()
    for axis, widest in ((-2, frequencies), (-1, times)):
        length = found.shape[axis]
        for _ in range(count):
            width = draws.integer(min(widest, length))
            start = draws.integer(length - width)
            np.moveaxis(found, axis, 0)[start : start + width] = fill
    return found


STEPS = {
    "audio.decode": decode,
    "audio.info": info,
    "audio.length": length,
    "audio.resample": resample,
    "audio.slice": cut,
    "audio.pad_or_trim": pad_or_trim,
    "audio.random_slice": random_slice,
    "audio.gain": gain,
    "audio.mix": mix,
    "audio.add_noise": add_noise,
    "audio.spectrogram": spectrum,
    "audio.mel": mel_spectrum,
    "audio.random_mask": random_mask,
}
