"""Test that images are resized to the bytes of Pillow, by NumPy's tier and by the kernel."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml.kernels.compiled.jit import Kernel, KernelCache
from dml.kernels.images import image_kernel
from dml.kernels.images.image_kernel import Target
from dml.kernels.images.resample_filters import Box, Resize, resize, short_side
from tests.kernels.images.pictures import scene
from tests.sampling import amount

FILTERS = ("bilinear", "bicubic", "lanczos", "box", "hamming")


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """The kernel of images, compiled once for these tests."""
    with tempfile.TemporaryDirectory() as folder:
        cache, source = KernelCache(Path(folder)), image_kernel.source()
        cache.request([(source.name, source.text)])
        found = cache.wait(source.name)
        assert found is not None, cache.failures
        yield found


def by_kernel(kernel: Kernel, array: np.ndarray, wanted: Resize) -> np.ndarray:
    out = np.full((wanted.height, wanted.width, array.shape[2]), 7, np.uint8)
    image_kernel.write(kernel, array, wanted, Target(out))
    return out


def by_pillow(array: np.ndarray, wanted: Resize) -> np.ndarray:
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    size = wanted.width, wanted.height
    found = image.resize(size, Image.Resampling[wanted.filter.upper()], wanted.box)
    return np.atleast_3d(np.asarray(found))


def drawn(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, Resize]:
    """An image, and a random box of it to resize: of whole or of broken numbers."""
    rows, columns = (int(n) for n in rng.integers(1, 90, 2))
    array = scene(int(rng.integers(1 << 30)), rows, columns, int(rng.choice([1, 3])))
    box: Box | None = None
    if rng.random() < 0.8:
        left, upper = rng.uniform(0, columns - 0.5), rng.uniform(0, rows - 0.5)
        right, lower = rng.uniform(left + 0.4, columns), rng.uniform(upper + 0.4, rows)
        box = float(left), float(upper), float(right), float(lower)
        if rng.random() < 0.5:
            box = int(left), int(upper), min(int(right) + 1, columns), min(int(lower) + 1, rows)
    height, width = (int(n) for n in rng.integers(1, 70, 2))
    return array, Resize(height, width, kind, True, box)


@pytest.mark.parametrize("kind", FILTERS)
def test_random_boxes_have_the_bytes_of_pillow(kernel: Kernel, kind: str) -> None:
    rng = np.random.default_rng(7)
    for number in range(amount(250, 10_000)):
        array, wanted = drawn(rng, kind)
        found = by_pillow(array, wanted)
        assert (resize(array, wanted) == found).all(), (number, array.shape, wanted)
        assert (by_kernel(kernel, array, wanted) == found).all(), (number, array.shape, wanted)


def test_the_nearest_pixels_are_those_of_pillow() -> None:
    rng = np.random.default_rng(8)
    for number in range(amount(250, 10_000)):
        array, wanted = drawn(rng, "nearest")
        assert (resize(array, wanted) == by_pillow(array, wanted)).all(), (number, wanted)


def test_opacity_is_multiplied_in_between_as_in_pillow() -> None:
    rng = np.random.default_rng(9)
    for _ in range(amount(60, 600)):
        array, wanted = drawn(rng, str(rng.choice(FILTERS)))
        array = scene(1, array.shape[0], array.shape[1], 4)
        assert (resize(array, wanted) == by_pillow(array, wanted)).all(), wanted


def test_without_antialias_both_tiers_agree(kernel: Kernel) -> None:
    rng = np.random.default_rng(10)
    for _ in range(amount(200, 2_000)):
        array, wanted = drawn(rng, "bilinear")
        wanted = wanted._replace(antialias=False)
        assert (resize(array, wanted) == by_kernel(kernel, array, wanted)).all(), wanted


def test_without_antialias_an_image_is_enlarged_as_with_it() -> None:
    array = scene(2, 10, 13)
    large = Resize(31, 40)
    assert (resize(array, large) == resize(array, large._replace(antialias=False))).all()


@pytest.mark.parametrize("view", ["mirrored", "upside down", "part", "transposed"])
def test_views_are_resized_without_being_read_wrong(kernel: Kernel, view: str) -> None:
    array = scene(3, 40, 60)
    given = {
        "mirrored": array[:, ::-1],
        "upside down": array[::-1],
        "part": array[3:30, 10:41],
        "transposed": array.transpose(1, 0, 2),
    }[view]
    for wanted in (Resize(17, 20), Resize(17, 200), Resize(40, 20), Resize(9, 60), Resize(60, 40)):
        whole = np.ascontiguousarray(given)
        assert (by_kernel(kernel, given, wanted) == by_pillow(whole, wanted)).all(), wanted


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_kernel_looks_floats_up(
    kernel: Kernel, planes: bool, mirrored: bool, channels: int
) -> None:
    array, wanted = scene(4, 33, 47, channels), Resize(12, 15)
    table = np.random.default_rng(1).normal(size=(channels, 256)).astype(np.float32)
    out = np.empty((channels, 12, 15) if planes else (12, 15, channels), np.float32)
    image_kernel.write(kernel, array, wanted, Target(out, planes, mirrored, table))
    small = by_pillow(array, wanted)
    small = small[:, ::-1] if mirrored else small
    found = np.stack([table[c][small[:, :, c]] for c in range(channels)], 0 if planes else 2)
    assert (out == found).all()


def test_the_shorter_side_is_that_of_torchvision() -> None:
    assert short_side((375, 500, 3), 256) == (256, 341)
    assert short_side((500, 333, 3), 256) == (384, 256)
    assert short_side((9, 9, 3), 4) == (4, 4)
