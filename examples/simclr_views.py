"""Two views of every image for contrastive learning (SimCLR), without a function of one's own."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

import dml


def encoded(number: int) -> bytes:
    """A smooth picture as JPEG."""
    rng = np.random.default_rng(number)
    small = Image.fromarray(
        (rng.integers(0, 256, 3) * rng.uniform(0.7, 1, (6, 8, 1))).astype(np.uint8)
    )
    target = io.BytesIO()
    small.resize((120, 90)).save(target, "JPEG")
    return target.getvalue()


def pipeline(rows: int = 64) -> dml.Dataset:
    images = dml.from_items([{"id": n, "image": encoded(n)} for n in range(rows)])
    views = images.shuffle(seed=1).with_columns(**dml.vision.simclr(48, strength=0.25))
    return views.drop("image").batch(16)


def similarity(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosines between the mean colours of two sets of views."""
    a, b = (each.mean((2, 3)) for each in (first, second))
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    found: np.ndarray = a @ b.T / norms
    return found


if __name__ == "__main__":
    same, others = [], []
    for batch in pipeline():
        cosines = similarity(batch["view_1"], batch["view_2"])
        own = np.eye(len(cosines), dtype=bool)
        same.append(cosines[own].mean())
        others.append(cosines[~own].mean())
    print(f"views of one image {np.mean(same):.2f}, of two {np.mean(others):.2f}")
    assert np.mean(same) > np.mean(others)
