"""Boxes follow their images: the random part is drawn as a column, and both are cut by it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

import dml
from dml import col

SIZE = 64


def scene(number: int) -> dict[str, Any]:
    """A dark picture with bright rectangles, and their boxes (left, top, right, bottom)."""
    rng = np.random.default_rng(number)
    height, width = rng.integers(80, 140, 2)
    pixels = np.full((height, width, 3), 20, np.uint8)
    boxes = []
    for _ in range(2):
        left, top = rng.integers(0, width - 20), rng.integers(0, height - 20)
        pixels[top : top + 20, left : left + 20] = 230
        boxes.append([float(n) for n in (left, top, left + 20, top + 20)])
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "PNG")
    return {"image": target.getvalue(), "boxes": boxes}


def pipeline(rows: int = 40) -> dml.Dataset:
    image, boxes = col("image").image, col("boxes").boxes
    drawn = dml.from_items([scene(n) for n in range(rows)]).with_columns(
        part=image.random_resized_crop(SIZE, scale=(0.3, 1.0), params=True),
        mirrored=image.random_flip(params=True),
    )
    cut = drawn.with_columns(
        image=image.decode().crop(col("part")).resize(SIZE, SIZE).flip(where=col("mirrored")),
        boxes=boxes.crop(col("part"))
        .boxes.resize(SIZE, SIZE, size=col("part").tensor.crop((2,), (2,)))
        .boxes.flip(SIZE, where=col("mirrored")),
    )
    return cut.select("image", "boxes")


if __name__ == "__main__":
    bright = []
    for row in pipeline().epoch(0):
        for left, top, right, bottom in np.array(row["boxes"]).round().astype(int):
            inside = row["image"][top + 1 : bottom - 1, left + 1 : right - 1]
            if inside.size:  # a box outside of the part is empty
                bright.append(inside.mean())
    print(f"{len(bright)} boxes, mean brightness {np.mean(bright):.0f} of 230")
    assert np.mean(bright) > 200
