"""Learn spoken commands: decode, cut, add noise, and make mel spectrograms as columns.

    python examples/speech_commands.py [FOLDER]

Without a folder, which has a folder of sounds for each word, it makes its own words of two tones.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile

import dml
from dml import col

RATE, WORDS = 16_000, {"yes": (400, 1800), "no": (500, 700), "stop": (900, 300)}


def record(folder: Path, count: int = 240) -> None:
    """Words of two tones one after the other, in noise, of half a second to two."""
    rng = np.random.default_rng(0)
    for number in range(count):
        word, tones = list(WORDS.items())[number % len(WORDS)]
        rate, seconds = (RATE, 22_050)[number % 2], rng.uniform(0.5, 2)
        times = np.arange(int(rate * seconds)) / rate
        tone = np.where(times < seconds / 2, *tones) * rng.uniform(0.95, 1.05)
        sound = 0.2 * np.sin(2 * np.pi * tone * times) + rng.normal(0, 0.05, len(times))
        (folder / word).mkdir(exist_ok=True)
        soundfile.write(folder / word / f"{number}.flac", sound, rate)


def train(ds: dml.Dataset, classes: int, epochs: int = 3) -> float:
    """A linear classifier of the mean spectra of both halves; return the share of right answers."""
    weights, right = np.zeros((2 * 40, classes)), 0.0
    for epoch in range(epochs):  # every epoch has parts, noise and masks of its own
        right = seen = 0
        for batch in ds:
            x = np.hstack([half.mean(2) / 50 for half in np.array_split(batch["audio"], 2, axis=2)])
            scores = np.exp(x @ weights)
            chances = scores / scores.sum(1, keepdims=True)
            right, seen = right + (chances.argmax(1) == batch["label"]).sum(), seen + len(x)
            weights += x.T @ (np.eye(classes)[batch["label"]] - chances) / len(x)
        print(f"epoch {epoch}: {right / seen:.0%} right")
    return right / seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        if not any(folder.iterdir()):
            record(folder)
        words = {path.name: n for n, path in enumerate(sorted(folder.iterdir()))}
        sound = col("audio").audio.decode(RATE).pad_or_trim(2.0).random_noise((10, 30))
        ds = dml.read_audio(folder, label=words)
        ds = ds.with_columns(audio=sound.mel(40, log="db").random_mask(20, 5))
        print(train(ds.shuffle(seed=1).batch(16), len(words)))
