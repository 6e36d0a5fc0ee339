"""Test mixtures of images and labels within a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dml
from dml.errors import DmlError, PlanError, UDFError

ROWS, CLASSES = 40, 5
MIXED = (dml.vision.mixup, dml.vision.cutmix)


def images(**columns: Any) -> dml.Dataset:
    rng = np.random.default_rng(0)
    given = {
        "image": rng.random((ROWS, 3, 12, 16), dtype=np.float32),
        "label": np.arange(ROWS) % CLASSES,
        "k": np.arange(ROWS),
    }
    return dml.from_numpy({**given, **columns}).with_options(telemetry_dir="off")


def uneven() -> dml.Dataset:
    """Images of different sizes."""
    rows = [{"image": np.zeros((3, 4 + n % 3, 5), "f4"), "label": 0} for n in range(ROWS)]
    return dml.from_items(rows).with_options(telemetry_dir="off")


def batches(ds: dml.Dataset, epoch: int = 0) -> list[dict[str, Any]]:
    return list(ds.epoch(epoch))


def test_mixup_is_a_weighted_sum_with_the_image_before() -> None:
    plain = batches(images().batch(16))
    for given, mixed in zip(
        plain, batches(images().batch(16).pipe(dml.vision.mixup, CLASSES, 1.0)), strict=True
    ):
        before = np.roll(given["image"], 1, axis=0)
        one = np.eye(CLASSES, dtype="f4")[given["label"]]
        share = mixed["label"][1, given["label"][1]]
        assert 0 < share < 1
        wanted = given["image"] * share + before * (1 - share)
        np.testing.assert_allclose(mixed["image"], wanted, rtol=1e-6)
        np.testing.assert_allclose(
            mixed["label"], one * share + np.roll(one, 1, axis=0) * (1 - share), rtol=1e-6
        )
        assert mixed["image"].dtype == mixed["label"].dtype == np.float32
        assert mixed["k"].tolist() == given["k"].tolist()
        assert mixed.keys() == given.keys()


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_cutmix_replaces_a_box_by_that_of_the_image_before(layout: str) -> None:
    last = layout == "HWC"
    given = np.ones((ROWS, 8, 10, 3) if last else (ROWS, 3, 8, 10), np.float32)
    given *= np.arange(ROWS)[:, None, None, None]
    sizes = set()
    ds = images(image=given).batch(10).pipe(dml.vision.cutmix, CLASSES, layout=layout)
    for epoch in range(5):
        for number, batch in enumerate(batches(ds, epoch)):
            pixels = batch["image"][..., 0] if last else batch["image"][:, 0]
            changed = pixels[1] != 10 * number + 1
            rows, columns = changed.any(1), changed.any(0)
            assert changed.sum() == rows.sum() * columns.sum()
            assert set(np.unique(pixels[1][changed])) <= {10 * number}
            share = 1 - changed.sum() / 80
            np.testing.assert_allclose(batch["label"].max(1), max(share, 1 - share), rtol=1e-6)
            sizes.add(int(changed.sum()))
    assert len(sizes) > 5


@pytest.mark.parametrize("mix", MIXED)
def test_draws_are_of_the_seed_the_epoch_and_the_batch(mix: Any) -> None:
    ds = images().batch(8).pipe(mix, CLASSES)
    first = [batch["image"].tobytes() for batch in batches(ds)]
    assert [b["image"].tobytes() for b in batches(ds)] == first
    assert [b["image"].tobytes() for b in batches(ds, 1)] != first
    others = images().batch(8).pipe(mix, CLASSES, seed=7)
    assert [b["image"].tobytes() for b in batches(others)] != first
    run = ds.with_options(executor="processes", num_workers=2)
    assert [b["image"].tobytes() for b in batches(run)] == first


def test_labels_may_be_shares_already() -> None:
    ds = images().batch(8).pipe(dml.vision.mixup, CLASSES).pipe(dml.vision.cutmix, CLASSES)
    for batch in batches(ds):
        np.testing.assert_allclose(batch["label"].sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("mix", MIXED)
def test_what_cannot_be_mixed_is_refused(mix: Any) -> None:
    small = images(image=np.zeros((ROWS, 3, 4, 4), np.uint8)).batch(8)
    for ds, classes, text in (
        (small, CLASSES, "images are mixed as floats"),
        (images().batch(8), 3, "labels are whole numbers from 0 to 2"),
        (images(label=np.zeros(ROWS)).batch(8), 3, "labels are whole numbers"),
        (images(), CLASSES, "batches are needed"),
        (images(label=np.array(["a"] * ROWS)).batch(8), 3, "makes numbers of names"),
        (images().rename({"image": "x"}).batch(8), 3, "image= and label= name the columns, of "),
        (images(label=np.zeros((ROWS, 7), "f4")).batch(8), 3, "shares of 7 classes, not of 3"),
        (images(label=np.zeros((ROWS, 1), "i8")).batch(8), 3, "labels are whole numbers"),
        (uneven().batch(8), 3, "images of column image have different sizes"),
    ):
        with pytest.raises(UDFError, match=text):
            batches(ds.pipe(mix, classes))
    last = images(image=np.zeros((ROWS, 12, 16, 3), "f4")).batch(8)
    with pytest.raises(UDFError, match="layout= says CHW or HWC"):
        batches(last.pipe(dml.vision.cutmix, CLASSES))
    for wrong in ({"classes": 0}, {"classes": 3, "alpha": 0.0}):
        with pytest.raises(PlanError):
            mix(images().batch(8), **wrong)
    with pytest.raises(DmlError):
        dml.vision.cutmix(images().batch(8), 3, layout="NCHW")
