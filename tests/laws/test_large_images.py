"""Law: some images, or all, may have 24 megapixels, and the memory limit holds."""

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
SIDES = {"small": (500, 375), "large": (6000, 4000)}


def write(folder: Path, rows: int, every: int) -> None:
    """Write photos, of which one in ``every`` is large: JPEG and, unless all are large, PNG."""
    rng = np.random.default_rng(0)
    pattern = Image.fromarray(rng.integers(0, 255, (40, 60, 3), np.uint8))
    data = {}
    for size, sides in SIDES.items():
        for form, options in (("JPEG", {"quality": 90}), ("PNG", {"compress_level": 1})):
            target = io.BytesIO()
            pattern.resize(sides).save(target, form, **options)
            data[size, form] = target.getvalue()
    for row in range(rows):
        large = row % every == every // 2
        form = "PNG" if every > 1 and row // every % 2 else "JPEG"
        (folder / f"{row:04}.jpg").write_bytes(data["large" if large else "small", form])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize(("rows", "every"), [(60, 12), (40, 1), (1_000, 50)])
@pytest.mark.skipif(sys.platform != "linux", reason="nobody else tells what a process takes")
def test_large_images_stay_within_the_number(
    tmp_path: Path, executor: str, rows: int, every: int, whole: bool
) -> None:
    if (executor == "processes" or rows == 1_000) and not whole:
        pytest.skip("on demand: --whole")
    (tmp_path / "images").mkdir()
    write(tmp_path / "images", rows, every)
    command = [sys.executable, "-W", "ignore", "-m", "tests.laws.large_images"]
    found = sampled([*command, str(tmp_path / "images"), executor, str(LIMIT_BYTES)], tmp_path)
    assert not found.status, found
    assert found.rows == rows
    processes = 1 if executor == "threads" else 5
    assert found.peak_bytes <= LIMIT_BYTES + processes * OVERHEAD_BYTES
