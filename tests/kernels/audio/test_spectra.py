"""Test spectrograms and mel bands against their definitions, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dml.kernels.audio.spectra import MelBands, Windows, filters, logarithm, mel, spectrogram
from tests.kernels.audio.clips import clip

WINDOWS = (
    Windows(400, 160, 400),
    Windows(512, 128, 400, "hamming"),
    Windows(64, 100, 64, "ones", centered=False),
    Windows(33, 7, 21),
)


def transformed(sound: np.ndarray, windows: Windows) -> np.ndarray:
    """The discrete Fourier transform of each window, as a sum, in float64."""
    weights = np.zeros(windows.fft)
    for n in range(windows.length):
        turn = math.cos(2 * math.pi * n / windows.length)
        value = {"hann": 0.5 - 0.5 * turn, "hamming": 0.54 - 0.46 * turn, "ones": 1.0}
        weights[(windows.fft - windows.length) // 2 + n] = value[windows.name]
    x = sound.astype(np.float64)
    if windows.centered:
        half = windows.fft // 2
        x = np.concatenate((x[1 : half + 1][::-1], x, x[-half - 1 : -1][::-1]))
    rows, places = np.arange(windows.fft // 2 + 1)[:, None], np.arange(windows.fft)
    turns = np.exp(-2j * np.pi * rows * places / windows.fft)
    starts = range(0, len(x) - windows.fft + 1, windows.hop)
    return np.stack([turns @ (x[s : s + windows.fft] * weights) for s in starts], 1)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("power", [1.0, 2.0, 0.5])
def test_a_spectrogram_has_the_powers_of_the_transform(windows: Windows, power: float) -> None:
    sound = clip(2, 3_000)[:, 0]
    wanted = np.abs(transformed(sound, windows)) ** power
    found = spectrogram(sound, windows, power)
    assert found.dtype == np.float32
    assert found.shape == (windows.fft // 2 + 1, windows.windows(len(sound)))
    np.testing.assert_allclose(found, wanted, atol=2e-5 * wanted.max())


def test_channels_and_blocks_of_windows_change_nothing() -> None:
    windows, sound = Windows(64, 16, 64), clip(4, 16 * 700, 2).T
    both = spectrogram(sound, windows, 2.0)
    for channel, found in zip(sound, both, strict=True):
        assert np.array_equal(spectrogram(channel, windows, 2.0), found)
        plain = Windows(64, 16, 64, centered=False)
        part = spectrogram(channel[16 * 300 :], plain, 2.0)
        assert np.array_equal(part, spectrogram(channel, plain, 2.0)[:, 300:])


@pytest.mark.parametrize("samples", [0, 1, 2, 5])
def test_sounds_shorter_than_a_window_are_mirrored_as_often_as_it_takes(samples: int) -> None:
    found = spectrogram(np.ones(samples, np.float32), Windows(16, 4, 16), 2.0)
    assert found.shape == (9, 1 + samples // 4)
    assert np.isfinite(found).all()
    shape = spectrogram(np.ones(samples, np.float32), Windows(16, 4, 16, "hann", False), 2.0).shape
    assert shape == (9, 0)


@pytest.mark.parametrize("scale", ["htk", "slaney"])
@pytest.mark.parametrize("norm", [None, "slaney"])
def test_bands_are_triangles_between_equal_steps_of_mel(scale: str, norm: str | None) -> None:
    bands, fft = MelBands(40, 16_000, 50.0, 7_000.0, scale, norm), 512
    weights = filters(bands, fft).apply(np.eye(fft // 2 + 1, dtype=np.float32)).astype(np.float64)
    assert weights.shape == (40, 257)
    rows = np.arange(257) * 16_000 / fft
    assert not weights[:, (rows < 50) | (rows > 7_000)].any()
    centers = [rows @ band / band.sum() for band in weights if band.sum()]
    assert centers == sorted(centers)
    if norm is None:  # between the centers of the first and the last band, weights add up to one
        inside = (rows > centers[0] + 40) & (rows < centers[-1] - 400)
        np.testing.assert_allclose(weights[:, inside].sum(0), 1, rtol=1e-5)
    sound = clip(6, 4_000)[:, 0]
    found = mel(sound, Windows(fft, 160, fft), 2.0, bands)
    plain = weights @ spectrogram(sound, Windows(fft, 160, fft), 2.0)
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-6)


def test_htk_and_slaney_are_where_their_papers_put_them() -> None:
    for scale in ("htk", "slaney"):
        bands = MelBands(3, 20_000, 0.0, 6_400.0, scale)
        weights = filters(bands, 2_000).apply(np.eye(1_001, dtype=np.float32))
        top = weights.argmax(axis=1) * 10
        if scale == "slaney":  # 0, 200 / 3 Hz a mel, 27 steps from 1,000 to 6,400 Hz
            steps = np.array([0.25, 0.5, 0.75]) * (15 + 27)
            wanted = [s * 200 / 3 if s < 15 else 1000 * 6.4 ** ((s - 15) / 27) for s in steps]
        else:
            most = 2595 * math.log10(1 + 6400 / 700)
            wanted = [700 * (10 ** (most * part / 2595) - 1) for part in (0.25, 0.5, 0.75)]
        np.testing.assert_allclose(top, wanted, atol=10)


def test_logarithms_have_a_floor() -> None:
    values = np.array([0.0, 1e-12, 1.0, 100.0], np.float32)
    assert logarithm(values, None) is values
    np.testing.assert_allclose(logarithm(values, "db"), [-100, -100, 0, 20], rtol=1e-6)
    np.testing.assert_allclose(logarithm(values, "log10"), [-10, -10, 0, 2], rtol=1e-6)
    np.testing.assert_allclose(logarithm(values, "ln"), np.log([1e-10, 1e-10, 1, 100]), rtol=1e-6)
