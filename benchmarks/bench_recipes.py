"""This file measures three recipes of the literature, in dml and for PyTorch's DataLoader.

    python benchmarks/bench_recipes.py --images FOLDER [--turns 5] [--python torch=PATH] [name...]

``simclr``: two views of each photograph, cropped, mirrored, jittered, made grey, blurred (Chen et
al. 2020). ``boxes``: a random part with its boxes, mirrored, 320 x 320, as for COCO. ``speech``:
one second of a sound at 16 kHz, 80 mel bands in decibels, SpecAugment. dml has column expressions
alone; PyTorch has torchvision's transforms of Pillow's images, soundfile, soxr and torch.stft, in
two processes. ``sounds-limit`` decodes and resamples in a bare loop of two threads; ``sounds`` is
the same in dml. Each runs in a process of its own: a warm epoch, then one that is timed.
"""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

try:
    from benchmarks.contest import Epoch, compete
except ImportError:  # run as a program
    from contest import Epoch, compete  # type: ignore[import-not-found,no-redef]

PHOTOS, SOUNDS, BATCH, CORES = 1000, 4000, 32, 2
SIZE, SIDE, RATE, MELS = 224, 320, 16_000, 80
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photographs(images: Path) -> list[str]:
    """Paths of so many photographs, some of them several times."""
    return list(itertools.islice(itertools.cycle(sorted(map(str, images.iterdir()))), PHOTOS))


def boxes_of(number: int) -> list[list[float]]:
    """Three boxes of a photograph."""
    draw = random.Random(number)  # noqa: S311
    corners = [(draw.uniform(0, 150), draw.uniform(0, 150)) for _ in range(3)]
    return [[x, y, x + draw.uniform(20, 150), y + draw.uniform(20, 150)] for x, y in corners]


def recordings() -> list[str]:
    """Paths of FLAC files of one to two seconds at 44.1 kHz, made once."""
    import soundfile  # noqa: PLC0415

    folder = Path(tempfile.gettempdir()) / "bench_recipes_sounds"
    paths = [folder / f"{number:03}.flac" for number in range(200)]
    if not paths[-1].exists():
        folder.mkdir(exist_ok=True)
        rng = np.random.default_rng(0)
        for path in paths:
            times = np.arange(int(44_100 * rng.uniform(1, 2))) / 44_100
            sound = 0.3 * np.sin(2 * np.pi * rng.uniform(100, 900) * times)
            soundfile.write(path, sound + rng.normal(0, 0.03, len(times)), 44_100)
    return list(itertools.islice(itertools.cycle(map(str, paths)), SOUNDS))


# ------------------------------------------------------------------------------------ dml


def dml_epoch(name: str, images: Path) -> Epoch:
    """As dml's pages write it."""
    import dml  # noqa: PLC0415
    from dml import col  # noqa: PLC0415

    image, sound = col("image").image, col("audio").audio.decode(RATE)
    if name in {"speech", "sounds"}:
        paths = recordings()
        ds = dml.read_audio(str(Path(paths[0]).parent)).repeat(SOUNDS // 200)
        mel = sound.random_slice(1.0).mel(MELS, log="db").random_mask(20, 10)
        ds = ds.with_columns(audio=mel if name == "speech" else sound).select("audio")
    else:
        paths = sorted(map(str, images.iterdir()))
        ds = dml.read_images(images).repeat(-(-PHOTOS // len(paths))).take(PHOTOS)
    if name == "simclr":
        ds = ds.with_columns(**dml.vision.simclr(SIZE)).select("view_1", "view_2")
    if name == "boxes":
        boxes = col("boxes").boxes.crop(col("part"))
        boxes = boxes.boxes.resize(SIDE, SIDE, size=col("part").tensor.crop((2,), (2,)))
        decoded = image.decode().crop(col("part")).resize(SIDE, SIDE)
        given = dml.from_dict({"boxes": [boxes_of(number) for number in range(PHOTOS)]})
        ds = dml.zip(ds, given).with_columns(
            part=image.random_resized_crop(SIDE, scale=(0.3, 1.0), params=True),
            mirrored=image.random_flip(params=True),
        )
        ds = ds.with_columns(
            image=decoded.flip(where=col("mirrored")).normalize(MEAN, STD),
            boxes=boxes.boxes.flip(SIDE, where=col("mirrored")),
        ).select("image", "boxes")
    ds = ds.batch(BATCH).with_options(executor="threads", num_workers=CORES)
    return lambda: iter(ds)


def sounds_limit(_name: str, _images: Path) -> Epoch:
    """Decode and resample in a bare loop of two threads, without a pipeline."""
    import soundfile  # noqa: PLC0415
    import soxr  # noqa: PLC0415

    paths = recordings()

    def one(path: str) -> Any:
        sound, rate = soundfile.read(path, dtype="float32")
        return soxr.resample(sound, rate, RATE)

    def epoch() -> Iterator[Any]:
        with ThreadPoolExecutor(CORES) as pool:
            yield from pool.map(one, paths)

    return epoch


# ------------------------------------------------------------------------------------ PyTorch


def simclr_of(images: Path) -> Callable[[int], Any]:
    """Two views by torchvision's transforms."""
    import torch  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415
    from torchvision.transforms import v2  # noqa: PLC0415

    paths = photographs(images)
    view = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )

    def row(number: int) -> Any:
        image = Image.open(paths[number]).convert("RGB")
        return view(image), view(image)

    return row


def boxes_by_torch(images: Path) -> Callable[[int], Any]:
    """A part, its boxes and its mirror image by torchvision's transforms."""
    import torch  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415
    from torchvision import tv_tensors  # noqa: PLC0415
    from torchvision.transforms import v2  # noqa: PLC0415

    paths = photographs(images)
    change = v2.Compose(
        [
            v2.RandomResizedCrop(SIDE, scale=(0.3, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )

    def row(number: int) -> Any:
        image = Image.open(paths[number]).convert("RGB")
        size = (image.height, image.width)
        given = tv_tensors.BoundingBoxes(boxes_of(number), format="XYXY", canvas_size=size)
        return change(image, given)

    return row


def speech_by_torch(_images: Path) -> Callable[[int], Any]:
    """Sounds by soundfile and soxr, spectra by torch."""
    import soundfile  # noqa: PLC0415
    import soxr  # noqa: PLC0415
    import torch  # noqa: PLC0415

    paths, window = recordings(), torch.hann_window(400)
    points = 700 * (
        10 ** (torch.linspace(0, 2595 * math.log10(1 + 8000 / 700), MELS + 2) / 2595) - 1
    )
    slopes = points[:, None] - torch.arange(201) * RATE / 400
    width = points.diff()
    down, up = -slopes[:-2] / width[:-1, None], slopes[2:] / width[1:, None]
    bands = torch.minimum(down, up).clamp(min=0)

    def row(number: int) -> Any:
        sound, rate = soundfile.read(paths[number], dtype="float32")
        sound = soxr.resample(sound, rate, RATE)
        start = random.randint(0, max(0, len(sound) - RATE))  # noqa: S311
        part = torch.zeros(RATE)
        part[: len(sound) - start] = torch.from_numpy(sound[start : start + RATE])
        found = torch.stft(part, 400, 160, window=window, return_complex=True)
        mel = bands @ found.abs().square()
        mel = 10 * mel.clamp(min=1e-10).log10()
        for axis, most in ((0, 10), (1, 20)):
            size = random.randint(0, most)  # noqa: S311
            at = random.randint(0, mel.shape[axis] - size)  # noqa: S311
            mel.narrow(axis, at, size).fill_(0)
        return mel

    return row


def torch_epoch(name: str, images: Path) -> Epoch:
    """As PyTorch's pages write it: a Dataset, and two processes that load rows of it."""
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415

    row = {
        "torch-simclr": simclr_of,
        "torch-boxes": boxes_by_torch,
        "torch-speech": speech_by_torch,
    }[name](images)

    class Rows(Dataset):  # type: ignore[misc]
        """One row for a number."""

        def __len__(self) -> int:
            return ROWS[name]

        def __getitem__(self, number: int) -> Any:
            return row(number)

    together = None if name != "torch-boxes" else lambda rows: rows
    loader = DataLoader(
        Rows(), BATCH, num_workers=CORES, persistent_workers=True, collate_fn=together
    )
    return lambda: iter(loader)


EPOCHS: dict[str, Callable[[str, Path], Epoch]] = {
    "simclr": dml_epoch,
    "torch-simclr": torch_epoch,
    "boxes": dml_epoch,
    "torch-boxes": torch_epoch,
    "speech": dml_epoch,
    "torch-speech": torch_epoch,
    "sounds": dml_epoch,
    "sounds-limit": sounds_limit,
}
ROWS = {name: PHOTOS if "simclr" in name or "boxes" in name else SOUNDS for name in EPOCHS}


if __name__ == "__main__":
    compete(__file__, __doc__, EPOCHS, ROWS)
