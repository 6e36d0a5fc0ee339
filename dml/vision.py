"""One-line recipes for images, made of the functions of ``col("image").image``.

ds = dml.read_images("train", label="parent")
ds = ds.with_columns(image=dml.vision.imagenet_train(224)).shuffle().batch(256)
for batch in ds: step(batch["image"], batch["label"])       # (256, 3, 224, 224) float32
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dml.base.user_line import door, missing
from dml.expr.columns.column import Column, col
from dml.expr.columns.namespaces.image_arguments import finite

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "imagenet_eval", "imagenet_train", "simclr"]

# Mean and standard deviation of red, green and blue in ImageNet's training images.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


if not TYPE_CHECKING:  # a checker would take any name for a known one

    def __getattr__(name: str) -> object:
        return missing(sys.modules[__name__], name, "dml.vision")


@door
def imagenet_train(size: int = 224, column: str = "image", *, seed: int | None = None) -> Column:
    """Decode, take a random part, mirror half of the images, normalise: float32 (3, size, size).

    The training transforms of torchvision's reference: RandomResizedCrop with bilinear antialiasing
    and RandomHorizontalFlip (He et al. 2016, section 3.4).
    """
    image = _decoded(column).random_resized_crop(size, seed=seed).random_flip(seed=seed)
    return _normalised(image)


@door
def imagenet_eval(size: int = 224, column: str = "image", *, resize: int | None = None) -> Column:
    """Decode, resize the shorter side, take the middle, normalise: float32 (3, size, size).

    The shorter side becomes ``resize`` pixels, by default ``size`` * 256 / 224.
    """
    side = round(size * 256 / 224) if resize is None else resize
    return _normalised(_decoded(column).resize(side).center_crop(size))


@door
def simclr(
    size: int = 224, column: str = "image", *, strength: float = 1.0, seed: int | None = None
) -> dict[str, Column]:
    """Return two views of each image, columns "view_1" and "view_2", float32 (3, size, size).

    Each is a random part, mirrored with probability 0.5, with colours changed with 0.8, made grey
    with 0.2, and blurred with 0.5 (Chen et al. 2020, appendix A). ``ds.with_columns(**simclr())``
    draws them independently.
    """
    views, strength = {}, finite("strength of simclr", strength)
    for name in ("view_1", "view_2"):
        image = _decoded(column).random_resized_crop(size, seed=seed).random_flip(seed=seed)
        jitter = (0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
        image = image.color_jitter(*jitter, p=0.8, seed=seed).random_gray(0.2, seed=seed)
        blurred = image.random_blur((0.1, 2.0), 0.5, seed=seed)
        views[name] = _normalised(blurred)
    return views


def _decoded(column: str) -> Any:
    return col(column).image.decode()


def _normalised(image: Any) -> Column:
    made: Column = image.normalize(IMAGENET_MEAN, IMAGENET_STD)
    return made
