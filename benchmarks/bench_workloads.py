"""This file makes up the workloads of two papers at a thousandth of their size, and ablates them.

    python benchmarks/bench_workloads.py [NAME ...]

"tf.data" (Murray et al., VLDB 2021), table 4, gives the elements and bytes of the input data: an
image classifier on ImageNet, a light and a heavy detector on COCO, two translators on WMT16 and
WMT17. "Cachew" (Graur et al., ATC 2022) gives how much larger elements leave a pipeline than they
enter it: 2.6x (ResNet), 32.6x (RetinaNet), and 10.7x for pairs of views of one image (SimCLR).

The data are synthetic: JPEG images of noise, and sentences of a long-tailed vocabulary. The papers
give means; elements are log-normal around them. The tables are those of `dml bench --ablate`, for
the features that table 5 of the first paper lists for each job. Images need Pillow.
"""

from __future__ import annotations

import dataclasses
import io
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dml
from dml import col, element
from dml.api.ablation import ablation
from dml.cli.bench import table_of, text
from dml.testing.oracle import Oracle
from dml.testing.plans import node_of

SCALE, FILES, TURNS = 1e-3, 4, 3
SIDE, LIGHT, HEAVY, BOXES = 224, 300, 560, 7
WORDS = 5000
IDS = {f"word{i}": i + 2 for i in range(WORDS)}
BUCKETS = [8, 16, 24, 32, 48]
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Data:
    """Elements and bytes of a data set, and the sigma of the logarithm of the bytes of one."""

    elements: float
    total_bytes: float
    sigma: float

    @property
    def mean_bytes(self) -> float:
        """Bytes of an element."""
        return self.total_bytes / self.elements

    def sizes(self, scale: float) -> np.ndarray:
        """Bytes of each element of a part of the data: quantiles of the distribution, shuffled."""
        count = max(8, round(self.elements * scale))
        normal = NormalDist(0, self.sigma)
        sizes = np.exp([normal.inv_cdf((i + 0.5) / count) for i in range(count)])
        sizes *= self.mean_bytes / sizes.mean()
        return np.random.default_rng(1).permutation(sizes)


# Cachew has ImageNet at 148 GB, "tf.data" at 140: the mean lies within 5 % of the sizes of both.
IMAGENET = Data(1.3e6, 145e9, 0.5)
COCO = Data(330e3, 19e9, 0.5)
WMT16, WMT17 = Data(4e6, 1.3e9, 0.6), Data(4.5e6, 720e6, 0.6)


def write(folder: Path, columns: dict[str, Any]) -> None:
    """Write rows into some files of some row groups each, as readers in parallel need them."""
    table = pa.table(columns)
    each = -(-len(table) // FILES)
    for number in range(FILES):
        part = table.slice(number * each, each)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=-(-each // 4))


def write_images(folder: Path, data: Data, scale: float) -> None:
    """Write JPEG images of noise with a label, and with boxes; one image in ten has no box."""
    from PIL import Image  # noqa: PLC0415 (an optional dependency)

    draw = np.random.default_rng(0)
    coarse = Image.fromarray(draw.integers(0, 256, (64, 64, 3), "u1")).resize((3000, 2250))
    noise = np.asarray(coarse, "i2") + draw.normal(0, 9, (2250, 3000, 1)).astype("i2")
    canvas = Image.fromarray(noise.clip(0, 255).astype("u1"))

    def jpeg(wide: float) -> bytes:
        x, y = draw.integers(0, 100, 2).tolist()
        out = io.BytesIO()
        canvas.crop((x, y, x + round(wide), y + round(wide * 0.75))).save(out, "JPEG", quality=80)
        return out.getvalue()

    pixel = len(jpeg(400)) / (400 * 300)  # bytes of one

    def sized(nbytes: float) -> bytes:
        wide = math.sqrt(nbytes / pixel / 0.75)
        return jpeg(max(16.0, wide * math.sqrt(nbytes / len(jpeg(wide)))))

    images = [sized(size) for size in data.sizes(scale)]
    counts = draw.geometric(1 / BOXES, len(images)) * (np.arange(len(images)) % 10 > 0)
    write(
        folder,
        {
            "jpeg": images,
            "label": pa.array(draw.integers(0, 1000, len(images))),
            "boxes": [draw.random(4 * n, "f4") for n in counts.tolist()],
            "number": range(len(images)),
        },
    )


def write_pairs(folder: Path, data: Data, scale: float) -> None:
    """Write pairs of sentences, each half of an element's bytes."""
    draw = np.random.default_rng(0)
    words = np.array([f"Word{i}" for i in range(WORDS)])[draw.zipf(1.3, 100_000).clip(1, WORDS) - 1]
    stream = " ".join(words)
    sizes = (data.sizes(scale) / 2).round().astype(int)

    def some(size: int) -> str:
        start = int(draw.integers(0, len(stream) - size))
        return stream[start : start + size]

    pairs = {name: [some(size) for size in sizes.tolist()] for name in ("source", "target")}
    write(folder, {**pairs, "number": range(len(sizes))})


def decoded(row: Row, size: tuple[int, int], box: tuple[float, ...] | None = None) -> np.ndarray:
    """The pixels (height, width, 3) u1 of an image, or of a box in it, resized."""
    from PIL import Image  # noqa: PLC0415 (an optional dependency)

    with Image.open(io.BytesIO(row["jpeg"])) as image:
        return np.asarray(image.convert("RGB").resize(size, box=box))


def half(pixels: np.ndarray) -> np.ndarray:
    """Pixels as bfloat16 between 0 and 1, which NumPy lacks: its bits as u2."""
    return ((pixels.astype("f4") / 255).view("u4") >> 16).astype("u2")


def view(row: Row, rng: np.random.Generator) -> np.ndarray:
    """A random part of an image, perhaps mirrored."""
    from PIL import Image  # noqa: PLC0415 (an optional dependency)

    with Image.open(io.BytesIO(row["jpeg"])) as image:
        wide, high = image.size
    share, x, y, mirrored = (float(rng.random()) for _ in range(4))
    share = 0.3 + 0.7 * share
    left, top = x * wide * (1 - share), y * high * (1 - share)
    box = (left, top, left + share * wide, top + share * high)
    pixels = decoded(row, (SIDE, SIDE), box)
    return pixels[:, ::-1] if mirrored < 0.5 else pixels


def cropped(row: Row, rng: np.random.Generator) -> Row:
    """What an image classifier is trained on."""
    return {"image": half(view(row, rng)), "label": row["label"], "number": row["number"]}


def two_views(row: Row, rng: np.random.Generator) -> Row:
    """What a contrastive model is trained on: two views of an image."""
    pair = np.stack([view(row, rng), view(row, rng)]).astype("f4") / 255
    return {"image": pair, "number": row["number"]}


def light(row: Row) -> Row:
    """What a light detector is trained on."""
    pixels = decoded(row, (LIGHT, LIGHT)).astype("f4") / 255
    return {"image": pixels, "boxes": row["boxes"], "number": row["number"]}


def heavy(row: Row) -> Row:
    """What a heavy detector is trained on."""
    pixels = half(decoded(row, (HEAVY, HEAVY)))
    return {"image": pixels, "boxes": row["boxes"], "number": row["number"]}


def looked_up(row: Row) -> Row:
    """The number of each word of a pair."""
    words = {name: row[name].lower().split() for name in ("source", "target")}
    return {"number": row["number"]} | {
        name: [IDS.get(word, 1) for word in some] for name, some in words.items()
    }


def read(folder: Path) -> dml.Dataset:
    """The rows of a workload."""
    return dml.read_parquet(str(folder))


def images(folder: Path, columns: list[str]) -> dml.Dataset:
    """Images in an order of their own, kept in memory."""
    return read(folder).select("jpeg", "number", *columns).cache().shuffle(64, seed=1)


def classifier(folder: Path) -> dml.Dataset:
    """The image classifier."""
    schema = {"image": f"u2[{SIDE},{SIDE},3]", "label": "i8", "number": "i8"}
    return images(folder, ["label"]).random_map(cropped, seed=2, schema=schema).batch(32)


def contrastive(folder: Path) -> dml.Dataset:
    """The contrastive model."""
    schema = {"image": f"f4[2,{SIDE},{SIDE},3]", "number": "i8"}
    return images(folder, []).random_map(two_views, seed=2, schema=schema).batch(16)


def light_detector(folder: Path) -> dml.Dataset:
    """The light detector; images without boxes are left out."""
    some = images(folder, ["boxes"]).filter(col("boxes").list.len() > 0)
    return some.map(light).padded_batch(16, padding_values={"boxes": -1.0})


def heavy_detector(folder: Path) -> dml.Dataset:
    """The heavy detector; images without boxes are left out."""
    some = images(folder, ["boxes"]).filter(col("boxes").list.len() > 0)
    return some.map(heavy).padded_batch(4, padding_values={"boxes": -1.0})


def recurrent_translator(folder: Path) -> dml.Dataset:
    """The translator of WMT16: words looked up, no long sentences, batches of like length."""
    rows = read(folder).cache().map(looked_up).filter(col("source").list.len() <= BUCKETS[-1])
    return rows.bucket_by_length("source", BUCKETS, 64)


def transformer(folder: Path) -> dml.Dataset:
    """The translator of WMT17: words hashed, about as many of them in each batch."""
    words = {
        name: col(name).str.to_lowercase().str.split(" ").list.eval(element().hash(30_000))
        for name in ("source", "target")
    }
    sizes = [2048 // bound for bound in (*BUCKETS, 64)]
    return read(folder).with_columns(**words).bucket_by_length("source", BUCKETS, sizes)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A pipeline over written data, of which a run takes the first batches, or all (None).

    ``growth`` is that of its elements, None if not published.
    """

    data: Data
    written: Callable[[Path, Data, float], None]
    made: Callable[[Path], dml.Dataset]
    growth: float | None = None
    take: int | None = None


WORKLOADS = {
    "image-cls": Workload(IMAGENET, write_images, classifier, 2.6, take=12),
    "image-pairs": Workload(IMAGENET, write_images, contrastive, 10.7, take=12),
    "detection-light": Workload(COCO, write_images, light_detector, take=12),
    "detection-heavy": Workload(COCO, write_images, heavy_detector, 32.6, take=24),
    "text-16": Workload(WMT16, write_pairs, recurrent_translator),
    "text-17": Workload(WMT17, write_pairs, transformer),
}


def main() -> None:
    """Print the table of each workload."""
    for name in sys.argv[1:] or WORKLOADS:
        work = WORKLOADS[name]
        with tempfile.TemporaryDirectory() as folder:
            work.written(Path(folder), work.data, SCALE)
            ds = work.made(Path(folder)).with_options(deterministic=False, telemetry_dir="off")
            best, kept = ablation(ds.epoch(0), TURNS, work.take)
        print(
            f"{name}, {best['nothing'].elements} batches\n{text(table_of(best), kept)}\n",
            flush=True,
        )


SMALL = {"image": 5e-5, "detection": 1e-4, "text": 1e-4}


@pytest.fixture(params=WORKLOADS)
def small(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Workload, Path]:
    """A workload and the folder with little of its data."""
    kind, _, _ = request.param.partition("-")
    if kind != "text":
        pytest.importorskip("PIL.Image")
    work = WORKLOADS[request.param]
    work.written(tmp_path, work.data, SMALL[kind])
    return work, tmp_path


def element_bytes(folder: Path) -> np.ndarray:
    """The bytes of each element as it was written."""
    table = pq.read_table(folder)
    found = [table[name] for name in ("jpeg", "source", "target") if name in table.column_names]
    return np.sum([[len(value.as_py()) for value in column] for column in found], axis=0)


def test_sizes_are_distributed_as_published(small: tuple[Workload, Path]) -> None:
    work, folder = small
    found = element_bytes(folder)
    assert len(found) >= 33
    assert found.mean() == pytest.approx(work.data.mean_bytes, rel=0.05)
    assert np.log(found).std() == pytest.approx(work.data.sigma, rel=0.15)


def test_batches_are_right(small: tuple[Workload, Path]) -> None:
    work, folder = small
    ds = work.made(folder).with_options(telemetry_dir="off")
    found, expected = list(ds.epoch(0)), list(Oracle(node_of(ds), epoch=0).elements())
    assert len(found) == len(expected) > 1
    for batch, wanted in zip(found, expected, strict=True):
        assert [*batch] == [*wanted]
        for name, array in batch.items():
            assert array.dtype == wanted[name].dtype != object
            assert np.array_equal(array, wanted[name])
    numbers = np.concatenate([batch["number"] for batch in found])
    assert len(set(numbers.tolist())) == len(numbers) > 0.85 * len(element_bytes(folder))


@pytest.mark.parametrize(
    "small", [name for name in WORKLOADS if WORKLOADS[name].growth], indirect=True
)
def test_elements_grow_as_published(small: tuple[Workload, Path]) -> None:
    work, folder = small
    image = next(iter(work.made(folder).with_options(telemetry_dir="off")))["image"][0]
    assert image.nbytes / element_bytes(folder).mean() == pytest.approx(work.growth, rel=0.05)


if __name__ == "__main__":
    main()
