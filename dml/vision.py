"""One-line recipes for images, made of the functions of ``col("image").image``.

ds = dml.read_images("train", label="parent")
ds = ds.with_columns(image=dml.vision.imagenet_train(224)).shuffle().batch(256)
for batch in ds: step(batch["image"], batch["label"])       # (256, 3, 224, 224) float32
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dml.base.user_line import door, missing
from dml.expr.columns.column import Column, col, random
from dml.expr.columns.literal import whole
from dml.expr.columns.namespaces.image_arguments import finite, odd, one_of

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "cutmix",
    "imagenet_eval",
    "imagenet_train",
    "mixup",
    "simclr",
]

# Mean and standard deviation of red, green and blue in ImageNet's training images.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# The column with the draws of a batch, of which the first decides.
DRAW = "draw of dml.vision"

# Channels that an image has at most: the axis of them is told from that of rows by it.
MOST_CHANNELS = 4

# Pipelines of the same class come back.
D = TypeVar("D")


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


@door
def mixup(
    ds: D,
    classes: int,
    alpha: float = 0.2,
    *,
    image: str = "image",
    label: str = "label",
    seed: int | None = None,
) -> D:
    """Mix each image of a batch, and its label, with the one before (Zhang et al. 2018).

    ``ds.batch(256).pipe(dml.vision.mixup, 1000)`` gives images ``share * x[i] +
    (1 - share) * x[i - 1]``, and labels (n, classes) that are mixed alike. ``share`` is drawn from
    Beta(``alpha``, ``alpha``) by seed, epoch and batch. Images are floats, labels whole numbers
    below ``classes`` or already shares (n, classes).
    """
    given = image, label, *_classes(classes, alpha)
    made: D = _of_batches(ds, _mixup, given, seed)
    return made


@door
def cutmix(
    ds: D,
    classes: int,
    alpha: float = 1.0,
    *,
    image: str = "image",
    label: str = "label",
    layout: str = "CHW",
    seed: int | None = None,
) -> D:
    """Replace a box in each image of a batch by that of the one before (Yun et al. 2019).

    The box is the same in the whole batch; its size is drawn as ``share`` in ``mixup``, its place
    evenly, as in torchvision. Labels are mixed by the share of pixels. ``layout`` of images is
    "CHW" or "HWC".
    """
    rows = -2 if one_of("layout", layout, ("CHW", "HWC")) == "CHW" else -3
    given = image, label, *_classes(classes, alpha), rows
    made: D = _of_batches(ds, _cutmix, given, seed)
    return made


def _of_batches(ds: Any, mix: Callable[..., Any], given: tuple[Any, ...], seed: int | None) -> Any:
    """Return the batches that ``mix`` makes of what was ``given`` and each batch with draws."""
    return ds.with_columns(**{DRAW: random(seed=seed)}).map(functools.partial(mix, *given))


def _classes(classes: Any, alpha: Any) -> tuple[int, float]:
    number, shape = whole("classes", classes, 1), finite("alpha", alpha)
    if shape <= 0:
        raise odd("alpha", alpha, "a number above 0, such as 0.2")
    return number, shape


def _generator(batch: dict[str, Any]) -> np.random.Generator:
    """Take the draws out of a batch, and return the generator that the first one starts."""
    draws = batch.pop(DRAW)
    if not np.ndim(draws):
        raise TypeError("a row is given, and batches are needed: .batch(256) goes before .pipe")
    return np.random.Generator(np.random.Philox(key=int(draws[0] * 2.0**53)))


def _mixup(
    image: str, label: str, classes: int, alpha: float, batch: dict[str, Any]
) -> dict[str, Any]:
    share = np.float32(_generator(batch).beta(alpha, alpha))
    images = _images(batch, image)
    mixed = images * share
    for row in range(len(images)):  # image by image, since there is no room for a second batch
        mixed[row] += images[row - 1] * (1 - share)
    return {**batch, image: mixed, label: _shares(batch[label], classes, share)}


def _cutmix(  # noqa: PLR0917 - the first ones are given beforehand
    image: str, label: str, classes: int, alpha: float, rows: int, batch: dict[str, Any]
) -> dict[str, Any]:
    rng = _generator(batch)
    images = np.array(_images(batch, image))
    channels, other = (-3, -1) if rows == -2 else (-1, -3)
    if images.shape[channels] > MOST_CHANNELS >= images.shape[other]:
        raise ValueError(f"images have shape {images.shape[1:]}: layout= says CHW or HWC")
    height, width = images.shape[rows], images.shape[rows + 1]
    side = 0.5 * np.sqrt(1 - rng.beta(alpha, alpha))
    top, bottom = _part(rng, height, side)
    left, right = _part(rng, width, side)
    box: Any = (..., slice(top, bottom), slice(left, right), *[slice(None)] * (rows == -3))
    images[box] = np.roll(images[box], 1, axis=0)
    share = np.float32(1 - (bottom - top) * (right - left) / (height * width))
    return {**batch, image: images, label: _shares(batch[label], classes, share)}


def _part(rng: Any, length: int, side: float) -> tuple[int, int]:
    """Return the ends of a random part of an axis, cut where it begins and ends."""
    middle, half = int(rng.integers(length)), int(side * length)
    return max(middle - half, 0), min(middle + half, length)


def _images(batch: dict[str, Any], name: str) -> Any:
    if name not in batch:
        raise KeyError(f"{name}: image= and label= name the columns, of {', '.join(batch)}")
    images = batch[name]
    if images.dtype == object:
        raise ValueError(f"images of column {name} have different sizes: resize them before")
    if images.dtype.kind != "f" or images.ndim != 4:
        raise TypeError(
            f"column {name} is {images.dtype} with shape {images.shape};"
            " images are mixed as floats (n, c, h, w): .image.normalize(mean, std) gives them"
        )
    return images


def _shares(labels: Any, classes: int, share: Any) -> Any:
    """Return shares of classes (n, classes) float32, mixed with those of the row before."""
    shares = labels if labels.ndim == 2 and labels.dtype.kind == "f" else _one_hot(labels, classes)
    if shares.shape[1] != classes:
        raise ValueError(f"labels are shares of {shares.shape[1]} classes, not of {classes}")
    return (shares * share + np.roll(shares, 1, axis=0) * (1 - share)).astype(np.float32)


def _one_hot(labels: Any, classes: int) -> Any:
    if (
        labels.dtype.kind not in "iu"
        or labels.ndim != 1
        or labels.min() < 0
        or labels.max() >= classes
    ):
        raise ValueError(
            f"labels are whole numbers from 0 to {classes - 1}, got {labels[:5]!r};"
            ' read_images(..., label={"cat": 0, "dog": 1}) makes numbers of names'
        )
    return np.eye(classes, dtype=np.float32)[labels]


def _decoded(column: str) -> Any:
    return col(column).image.decode()


def _normalised(image: Any) -> Column:
    made: Column = image.normalize(IMAGENET_MEAN, IMAGENET_STD)
    return made
