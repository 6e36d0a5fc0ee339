"""This file measures decoding and augmenting photographs in dml and, side by side, in its peers.

    python benchmarks/bench_images.py --images FOLDER [--turns 5] [--python NAME=PATH ...] [name...]

Every contestant reads the same JPEG files, decodes them, takes a random part (area 8 to 100 %,
ratio 3/4 to 4/3), resizes it to 224 x 224, mirrors half of them, and gives batches of 64 normalised
float32, on two processors. Each runs in a process of its own: a warm epoch of 2,000 photographs,
then one that is timed; turns go round. ``limit`` calls dml's kernels in a bare loop of two threads.
Names that end in ``-fast`` do not antialias; ``wrong`` and ``hand`` are one pipeline of colours,
mirroring and a crop, written in this order and in the other.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

try:
    from benchmarks.contest import Epoch, compete
except ImportError:  # run as a program
    from contest import Epoch, compete  # type: ignore[import-not-found,no-redef]

PHOTOS, BATCH, SIZE, CORES = 2000, 64, 224, 2
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def photographs(images: Path) -> list[str]:
    """Paths of so many photographs, some of them several times."""
    return list(itertools.islice(itertools.cycle(sorted(map(str, images.iterdir()))), PHOTOS))


def part(rows: int, columns: int, draw: random.Random) -> tuple[int, int, int, int]:
    """A random part as torchvision draws it: top, left, height, width."""
    for _ in range(10):
        area = rows * columns * draw.uniform(*SCALE)
        ratio = math.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= columns and 0 < height <= rows:
            return draw.randint(0, rows - height), draw.randint(0, columns - width), height, width
    side = min(rows, columns)
    return (rows - side) // 2, (columns - side) // 2, side, side


def by_opencv(path: str, seed: int) -> np.ndarray:
    """One photograph by OpenCV, which does not antialias."""
    import cv2  # noqa: PLC0415 - the contestants' environments differ

    draw = random.Random(seed)  # noqa: S311
    image = cv2.cvtColor(cv2.imdecode(np.fromfile(path, np.uint8), 1), cv2.COLOR_BGR2RGB)
    top, left, height, width = part(*image.shape[:2], draw)
    image = cv2.resize(image[top : top + height, left : left + width], (SIZE, SIZE))
    image = image[:, ::-1] if draw.random() < 0.5 else image
    made: np.ndarray = (image.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return made


def by_pillow(path: str, seed: int) -> np.ndarray:
    """One photograph by Pillow, which antialiases."""
    from PIL import Image  # noqa: PLC0415

    draw = random.Random(seed)  # noqa: S311
    image = Image.open(path).convert("RGB")
    top, left, height, width = part(image.height, image.width, draw)
    image = image.crop((left, top, left + width, top + height)).resize((SIZE, SIZE), 2)
    array = np.asarray(image)
    array = array[:, ::-1] if draw.random() < 0.5 else array
    made: np.ndarray = (array.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return made


# ------------------------------------------------------------------------------------ contestants


def dml_epoch(name: str, images: Path) -> Epoch:
    """As dml's pages write it."""
    import dml  # noqa: PLC0415
    from dml import col  # noqa: PLC0415

    decoded = col("image").image.decode()
    image = {
        "dml": lambda: decoded.random_resized_crop(SIZE).random_flip(),
        "dml-fast": lambda: decoded.random_resized_crop(SIZE, antialias=False).random_flip(),
        "wrong": lambda: decoded.brightness(1.2).flip().center_crop(SIZE),
        "hand": lambda: decoded.center_crop(SIZE).brightness(1.2).flip(),
    }[name]()
    rows = dml.read_images(images)
    if name in {"wrong", "hand"}:
        rows = rows.filter(col("image").image.size().tensor.crop((1,), (0,)).tensor.sum() >= SIZE)
        rows = rows.filter(col("image").image.size().tensor.crop((1,), (1,)).tensor.sum() >= SIZE)
    passes = rows.repeat(-(-PHOTOS // len(photographs_of(images)))).take(PHOTOS)
    ds = passes.with_columns(image=image.normalize(MEAN, STD)).select("image").batch(BATCH)
    ds = ds.with_options(executor="threads", num_workers=CORES)
    return lambda: iter(ds)


def photographs_of(images: Path) -> list[str]:
    """Paths of all photographs, once."""
    return sorted(map(str, images.iterdir()))


def limit_epoch(_name: str, images: Path) -> Epoch:
    """The kernels of dml in a bare loop of two threads, which fill batches."""
    from dml.kernels.images import codec, image_kernel  # noqa: PLC0415
    from dml.kernels.images.resample_filters import Resize  # noqa: PLC0415
    from dml.kernels.images.steps import float_table  # noqa: PLC0415

    table, kernel, paths = float_table(MEAN, STD), _kernel(), photographs(images)

    def one(number: int, out: np.ndarray) -> None:
        draw = random.Random(number)  # noqa: S311
        array = codec.decode(Path(paths[number]).read_bytes(), "RGB")
        top, left, height, width = part(*array.shape[:2], draw)
        target = image_kernel.Target(out, True, draw.random() < 0.5, table)  # noqa: FBT003
        view = array[top : top + height, left : left + width]
        image_kernel.write(kernel, view, Resize(SIZE, SIZE), target)

    def batch(start: int) -> np.ndarray:
        out = np.empty((min(BATCH, PHOTOS - start), 3, SIZE, SIZE), np.float32)
        for row in range(len(out)):
            one(start + row, out[row])
        return out

    def batches() -> Iterator[Any]:
        with ThreadPoolExecutor(CORES) as pool:
            yield from pool.map(batch, range(0, PHOTOS, BATCH))

    return batches


def _kernel() -> Any:
    import tempfile  # noqa: PLC0415

    from dml.kernels.compiled.jit import KernelCache  # noqa: PLC0415
    from dml.kernels.images import image_kernel  # noqa: PLC0415

    source = image_kernel.source()
    cache = KernelCache(Path(tempfile.gettempdir()) / "bench_images_kernels")
    cache.request([(source.name, source.text)])
    return cache.wait(source.name)


def torch_epoch(_name: str, images: Path) -> Epoch:
    """As PyTorch's pages write it: transforms of Pillow's images in two processes."""
    import torch  # noqa: PLC0415
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415

    paths = photographs(images)

    class Photographs(Dataset):  # type: ignore[misc]
        """One photograph for a number."""

        def __len__(self) -> int:
            return PHOTOS

        def __getitem__(self, number: int) -> Any:
            made = by_pillow(paths[number], random.randrange(1 << 62))  # noqa: S311
            return torch.from_numpy(np.ascontiguousarray(made.transpose(2, 0, 1)))

    loader = DataLoader(Photographs(), BATCH, num_workers=CORES, persistent_workers=True)
    return lambda: iter(loader)


def grain_epoch(name: str, images: Path) -> Epoch:
    """As Grain's pages write it, with threads."""
    import grain  # noqa: PLC0415

    function = by_opencv if name == "grain-fast" else by_pillow

    class Augment(grain.transforms.RandomMap):  # type: ignore[misc]
        """Of a photograph."""

        def random_map(self, path: str, rng: Any) -> Any:
            """Load and augment it."""
            return function(path, int(rng.integers(1 << 62)))

    options = grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=64)
    photos = grain.MapDataset.source(photographs(images)).seed(1)
    return lambda: iter(photos.random_map(Augment()).to_iter_dataset(options).batch(BATCH))


def tf_epoch(_name: str, images: Path) -> Epoch:
    """As tf.data's pages write it: its own operations, with antialiasing."""
    import tensorflow as tf  # noqa: PLC0415

    def change(path: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(path), 3, dct_method="INTEGER_ACCURATE")
        box = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros([1, 0, 4]),
            area_range=SCALE,
            aspect_ratio_range=RATIO,
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.image.resize(tf.slice(image, box[0], box[1]), [SIZE, SIZE], antialias=True)
        return (tf.image.random_flip_left_right(image) / 255.0 - MEAN) / STD

    options = tf.data.Options()
    options.threading.private_threadpool_size = CORES
    ds = tf.data.Dataset.from_tensor_slices(photographs(images))
    ds = ds.map(change, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)
    return lambda: iter(ds.prefetch(tf.data.AUTOTUNE).with_options(options))


EPOCHS: dict[str, Callable[[str, Path], Epoch]] = {
    "limit": limit_epoch,
    "dml": dml_epoch,
    "torch": torch_epoch,
    "grain": grain_epoch,
    "tf": tf_epoch,
    "dml-fast": dml_epoch,
    "grain-fast": grain_epoch,
    "wrong": dml_epoch,
    "hand": dml_epoch,
}


if __name__ == "__main__":
    compete(__file__, __doc__, EPOCHS, dict.fromkeys(EPOCHS, PHOTOS))
