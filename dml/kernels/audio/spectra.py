"""Spectrograms and mel spectrograms of a sound, in float32, as torchaudio defines them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

# Most windows, and samples of them, that are transformed at once, which bounds memory.
BLOCK, BLOCK_SAMPLES = 256, 1 << 18
# Least power of which a logarithm is taken, as in librosa and torchaudio.
LEAST_POWER = 1e-10
# Mel scale of Slaney's Auditory Toolbox: linear below 1,000 Hz, logarithmic from there on.
SLANEY_HZ, SLANEY_KNEE, SLANEY_STEP = 200 / 3, 1000.0, math.log(6.4) / 27


class Windows(NamedTuple):
    """How a sound is cut: ``fft`` samples, every ``hop``, weighed by a window of ``length``."""

    fft: int
    hop: int
    length: int
    name: str = "hann"
    centered: bool = True

    def windows(self, samples: int) -> int:
        """Return the number of windows of a sound of ``samples``."""
        room = samples + 2 * (self.fft // 2) * self.centered
        return 0 if room < self.fft else 1 + (room - self.fft) // self.hop


class MelBands(NamedTuple):
    """Bands of equal width in mel from ``low`` to ``high`` Hz, for sounds of ``rate``."""

    number: int
    rate: int
    low: float
    high: float
    scale: str = "htk"
    norm: str | None = None


@functools.lru_cache
def window(windows: Windows) -> np.ndarray:
    """Return the periodic window (fft,), in the middle of zeros if it is shorter; float32."""
    turns = 2 * np.pi * np.arange(windows.length) / windows.length
    first, second = {"hann": (0.5, 0.5), "hamming": (0.54, 0.46), "ones": (1.0, 0.0)}[windows.name]
    found = np.zeros(windows.fft, np.float32)
    left = (windows.fft - windows.length) // 2
    found[left : left + windows.length] = first - second * np.cos(turns)
    return found


def spectrogram(sound: np.ndarray, windows: Windows, power: float) -> np.ndarray:
    """Return (..., fft // 2 + 1, windows) float32: magnitudes to the power ``power``.

    With ``centered``, the sound is mirrored at both ends, so that window i is around sample
    i * hop.
    """
    return _by_channel(sound, windows, windows.fft // 2 + 1, lambda found: _raised(found, power))


def mel(sound: np.ndarray, windows: Windows, power: float, bands: MelBands) -> np.ndarray:
    """Return (..., bands, windows) float32: the spectrogram in triangular bands of mel."""
    banks = filters(bands, windows.fft)
    return _by_channel(
        sound, windows, bands.number, lambda found: banks.apply(_raised(found, power))
    )


def logarithm(spectrum: np.ndarray, kind: str | None) -> np.ndarray:
    """Return decibels ("db"), "ln" or "log10" of at least 1e-10; the values for None."""
    if kind is None:
        return spectrum
    floor = np.maximum(spectrum, np.float32(LEAST_POWER))
    found: np.ndarray = np.log(floor) if kind == "ln" else np.log10(floor)
    return found * np.float32(10.0) if kind == "db" else found


def _by_channel(
    sound: np.ndarray,
    windows: Windows,
    rows: int,
    change: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return (..., rows, windows): ``change`` of the Fourier transforms of the windows."""
    channels = sound if sound.ndim == 2 else sound[None]
    out = np.empty((len(channels), rows, windows.windows(sound.shape[-1])), np.float32)
    for channel, target in zip(channels, out, strict=True):
        _fill(channel, windows, change, target)
    return out.reshape(*sound.shape[:-1], *out.shape[1:])


def _fill(
    sound: np.ndarray,
    windows: Windows,
    change: Callable[[np.ndarray], np.ndarray],
    out: np.ndarray,
) -> None:
    """Write to ``out`` (rows, windows), a block of windows after the other."""
    if not out.shape[1]:
        return
    if windows.centered:
        sound = _mirrored(sound, windows.fft // 2)
    views, weights = sliding_window_view(sound, windows.fft)[:: windows.hop], window(windows)
    block = max(1, min(BLOCK, BLOCK_SAMPLES // windows.fft))
    for start in range(0, out.shape[1], block):
        found = np.fft.rfft(views[start : start + block] * weights)
        out[:, start : start + block] = change(found.T)


def _mirrored(sound: np.ndarray, margin: int) -> np.ndarray:
    """Return the sound with ``margin`` samples mirrored at both ends; silence stays silence."""
    if len(sound) <= margin:
        return np.pad(sound, margin, mode="reflect" if len(sound) else "constant")
    ends = sound[margin:0:-1], sound[-2 : -margin - 2 : -1]
    return np.concatenate((ends[0], sound, ends[1]))


def _raised(found: np.ndarray, power: float) -> np.ndarray:
    """Return the magnitudes of complex numbers to the power ``power``."""
    squared: np.ndarray = np.square(found.real) + np.square(found.imag)
    if power != 2:
        squared = np.sqrt(squared) if power == 1 else squared ** np.float32(power / 2)
    return squared


class Filters(NamedTuple):
    """Triangular bands. Between two neighbouring points of mel one band rises, another one falls.

    ``rising`` and ``falling`` are the weights (n, 1) of the rows from ``first`` on. ``starts`` are
    the rows, counted from there, at which a point of mel is passed, ``numbers`` those of the bands
    that rise there.
    """

    bands: int
    first: int
    rising: np.ndarray
    falling: np.ndarray
    starts: np.ndarray
    numbers: np.ndarray

    def apply(self, spectrum: np.ndarray) -> np.ndarray:
        """Return (bands, n) of a spectrum (rows, n)."""
        rows = spectrum[self.first : self.first + len(self.rising)]
        sides = np.zeros((2, self.bands + 1, rows.shape[1]), np.float32)
        if len(self.starts):
            for side, weights in zip(sides, (self.rising, self.falling), strict=True):
                side[self.numbers] = np.add.reduceat(weights * rows, self.starts, axis=0)
        return sides[0, :-1] + sides[1, 1:]


@functools.lru_cache
def filters(bands: MelBands, fft: int) -> Filters:
    """Return the triangular bands for the rows of a spectrum of ``fft`` samples."""
    points = _hertz(np.linspace(*_mel_ends(bands), bands.number + 2), bands.scale)
    rows = np.arange(fft // 2 + 1) * (bands.rate / fft)
    at = np.searchsorted(points, rows, side="right") - 1
    inside = np.flatnonzero((at >= 0) & (at <= bands.number))
    place, rows = at[inside], rows[inside]
    width = points[place + 1] - points[place]
    scale = np.ones(bands.number + 2)
    if bands.norm == "slaney":
        scale[1:-1] = 2 / (points[2:] - points[:-2])
    rising = (rows - points[place]) / width * scale[place + 1]
    falling = (points[place + 1] - rows) / width * scale[place]
    numbers, starts = np.unique(place, return_index=True)
    first = int(inside[0]) if len(inside) else 0
    up, down = (side.astype(np.float32)[:, None] for side in (rising, falling))
    return Filters(bands.number, first, up, down, starts, numbers)


def _mel_ends(bands: MelBands) -> tuple[float, float]:
    low, high = _mels(np.array([bands.low, bands.high]), bands.scale).tolist()
    return low, high


def _mels(hertz: np.ndarray, scale: str) -> np.ndarray:
    """Return frequencies in mel: O'Shaughnessy's ("htk"), or Slaney's."""
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + hertz / 700.0)
    knee = SLANEY_KNEE / SLANEY_HZ
    above = knee + np.log(np.maximum(hertz, SLANEY_KNEE) / SLANEY_KNEE) / SLANEY_STEP
    return np.where(hertz < SLANEY_KNEE, hertz / SLANEY_HZ, above)


def _hertz(mels: np.ndarray, scale: str) -> np.ndarray:
    """Return frequencies of mel in hertz: the reverse of ``_mels``."""
    if scale == "htk":
        return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    knee = SLANEY_KNEE / SLANEY_HZ
    above = SLANEY_KNEE * np.exp(SLANEY_STEP * (np.maximum(mels, knee) - knee))
    return np.where(mels < knee, mels * SLANEY_HZ, above)
