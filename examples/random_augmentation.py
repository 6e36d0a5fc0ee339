"""Random augmentation that can be repeated: noise and flips are keyed by seed, epoch and row.

They do not depend on threads, on batch size, or on where a run was resumed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import dml


def augment(row: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Mirror every second picture, and add a little noise to all."""
    picture = row["picture"]
    if rng.random() < 0.5:
        picture = picture[:, ::-1]
    noise = rng.normal(0, 0.05, picture.shape)
    return {"picture": (picture + noise).astype(np.float32), "label": row["label"]}


def pipeline(**options: Any) -> dml.Dataset:
    rng = np.random.default_rng(0)
    pictures = rng.random((400, 8, 8)).astype(np.float32)
    source = dml.from_numpy({"picture": pictures, "label": np.arange(400)})
    return source.shuffle(seed=1).random_map(augment, seed=2).batch(50).with_options(**options)


def pictures(ds: dml.Dataset, epoch: int) -> np.ndarray:
    return np.concatenate([batch["picture"] for batch in ds.epoch(epoch)])


def main() -> None:
    one = pictures(pipeline(num_workers=1), epoch=0)
    four = pictures(pipeline(num_workers=4, target_partition_bytes="16KiB"), epoch=0)
    assert np.array_equal(one, four)
    print("one thread and four threads: the same pictures, bit for bit")

    later = pictures(pipeline(), epoch=1)
    assert not np.array_equal(one, later)
    print("the next epoch: other noise, other flips, another order")

    it = iter(pipeline().epoch(1))
    for _ in range(3):
        next(it)
    resumed = iter(pipeline())
    resumed.load_state_dict(it.state_dict())
    assert np.array_equal(np.concatenate([b["picture"] for b in resumed]), later[150:])
    print("resumed in the middle of it: the same pictures again")


if __name__ == "__main__":
    main()
