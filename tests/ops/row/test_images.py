"""Test pipelines of images: the same bytes however they run, as a plain function over Pillow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import dml
from dml import col
from dml.data import batch_trays
from dml.data.batch_trays import TrayMemory
from dml.errors import CastError, SchemaError, SourceError
from dml.exec.delivery import row_text
from dml.expr.columns.value import walk
from dml.kernels.functions import images
from tests.kernels.images.pictures import jpeg, saved, scene
from tests.ops.row.media_runs import (
    QUIET,
    bytes_of,
    check_executor,
    check_resumed,
    check_slices,
)
from tests.sampling import amount

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ROWS = 60
STRUCTS = {"image": pa.struct([("bytes", pa.binary()), ("path", pa.string())])}


def encoded(rows: int) -> list[bytes]:
    return [
        jpeg(8 * n) if n % 3 else saved(Image.fromarray(scene(n, 20, 30)), "PNG")
        for n in range(rows)
    ]


def table(rows: int = ROWS, atom_rows: int = 7) -> dml.Dataset:
    made = pa.table({"k": range(rows), "image": pa.array(encoded(rows), pa.binary())})
    return dml.from_arrow(made, atom_rows=atom_rows)


def augmented(name: str = "image") -> Any:
    found = col(name).image.decode().random_resized_crop(16).random_flip()
    return found.color_jitter(0.4, 0.4, 0.4).normalize(MEAN, STD)


def rows_of(batch: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    for number in range(len(batch["image"])):
        yield {name: array[number] for name, array in batch.items()}


# ------------------------------------------------------------------------- as a plain function does


def plainly(row: dict[str, Any], box: np.ndarray, *, mirrored: bool) -> np.ndarray:
    """What torchvision's transforms of an image of Pillow do, without torch."""
    image = Image.open(io.BytesIO(row["image"])).convert("RGB")
    top, left, height, width = (int(n) for n in box)
    image = image.crop((left, top, left + width, top + height))
    image = image.resize((24, 20), Image.Resampling.BILINEAR)
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image
    array = np.asarray(image).astype(np.float32) / np.float32(255)
    made: np.ndarray = (array - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return made.transpose(2, 0, 1)


def test_rows_and_batches_are_what_a_function_over_pillow_gives() -> None:
    ds = table(amount(ROWS, 10_000)).with_columns(
        box=col("image").image.random_resized_crop(20, 24, params=True),
        mirrored=col("image").image.random_flip(params=True),
        encoded=col("image"),
    )
    image = col("image").image.decode().crop(col("box")).resize(20, 24)
    ds = ds.with_columns(image=image.flip(where=col("mirrored")).normalize(MEAN, STD))
    rows = ds.select("image", "box", "mirrored", "encoded").with_options(**QUIET)
    alone = list(rows.epoch(0))
    together = [row for batch in rows.batch(32).epoch(0) for row in rows_of(batch)]
    assert len(alone) == len(together) == amount(ROWS, 10_000)
    assert {bool(row["mirrored"]) for row in alone} == {True, False}
    for one, other in zip(alone, together, strict=True):
        wanted = plainly({"image": one["encoded"]}, one["box"], mirrored=one["mirrored"])
        assert one["image"].tobytes() == wanted.tobytes() == other["image"].tobytes()


def test_the_order_in_which_it_is_written_does_not_matter_where_it_must_not() -> None:
    first, last = table(), table()
    box = col("image").image.random_resized_crop(12, params=True)
    decoded = col("image").image.decode()
    by_hand = decoded.crop(col("box")).resize(12).flip().brightness(1.4).posterize(5)
    turned = decoded.brightness(1.4).posterize(5).crop(col("box")).flip()
    for ds, image, other in ((first, by_hand, None), (last, turned, "then")):
        made = ds.with_columns(box=box).with_columns(image=image)
        made = made if other is None else made.with_columns(image=col("image").image.resize(12))
        assert made.with_options(**QUIET).count() == ROWS
    # colours and flips before a crop give the pixels of the crop, coloured and flipped
    a = first.with_columns(image=decoded.crop(0, 0, 1, 1).flip().brightness(1.4))
    b = first.with_columns(image=decoded.brightness(1.4).crop(0, 0, 1, 1).flip())
    assert bytes_of(a.batch(9).with_options(**QUIET), "image") == bytes_of(
        b.batch(9).with_options(**QUIET), "image"
    )


# ------------------------------------------------------------------------------ however it is run

PLACES: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "read": lambda ds: ds.with_columns(image=augmented()),
    "over a shuffle": lambda ds: ds.shuffle(seed=2).with_columns(image=augmented()),
    "below a shuffle": lambda ds: ds.with_columns(image=augmented()).shuffle(20, seed=2),
    "after a cache": lambda ds: ds.cache().with_columns(image=augmented()),
    "before a cache": lambda ds: ds.with_columns(image=augmented()).cache(),
    "a filter": lambda ds: ds.filter(col("k") % 3 > 0).with_columns(image=augmented()),
    "of sizes": lambda ds: ds.filter(col("image").image.size().tensor.sum() > 60).with_columns(
        image=augmented()
    ),
    "a function": lambda ds: ds.map(lambda row: row, schema=ds.schema).with_columns(
        image=augmented()
    ),
    "twice": lambda ds: ds.repeat(2).with_columns(image=augmented()),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("name", PLACES)
def test_every_executor_makes_the_same_bytes(name: str, executor: str) -> None:
    rows = 0 if "shuffle" in name else ROWS
    check_executor(PLACES[name], table, "image", executor, rows)


@pytest.mark.parametrize("kernels", ["auto", "compiled"])
def test_every_tier_makes_the_same_bytes(kernels: str, tmp_path: Path) -> None:
    ds = table().with_columns(image=augmented()).batch(8).with_options(**QUIET)
    wanted = bytes_of(ds.with_options(kernels="numpy", executor="sync"), "image")
    assert bytes_of(ds.with_options(kernels=kernels, cache_dir=str(tmp_path)), "image") == wanted


def test_epochs_differ_and_each_is_the_same_again() -> None:
    ds = table().with_columns(image=augmented()).batch(8).with_options(**QUIET)
    assert bytes_of(ds, "image", 0) == bytes_of(ds, "image", 0)
    same = [a == b for a, b in zip(bytes_of(ds, "image", 0), bytes_of(ds, "image", 1), strict=True)]
    assert sum(same) < ROWS // 4
    assert bytes_of(ds, "image", 1) == bytes_of(ds, "image", 1)


@pytest.mark.parametrize("name", ["read", "over a shuffle", "twice"])
@pytest.mark.parametrize("taken", [1, 4])
def test_a_run_goes_on_where_it_was_left(name: str, taken: int) -> None:
    check_resumed(PLACES[name](table()), "image", taken)


# ------------------------------------------------------------------------- how it is cut and stored


@pytest.mark.parametrize("name", ["read", "over a shuffle", "twice", "a function"])
def test_images_are_made_in_slices_wherever_they_stand(name: str) -> None:
    check_slices(PLACES[name](table()))


@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_a_batch_is_written_once(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_trays, "WIDE_BYTES", 1 << 10)
    monkeypatch.setattr(batch_trays, "TRAY_BYTES", 1 << 12)
    ds = table(48).shuffle(seed=1).with_columns(image=augmented()).batch(8)
    for batch in ds.with_options(**QUIET, executor=executor).epoch(0):
        base: Any = batch["image"].base
        assert isinstance(base.base, TrayMemory)
        assert base.nbytes == batch["image"].nbytes


# ---------------------------------------------------------------------------------- what goes wrong


def folder(path: Path) -> Path:
    for name, data in (
        ("cat/a.jpg", jpeg(8)),
        ("cat/b.JPEG", jpeg(16)),
        ("dog/c.png", b"\x89PNG, but broken"),
        ("dog/d.webp", saved(Image.fromarray(scene(1, 9, 9)), "WEBP")),
        ("dog/notes.txt", b"no image"),
    ):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    return path


def test_files_are_rows_with_labels(tmp_path: Path) -> None:
    ds = dml.read_images(folder(tmp_path), label="parent")
    assert str(ds.schema) == "path: string, label: string, image: binary"
    rows = [(row["path"], row["label"]) for row in ds.select("path", "label").epoch(0)]
    names = ["cat/a.jpg", "cat/b.JPEG", "dog/c.png", "dog/d.webp"]
    assert rows == [(name, name[:3]) for name in names]
    numbered = dml.read_images(tmp_path, label={"cat": 0, "dog": 1})
    assert [row["label"] for row in numbered.select("label").epoch(0)] == [0, 0, 1, 1]
    alone = dml.read_images([tmp_path / "dog" / "d.webp"], label="parent")
    assert alone.take_rows(1)[0]["label"] == "dog"
    assert "label" not in dml.read_images(tmp_path).schema


def test_labels_that_say_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(dml.errors.PlanError, match="label is 'folder'"):
        dml.read_images(folder(tmp_path), label="folder")
    with pytest.raises(CastError, match="meets 'dog'"):
        list(dml.read_images(tmp_path, label={"cat": 0}).epoch(0))
    with pytest.raises(SourceError, match="no image files"):
        dml.read_images(Path(__file__).parent)


def test_a_broken_image_is_named_and_rows_before_it_come(tmp_path: Path) -> None:
    ds = dml.read_images(folder(tmp_path)).with_columns(
        image=col("image").image.decode().resize(4, 4)
    )
    rows = iter(ds.epoch(0))
    assert [next(rows)["path"] for _ in range(2)] == ["cat/a.jpg", "cat/b.JPEG"]
    with pytest.raises(CastError, match=r"(?s)image.decode refuses.*dog/c.png, row 0") as caught:
        next(rows)
    assert "on_error='null'" in str(caught.value)


def test_broken_images_can_be_null(tmp_path: Path) -> None:
    image = col("image").image.decode(on_error="null").resize(4, 4).to_tensor()
    ds = dml.read_images(folder(tmp_path)).with_columns(image=image).drop_nulls("image")
    assert [row["path"][-5:] for row in ds.epoch(0)] == ["a.jpg", ".JPEG", ".webp"]


def test_a_part_that_does_not_fit_is_an_error_of_its_row() -> None:
    ds = table().with_columns(image=col("image").image.decode().crop(0, 0, 25, 25))
    with pytest.raises(CastError, match=r"(?s)image.crop refuses.*the image has \d+ x \d+ pixels"):
        list(ds.epoch(0))


def test_structs_of_hugging_face_are_encoded_images() -> None:
    rows = [{"image": {"bytes": data, "path": None}} for data in encoded(4)] + [{"image": None}]
    ds = dml.from_items(rows).with_columns(size=col("image").image.size(), image=augmented())
    assert [row["image"] is None for row in ds.epoch(0)] == [False] * 4 + [True]


def test_a_schema_knows_sizes_where_they_are_known() -> None:
    decoded = col("image").image.decode()
    ds = table(2)
    for image, kind in (
        (decoded, "u1[?,?,3]"),
        (decoded.resize(8, 9), "u1[8,9,3]"),
        (decoded.resize(8, 9).pad(1).gray(), "u1[10,11,1]"),
        (decoded.resize(8), "u1[?,?,3]"),
        (decoded.resize(8, 12).resize(4), "u1[4,6,3]"),
        (decoded.to_tensor(), "f4[3,?,?]"),
        (decoded.center_crop(4).normalize(0.5, 0.5, layout="HWC"), "f4[4,4,3]"),
        (col("image").image.decode("RGBA"), "u1[?,?,4]"),
    ):
        assert str(ds.with_columns(image=image).schema).split("image: ")[1] == kind
    with pytest.raises(SchemaError, match="does not fit"):
        ds.with_columns(image=decoded.resize(8, 9).center_crop(9))
    with pytest.raises(SchemaError, match=r"needs decoded images.*\n.*\n.*\n.*image.decode"):
        ds.with_columns(image=col("image").image.resize(9))


def test_another_decoder_is_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = table(2)
    tool = images.BY_NAME["image.decode"].tool
    before = ds.with_columns(image=col("image").image.decode()).fingerprint
    for function in images.FUNCTIONS:
        assert function.tool is not None
    object.__setattr__(images.BY_NAME["image.decode"], "tool", lambda: "pillow=99")
    try:
        after = ds.with_columns(image=col("image").image.decode()).fingerprint
    finally:
        object.__setattr__(images.BY_NAME["image.decode"], "tool", tool)
    assert before != after


def test_draws_of_one_expression_are_independent() -> None:
    ds = table(300, atom_rows=50).with_columns(
        a=col("image").image.random_flip(params=True),
        image=col("image").image.decode().resize(4, 4).random_flip().random_flip().to_tensor(),
        plain=col("image").image.decode().resize(4, 4).to_tensor(),
    )
    turned = [not (row["image"] == row["plain"]).all() for row in ds.with_options(**QUIET).epoch(0)]
    assert 100 < sum(turned) < 200


def test_a_notebook_shows_pictures() -> None:
    ds = table(2).with_columns(
        small=col("image").image.decode().resize(8, 8), broken=dml.lit(b"BM")
    )
    html = row_text.FirstRows(ds.to_arrow())._repr_html_()
    assert html.count("<img") == 4
    assert "data:image/png;base64," in html
    assert "<img" not in str(row_text.FirstRows(ds.to_arrow()))


def test_a_struct_with_a_path_alone_is_refused() -> None:
    ds = dml.from_items([{"image": {"bytes": None, "path": "/a.jpg"}}] * 2, schema=STRUCTS)
    with pytest.raises(CastError, match="the path of a file, which is not opened"):
        list(ds.with_columns(image=col("image").image.decode()).epoch(0))


def test_masks_keep_their_classes() -> None:
    classes = np.array([[0, 1, 2], [2, 1, 15]], np.uint8)
    mask = Image.fromarray(classes, "P")
    mask.putpalette([n % 256 for n in range(768)])
    ds = dml.from_items([{"image": saved(mask, "PNG")}])
    row = ds.with_columns(
        image=col("image").image.decode("P").resize(4, 6, filter="nearest")
    ).first()
    assert row is not None
    assert row["image"][::2, ::2, 0].tolist() == classes.tolist()
    with pytest.raises(CastError, match="it has no palette"):
        list(table(3).with_columns(image=col("image").image.decode("P")).epoch(0))


def test_arrays_of_functions_are_images() -> None:
    ds = table(9).with_columns(image=col("image").image.decode())
    made = ds.map(lambda row: {"image": row["image"][::2]})
    half = made.with_columns(image=col("image").image.resize(4, 4))
    assert all(row["image"].shape == (4, 4, 3) for row in half.with_options(**QUIET).epoch(0))
    grey = ds.map(lambda row: {"image": row["image"][:, :, :1]})
    with pytest.raises(CastError, match="it has 1 channels"):
        list(grey.with_columns(image=col("image").image.resize(4, 4)).epoch(0))


def test_torchvisions_way_of_writing_works() -> None:
    decoded = col("image").image.decode()
    ds = table(4).with_columns(
        a=decoded.resize((8, 9)).to_tensor().normalize(MEAN, STD),
        b=decoded.resize(8, 9).normalize(MEAN, STD),
    )
    for row in ds.epoch(0):
        assert (row["a"] == row["b"]).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda image: image.hue(0.8),
        lambda image: image.random_hue(0.8),
        lambda image: image.brightness(-1),
        lambda image: image.resize(0),
        lambda image: image.resize(8, 8, filter="cubic"),
        lambda image: image.resize(8, 8, filter="lanczos", antialias=False),
        lambda image: image.resize(8, 8, box=(3, 0, 3, 9)),
        lambda image: image.random_flip(1.5),
        lambda image: image.random_resized_crop(8, scale=(0.9, 0.1)),
        lambda image: image.random_resized_crop(8, ratio=(0, 1)),
        lambda image: image.normalize(0.5, 0),
        lambda image: image.normalize(float("nan"), 1),
        lambda image: image.pad((1, 2)),
        lambda image: image.pad(-1),
        lambda image: image.pad(1, fill=300),
        lambda image: image.lut([1, 2, 3]),
        lambda image: image.lut([300] * 256),
        lambda image: image.affine((1, 2, 3)),
        lambda image: image.decode("CMYK"),
        lambda image: image.encode("tga"),
        lambda image: image.posterize(9),
        lambda image: image.blur(-1),
        lambda image: image.gray(2),
        lambda image: image.color_jitter(brightness=-0.4),
        lambda image: image.color_jitter(hue=0.9),
        lambda image: image.random_brightness("x"),
        lambda image: image.random_rotate((1, 2, 3)),
        lambda image: image.random_rotate((30, -30)),
        lambda image: image.affine(5),
        lambda image: image.normalize(0.5, 1e-50),
        lambda image: image.random_erasing(scale=(2, 3)),
        lambda image: image.decode(exif_transpose="no"),
        lambda image: image.pad(1, fill=()),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(call: Callable[[Any], Any]) -> None:
    with pytest.raises(dml.errors.PlanError) as caught:
        call(col("image").image)
    assert len(str(caught.value)) < 500


def test_a_colour_has_as_many_channels_as_its_image() -> None:
    with pytest.raises(SchemaError, match="fill"):
        table(2).with_columns(image=col("image").image.decode().pad(2, fill=(9, 7)))


def draws_in(value: Any) -> list[tuple[Any, ...]]:
    return [each.params for each in walk((value,)) if each.op == "random"]


def test_what_says_only_what_is_refused_changes_no_draw() -> None:
    one, other = (
        table(4).with_columns(image=decoded.random_crop(8, 8)).batch(4).with_options(**QUIET)
        for decoded in (
            col("image").image.decode(),
            col("image").image.decode(max_pixels=10**6, on_error="null"),
        )
    )
    assert bytes_of(one, "image") == bytes_of(other, "image")


@pytest.mark.parametrize(
    "made",
    [
        lambda: col("image").image.decode().color_jitter(0.4, 0.4, 0.4, 0.1, p=0.8).random_flip(),
        lambda: col("image").image.decode().random_flip().random_flip().random_flip(),
        lambda: dml.vision.simclr()["view_1"],
        lambda: dml.vision.imagenet_train(224),
        lambda: (
            col("image")
            .image.decode()
            .random_flip()
            .flip(where=col("image").image.random_flip(params=True))
            .flip(where=dml.random() < 0.5)
        ),
        lambda: col("image").image.decode().random_blur().random_blur().random_erasing(),
    ],
)
def test_no_two_functions_draw_the_same_numbers(made: Callable[[], Any]) -> None:
    found = draws_in(made().value)
    assert len(found) == len(set(found)) > 1


def test_what_is_drawn_first_says_nothing_of_what_is_drawn_then() -> None:
    image = col("image").image.decode().resize(2, 2).color_jitter(brightness=0.5)
    ds = table(400, atom_rows=50).with_columns(image=image.random_flip(), k=col("k"))
    made = ds.with_columns(light=col("image").image.to_tensor().tensor.mean())
    plain = table(400, atom_rows=50).with_columns(
        image=col("image").image.decode().resize(2, 2).color_jitter(brightness=0.5)
    )
    light, turned = [], []
    for a, b in zip(
        made.with_options(**QUIET).epoch(0), plain.with_options(**QUIET).epoch(0), strict=True
    ):
        light.append(float(a["light"]))
        turned.append(bool((a["image"] != b["image"]).any()))
    bright = np.array(light) > np.median(light)
    assert 0.3 < np.array(turned)[bright].mean() < 0.7


BOXES = {
    "negative": [0, 0, -1, -1],
    "empty": [5, 5, 0, 0],
    "flat": [5, 5, 0, 3],
    "far": [50, 0, 9, 9],
}


@pytest.mark.parametrize("name", BOXES)
def test_a_box_without_pixels_is_an_error_of_its_row(name: str) -> None:
    kind = pa.fixed_shape_tensor(pa.int64(), (4,))
    boxes = pa.ExtensionArray.from_storage(kind, pa.array([BOXES[name]] * 2, kind.storage_type))
    made = pa.table({"image": pa.array(encoded(1) * 2, pa.binary()), "box": boxes})
    ds = dml.from_arrow(made).with_columns(image=col("image").image.decode().crop(col("box")))
    with pytest.raises(CastError, match=r"image.crop_box refuses the image"):
        list(ds.epoch(0))


def test_a_broken_image_has_no_size_and_no_part_if_that_is_said() -> None:
    image = col("image").image
    ds = dml.from_items([{"image": encoded(1)[0]}, {"image": b"broken"}]).with_columns(
        size=image.size(on_error="null"),
        part=image.random_resized_crop(8, params=True, on_error="null"),
        other=image.random_crop(2, params=True, on_error="null"),
    )
    first, last = ds.epoch(0)
    assert all(value is not None for value in first.values())
    assert [last[name] for name in ("size", "part", "other")] == [None] * 3
    whole = ds.with_columns(x=image.decode(on_error="null").crop(col("part"))).drop_nulls("x")
    assert whole.count() == 1


def test_sizes_and_parts_know_the_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(Image.fromarray(scene(1, 40, 50)), "JPEG", exif=exif)
    image = col("image").image
    ds = dml.from_items([{"image": data}]).with_columns(
        size=image.size(exif_transpose=True),
        part=image.random_crop(45, 30, params=True, exif_transpose=True),
    )
    cut = ds.with_columns(image=image.decode(exif_transpose=True).crop(col("part"))).first()
    assert cut is not None
    assert cut["size"].tolist() == [50, 40]
    assert cut["image"].shape == (45, 30, 3)


def test_a_thin_image_does_not_fill_the_memory() -> None:
    thin = saved(Image.fromarray(np.zeros((1, 60_000, 1), np.uint8)[:, :, 0]), "PNG")
    ds = dml.from_items([{"image": thin}]).with_columns(image=dml.vision.imagenet_eval(64))
    with pytest.raises(CastError, match=r"image.resize refuses"):
        list(ds.epoch(0))


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "blur", "rotate", "hue"])
def test_amounts_without_a_meaning_are_errors_of_their_rows(name: str, factor: float) -> None:
    if factor == -1.0 and name in ("rotate", "hue"):
        return  # which turn the other way
    image = getattr(col("image").image.decode(), name)(col("f"))
    ds = dml.from_items([{"image": encoded(1)[0], "f": factor}]).with_columns(image=image)
    with pytest.raises(CastError, match=rf"image.{name} refuses.*\n.*\n.*the amount is"):
        list(ds.epoch(0))


def test_what_a_format_cannot_hold_is_an_error_of_its_row() -> None:
    image = col("image").image.decode().resize(1, 20_000).encode("webp")
    with pytest.raises(CastError, match="webp cannot have 1 x 20000 pixels"):
        list(table(1).with_columns(image=image).epoch(0))


def test_boxes_of_an_image_without_pixels_are_refused() -> None:
    rows = [{"boxes": [[0.0, 1.0, 2.0, 3.0]], "h": 0, "w": 10}]
    size = dml.stack(col("h"), col("w"))
    ds = dml.from_items(rows).with_columns(boxes=col("boxes").boxes.resize(9, 9, size=size))
    with pytest.raises(CastError, match=r"boxes.resize refuses the boxes"):
        list(ds.epoch(0))
