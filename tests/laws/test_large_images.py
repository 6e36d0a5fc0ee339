"""Law: one image in 12 may have 24 megapixels, and the memory limit holds."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dml.exec.memory.memory_shares import OVERHEAD_BYTES
from tests.laws.adversarial_run import sampled

LIMIT_BYTES = 256 << 20
EVERY = 12
SIDES = {"small": (500, 375), "large": (6000, 4000)}


def write(folder: Path, rows: int) -> None:
    """Write photos, of which one in ``EVERY`` is large: JPEG and PNG in turn."""
    rng = np.random.default_rng(0)
    pattern = Image.fromarray(rng.integers(0, 255, (40, 60, 3), np.uint8))
    data = {}
    for size, sides in SIDES.items():
        for form, options in (("JPEG", {"quality": 90}), ("PNG", {"compress_level": 1})):
            target = io.BytesIO()
            pattern.resize(sides).save(target, form, **options)
            data[size, form] = target.getvalue()
    for row in range(rows):
        large = row % EVERY == EVERY // 2
        form = "PNG" if row // EVERY % 2 else "JPEG"
        (folder / f"{row:04}.jpg").write_bytes(data["large" if large else "small", form])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.skipif(sys.platform != "linux", reason="nobody else tells what a process takes")
def test_large_images_among_others_stay_within_the_number(
    tmp_path: Path, executor: str, whole: bool
) -> None:
    (tmp_path / "images").mkdir()
    rows = 1_000 if whole else 150
    write(tmp_path / "images", rows)
    command = [sys.executable, "-W", "ignore", "-m", "tests.laws.large_images"]
    found = sampled([*command, str(tmp_path / "images"), executor, str(LIMIT_BYTES)], tmp_path)
    assert not found.status, found
    assert found.rows == rows
    processes = 1 if executor == "threads" else 3
    assert found.peak_bytes <= LIMIT_BYTES + processes * OVERHEAD_BYTES
