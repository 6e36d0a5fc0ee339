"""Sounds for tests: tones in noise, and files of them."""

from __future__ import annotations

import io

import numpy as np
import soundfile

# Format, encoding, and file extension of what libsndfile writes.
FORMATS = (
    *(("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_U8"), ("WAV", "FLOAT"), ("WAV", "ULAW")),
    *(("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS")),
    *(("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_16"), ("AU", "PCM_16"), ("CAF", "ALAC_16")),
)


def clip(seed: int, samples: int, channels: int = 1, rate: int = 16_000) -> np.ndarray:
    """Tones in noise, (samples, channels) float32."""
    rng = np.random.default_rng(seed)
    times = np.arange(samples) / rate
    tones = [np.sin(2 * np.pi * rng.uniform(80, 3000) * times) for _ in range(channels)]
    found = 0.3 * np.stack(tones, 1) + 0.05 * rng.standard_normal((samples, channels))
    return found.astype(np.float32)


def saved(samples: np.ndarray, rate: int, form: str = "WAV", kind: str | None = "PCM_16") -> bytes:
    """The bytes of a file."""
    target = io.BytesIO()
    soundfile.write(target, samples, rate, format=form, subtype=kind)
    return target.getvalue()
