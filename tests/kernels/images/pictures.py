"""Encoded images of many kinds, drawn from a seed."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

SUBSAMPLINGS = ("444", "422", "420", "440", "411")
MODES = ("L", "RGB", "RGBA", "P", "CMYK", "YCbCr", "1", "LA", "I;16")


def scene(seed: int, height: int, width: int, channels: int = 3) -> np.ndarray:
    """Smooth colours with noise and edges, as photographs have: (height, width, channels) u1."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        np.sin(x / rng.uniform(3, 40) + rng.uniform(0, 6)) * np.cos(y / rng.uniform(3, 40))
        for _ in range(channels)
    ]
    values = 128 + 100 * np.stack(waves, -1) + rng.normal(0, 12, (height, width, channels))
    values[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, channels)
    return np.clip(values, 0, 255).astype(np.uint8)


def saved(image: Image.Image, way: str, **options: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, way, **options)
    return target.getvalue()


def jpeg(seed: int) -> bytes:
    """A JPEG file: every subsampling, grey, progressive, odd sizes, qualities 35 to 95."""
    draw = random.Random(seed)
    height, width = draw.randint(1, 130), draw.randint(1, 130)
    quality, way = draw.randint(35, 95), seed % 8
    array = scene(seed, height, width)
    if way < 5:
        return bytes(
            simplejpeg.encode_jpeg(
                array, quality, colorsubsampling=SUBSAMPLINGS[way], fastdct=False
            )
        )
    image = Image.fromarray(array)
    if way == 5:
        return saved(image.convert("L"), "JPEG", quality=quality)
    return saved(image, "JPEG", quality=quality, progressive=way == 6, keep_rgb=way == 7)


def other(seed: int) -> bytes:
    """A file of another format or mode than the usual JPEG."""
    draw = random.Random(seed)
    array = scene(seed, draw.randint(1, 40), draw.randint(1, 40))
    mode = MODES[seed % len(MODES)]
    if mode == "I;16":
        wide = array[:, :, 0].astype(np.uint16) * 257 ^ 0x35
        return saved(Image.fromarray(wide), draw.choice(["PNG", "TIFF"]))
    image = Image.fromarray(array).convert(mode)
    if mode in ("CMYK", "YCbCr"):
        return saved(image, draw.choice(["JPEG", "TIFF"]))
    if mode in ("RGBA", "LA"):
        return saved(image, draw.choice(["PNG", "TIFF", "WEBP"] if mode == "RGBA" else ["PNG"]))
    return saved(image, draw.choice(["PNG", "BMP", "TIFF", "GIF"] if mode != "LA" else ["PNG"]))


def damaged(seed: int) -> bytes:
    """A file with some bits turned, or without its end."""
    draw = random.Random(seed)
    found = bytearray(jpeg(seed) if draw.random() < 0.7 else other(seed))
    if draw.random() < 0.3:
        return bytes(found[: draw.randrange(len(found))])
    for _ in range(draw.choice([1, 1, 2, 8])):
        found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
    return bytes(found)
