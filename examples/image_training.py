"""Train on a folder of images, a folder for each class: decode, augment and normalise as columns.

    python examples/image_training.py [FOLDER]

Without a folder it draws its own photographs: of day and of night, in two folders.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import dml


def draw(folder: Path, count: int = 150) -> None:
    """Noisy pictures of the sun or the moon above a field, of any size."""
    rng = np.random.default_rng(0)
    for number in range(count):
        kind, sky = (("day", (120, 150, 220)), ("night", (40, 40, 70)))[number % 2]
        height, width = rng.integers(60, 120, 2)
        y, x = np.mgrid[0:height, 0:width] - rng.integers(20, 50, 2)[:, None, None]
        light = 100 * (np.hypot(y, x) < 15)[..., None]
        pixels = rng.normal(np.array(sky) + light, 20, (height, width, 3)).clip(0, 255)
        (folder / kind).mkdir(exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / kind / f"{number}.jpg")


def train(ds: dml.Dataset, classes: list[str], epochs: int = 3) -> float:
    """A linear classifier of 16 x 16 means; return the share of right answers at the end."""
    weights = np.zeros((16 * 16 * 3, len(classes)))
    right = 0.0
    for epoch in range(epochs):  # every epoch has parts and flips of its own
        right = seen = 0
        for batch in ds:
            x = batch["image"].reshape(len(batch["label"]), -1) / 16
            scores = np.exp(x @ weights)
            chances = scores / scores.sum(1, keepdims=True)
            right += int((chances.argmax(1) == batch["label"]).sum())
            seen += len(x)
            weights += 0.5 * x.T @ (np.eye(len(classes))[batch["label"]] - chances) / len(x)
        print(f"epoch {epoch}: {right / seen:.0%} right")
    return right / seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        if folder == Path(scratch):
            draw(folder)
        classes = sorted(path.name for path in folder.iterdir())
        ds = dml.read_images(folder, label={name: n for n, name in enumerate(classes)})
        ds = ds.with_columns(image=dml.vision.imagenet_train(16)).select("image", "label")
        print(train(ds.shuffle(seed=1).batch(32), classes))
