"""Test that waiting operations give what operations one after the other give."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from dml.kernels.functions.row_chain import RowLink
from dml.kernels.images.image_rows import ImageRows
from dml.kernels.images.pixels import Misfit, Pixels
from dml.kernels.images.resample_filters import Resize
from dml.kernels.images.steps import brightness, contrast, lut, saturation
from dml.kernels.vec import Vec
from tests.kernels.images.pictures import scene
from tests.sampling import amount

Change = Callable[[Pixels], Pixels]
TABLE = bytes((n * 3) % 256 for n in range(256))
CHANGES: dict[str, Change] = {
    "crop": lambda image: image.crop(1, 2, image.shape[0] - 2, image.shape[1] - 3),
    "mirror": lambda image: image.flip(),
    "turn": lambda image: image.flip(vertical=True),
    "resize": lambda image: image.resize(Resize(21, 17)),
    "shrink": lambda image: image.resize(Resize(9, 14, "bicubic")),
    "brightness": lambda image: brightness(image, (1.3,), ()),
    "contrast": lambda image: contrast(image, (0.6,), ()),
    "saturation": lambda image: saturation(image, (1.8,), ()),
    "lut": lambda image: lut(image, (TABLE,), ()),
}


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_waiting_changes_nothing(channels: int) -> None:
    draw = random.Random(channels)
    for number in range(amount(150, 3000)):
        names = [draw.choice(list(CHANGES)) for _ in range(draw.randint(1, 6))]
        array = scene(number, 30, 26, channels)
        waiting, at_once = Pixels(array), Pixels(array)
        for name in names:
            CHANGES[name](waiting)
            CHANGES[name](at_once).replace(np.ascontiguousarray(at_once.array()))
        assert waiting.shape == at_once.shape, names
        assert (waiting.array() == at_once.array()).all(), names


def test_colours_before_a_crop_are_computed_of_the_crop_alone() -> None:
    seen = list[tuple[int, ...]]()

    def counted(array: np.ndarray) -> np.ndarray:
        seen.append(array.shape)
        return array

    image = Pixels(scene(1, 40, 40)).map(counted).flip().crop(5, 5, 8, 9).resize(Resize(4, 4))
    image.array()
    assert seen == [(8, 9, 3)]


def test_tables_in_sequence_are_one() -> None:
    image = Pixels(scene(2, 5, 5))
    for _ in range(4):
        lut(image, (TABLE,), ())
    assert len(image.before) == 1


def test_a_part_outside_is_refused() -> None:
    for place in ((0, 0, 6, 5), (-1, 0, 2, 2), (0, 4, 2, 2)):
        with pytest.raises(Misfit, match="5 x 5 pixels"):
            Pixels(scene(3, 5, 5)).crop(*place)


def test_floats_are_written_in_place() -> None:
    links = (
        RowLink("image.center_crop", (6, 7)),
        RowLink("image.brightness", (1.2,)),
        RowLink("image.normalize", ((0.5,), (0.25,), "CHW")),
    )
    out = np.zeros((3, 6, 7), np.float32)
    images = scene(4, 11, 12)[None]
    assert ImageRows(links, Vec(images)).write(images, 0, out)
    small = brightness(Pixels(scene(4, 11, 12)[2:8, 2:9]), (1.2,), ()).array()
    wanted = (small.astype("f4") / np.float32(255) - np.float32(0.5)) / np.float32(0.25)
    assert (out == wanted.transpose(2, 0, 1)).all()
