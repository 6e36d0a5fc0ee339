"""Test that images are decoded to the bytes of Pillow, or refused with it."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from dml.errors import PlanError
from dml.kernels.images import codec
from dml.kernels.images.codec import UnreadableImage, decode, size
from tests.kernels.images.pictures import damaged, jpeg, other, saved, scene
from tests.sampling import amount

ROOT = Path(__file__).resolve().parents[3]


def pillow(data: bytes, mode: str) -> np.ndarray | None:
    """The image as Pillow decodes it; None if it refuses."""
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=codec.FORMATS)
        if image.mode in ("I", "F") or image.width * image.height > codec.MOST_PIXELS:
            return None
        if image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return np.atleast_3d(np.asarray(image.convert(mode)))
    except Exception:  # noqa: BLE001 - a damaged file may raise anything
        return None


def ours(data: bytes, mode: str) -> np.ndarray | None:
    try:
        found: np.ndarray = decode(data, mode)
    except UnreadableImage:
        return None
    return found


def same(one: np.ndarray | None, another: np.ndarray | None) -> bool:
    if one is None or another is None:
        return one is another
    return one.shape == another.shape and bool((one == another).all())


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_jpeg_files_have_the_bytes_of_pillow(mode: str) -> None:
    for seed in range(amount(80, 230)):
        data = jpeg(seed)
        found = pillow(data, mode)
        assert found is not None
        assert same(ours(data, mode), found), seed
        assert size(data) == found.shape[:2]


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_other_files_have_the_bytes_of_pillow(mode: str) -> None:
    for seed in range(amount(90, 230)):
        data = other(seed)
        found = pillow(data, mode)
        assert found is not None
        assert same(ours(data, mode), found), seed


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_give_the_bytes_of_pillow_or_are_refused_as_there() -> None:
    refused = 0
    for seed in range(amount(250, 2500)):
        data = damaged(seed)
        found = pillow(data, "RGB")
        refused += found is None
        assert same(ours(data, "RGB"), found), seed
    assert refused


def test_a_usual_jpeg_is_not_decoded_by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "pillow", lambda: pytest.fail("by Pillow"))
    for data in (jpeg(0), memoryview(jpeg(1)), jpeg(5)):
        assert decode(data, "RGB").shape[2] == 3
        assert decode(data, "L").shape[2] == 1


def test_processors_of_all_kinds_decode_the_same_bytes() -> None:
    code = (
        "import hashlib\n"
        "from dml.kernels.images.codec import decode\n"
        "from tests.kernels.images.pictures import jpeg\n"
        "made = b''.join(decode(jpeg(n), 'RGB').tobytes() for n in range(24))\n"
        "print(hashlib.sha256(made).hexdigest())\n"
    )
    hashes = set()
    for variable in ({}, {"JSIMD_FORCENONE": "1"}, {"JSIMD_FORCESSE2": "1"}):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **variable},
        )
        hashes.add(done.stdout)
    made = b"".join(decode(jpeg(n), "RGB").tobytes() for n in range(24))
    assert hashes == {hashlib.sha256(made).hexdigest() + "\n"}


def test_sixteen_bits_keep_their_upper_eight() -> None:
    wide = np.array([[0, 255, 256, 65535]], np.uint16)
    assert decode(saved(Image.fromarray(wide), "PNG"), "L")[0, :, 0].tolist() == [0, 0, 1, 255]


def test_of_an_animation_the_first_picture_is_decoded() -> None:
    first, second = (Image.fromarray(scene(n, 6, 8)) for n in (1, 2))
    data = saved(first, "GIF", save_all=True, append_images=[second])
    wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert (decode(data, "RGB") == wanted).all()


def test_photographs_are_turned_upright_on_request() -> None:
    image = Image.fromarray(scene(3, 12, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(image, "JPEG", exif=exif)
    assert decode(data, "RGB").shape == (12, 20, 3)
    upright = decode(data, "RGB", upright=True)
    assert upright.shape == (20, 12, 3)
    assert (upright == np.rot90(decode(data, "RGB"), -1)).all()


def test_the_name_of_a_file_does_not_matter() -> None:
    assert decode(saved(Image.fromarray(scene(4, 3, 5)), "PNG"), "RGB").shape == (3, 5, 3)


def claiming(height: int, width: int) -> bytes:
    """A PNG file whose header claims a size, without pixels."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT", b"IEND")
    found = b"\x89PNG\r\n\x1a\n"
    for chunk in chunks:
        length, crc = struct.pack(">I", len(chunk) - 4), struct.pack(">I", zlib.crc32(chunk))
        found += length + chunk + crc
    return found


def jpeg_claiming(height: int, width: int) -> bytes:
    data = bytearray(jpeg(2))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = struct.pack(">HH", height, width)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [claiming(30_000, 30_000), claiming(1 << 30, 2), jpeg_claiming(65_000, 65_000)],
    ids=["png", "flat", "jpeg"],
)
def test_what_claims_too_many_pixels_is_refused_before_they_are_decoded(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    for call in (lambda: decode(data, "RGB"), lambda: size(data)):
        with pytest.raises(UnreadableImage, match=r"pixels|bomb"):
            call()


def test_the_most_pixels_can_be_less() -> None:
    data = jpeg(1)
    height, width = size(data)
    assert size(data, height * width) == (height, width)
    with pytest.raises(UnreadableImage, match=f"{height} x {width} pixels; max_pixels is 1"):
        size(data, 1)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it has no bytes"),
        (b"not an image", "no decoder knows its format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no decoder knows its format"),
        (saved(Image.fromarray(scene(5, 9, 9)), "PNG")[:60], "truncated|broken|cannot"),
    ],
)
def test_what_is_refused_says_why(data: bytes, why: str) -> None:
    with pytest.raises(UnreadableImage, match=why):
        decode(data, "RGB")


def test_grey_is_weighed_as_in_pillow() -> None:
    levels = np.arange(0, 256, 5, dtype=np.uint8)
    cube = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(-1, len(levels), 3)
    wanted = np.asarray(Image.fromarray(cube).convert("L"))
    assert (codec.to_grey(cube)[:, :, 0] == wanted).all()


def test_the_most_pixels_can_be_more_and_nothing_warns(recwarn: pytest.WarningsRecorder) -> None:
    assert size(claiming(20_000, 20_000), 10**9) == (20_000, 20_000)
    assert size(claiming(10_000, 10_000)) == (10_000, 10_000)
    assert not recwarn.list


def test_without_pillow_nothing_is_taken_for_a_broken_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    codec.pillow.cache_clear()
    try:
        with pytest.raises(PlanError, match=r"(?s)images need the library PIL.*dml\[image\]"):
            decode(b"anything", "RGB")
    finally:
        codec.pillow.cache_clear()
