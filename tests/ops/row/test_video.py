"""Test pipelines of videos: the same bytes however they run, as decoding from the start gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import dml
from dml import col
from dml.errors import CastError, PlanError, SchemaError
from dml.expr.columns.value import walk
from tests.kernels.video.movies import decoded, movie
from tests.ops.row.media_runs import QUIET, bytes_of, check_executor, check_resumed, check_slices

ROWS = 24
FORMS = ("h264", "vp9", "mpeg4", "h264 in a transport stream", "hevc")


def videos(rows: int = ROWS) -> list[bytes]:
    """Videos of five formats and three lengths."""
    return [movie(FORMS[n % 5], (30, 9, 17)[n % 3], seed=n % 4) for n in range(rows)]


def table(rows: int = ROWS, atom_rows: int = 5) -> dml.Dataset:
    made = pa.table({"k": range(rows), "video": pa.array(videos(rows), pa.binary())})
    return dml.from_arrow(made, atom_rows=atom_rows)


def clips(ds: dml.Dataset) -> dml.Dataset:
    return ds.with_columns(video=col("video").video.random_frames(4, every=2, size=(24, 32)))


# ------------------------------------------------------------------------------------------- rules


def test_rules_name_frames() -> None:
    ds = table().with_columns(
        some=col("video").video.frames(at=[0, -1, 3]),
        third=col("video").video.frames(every=3),
        middle=col("video").video.frames(count=5),
        small=col("video").video.frames(at=[2], size=16),
        timed=col("video").video.frames(times=[0, 0.21, 0.04]),
        paced=col("video").video.frames(fps=10),
    )
    for row, data in zip(ds.with_options(**QUIET), videos(), strict=True):
        every = decoded(data)
        there = len(every)
        assert row["some"].tobytes() == every[[0, there - 1, 3]].tobytes()
        assert row["third"].tobytes() == every[::3].tobytes()
        wanted = [int((n + 0.5) * there / 5) for n in range(5)]
        assert row["middle"].tobytes() == every[wanted].tobytes()
        assert row["timed"].tobytes() == every[[0, 5, 1]].tobytes()
        paced = [int(n * 2.5 + 1e-9) for n in range(there) if n * 2.5 < there]
        assert row["paced"].tobytes() == every[paced].tobytes()
        small = Image.fromarray(every[2]).resize((24, 16), Image.Resampling.BILINEAR)
        assert row["small"].tobytes() == np.asarray(small).tobytes()


def test_numbers_may_be_a_column() -> None:
    numbers = [[n % 9, 0] for n in range(ROWS)]
    ds = dml.from_arrow(pa.table({"v": pa.array(videos(), pa.binary()), "n": numbers}))
    ds = ds.with_columns(
        v=col("v").video.frames(at=col("n")),
        t=col("v").video.frames(times=col("n").list.eval(dml.element() * 0.04)),
    )
    for row, data, asked in zip(ds.with_options(**QUIET), videos(), numbers, strict=True):
        assert row["v"].tobytes() == row["t"].tobytes() == decoded(data)[asked].tobytes()
    pairs = pa.array(numbers, pa.list_(pa.int64(), 2))
    fixed = dml.from_arrow(pa.table({"v": pa.array(videos(), pa.binary()), "n": pairs}))
    fixed = fixed.with_columns(v=col("v").video.frames(at=col("n"))).with_options(**QUIET)
    assert [row["v"].tobytes() for row in fixed] == [
        decoded(data)[asked].tobytes() for data, asked in zip(videos(), numbers, strict=True)
    ]
    with pytest.raises(SchemaError, match="lists of numbers"):
        table().with_columns(v=col("video").video.frames(at=col("k"))).schema  # noqa: B018


def test_facts_come_from_the_frames() -> None:
    rows = table().with_columns(i=col("video").video.info()).select("i").with_options(**QUIET)
    assert next(iter(rows))["i"] == {
        "frames": 30,
        "rate": 25.0,
        "seconds": 1.2,
        "height": 64,
        "width": 96,
    }
    assert table().filter(col("video").video.duration() > 0.5).count() == ROWS * 2 // 3
    long = table().filter(col("video").video.info().struct.field("frames") > 10)
    assert long.count() == ROWS * 2 // 3


def test_frames_become_rows_and_images() -> None:
    ds = table().with_columns(frame=col("video").video.frames(count=3)).select("k", "frame")
    ds = ds.explode("frame").with_columns(frame=col("frame").image.gray())
    rows = list(ds.with_options(**QUIET))
    assert len(rows) == 3 * ROWS
    assert rows[0]["frame"].shape == (64, 96, 1)


# ------------------------------------------------------------------------------ however it is run

PLACES: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "read": clips,
    "over a shuffle": lambda ds: clips(ds.shuffle(seed=2)),
    "below a shuffle": lambda ds: clips(ds).shuffle(20, seed=2),
    "before a cache": lambda ds: clips(ds).cache(),
    "twice": lambda ds: clips(ds.repeat(2)),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("name", PLACES)
def test_every_executor_makes_the_same_bytes(name: str, executor: str) -> None:
    check_executor(PLACES[name], table, "video", executor, 0 if "shuffle" in name else ROWS)


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_resumed_run_gives_the_rest(taken: int) -> None:
    check_resumed(clips(table()), "video", taken)


def test_epochs_differ_and_repeat() -> None:
    ds = clips(table()).batch(8).with_options(**QUIET)
    assert bytes_of(ds, "video", 0) == bytes_of(ds, "video", 0)
    assert bytes_of(ds, "video", 0) != bytes_of(ds, "video", 1)


def test_frames_are_decoded_in_slices() -> None:
    check_slices(clips(table()))
    frames = col("video").video.frames(count=2)
    assert all(value.slow for value in walk((frames.value,)) if value.op == "video.frames")


# ------------------------------------------------------------------------------------- what is odd


def test_videos_that_cannot_be_read_are_named_or_null() -> None:
    data = [movie(), movie()[:700], None, b""]
    ds = dml.from_arrow(pa.table({"v": pa.array(data, pa.binary())})).with_options(**QUIET)
    refused = ds.with_columns(v=col("v").video.frames(count=2))
    with pytest.raises(CastError, match=r"(?s)video.frames refuses the video.*on_error='null'"):
        list(refused)
    for made in (
        col("v").video.frames(count=2, on_error="null"),
        col("v").video.info(on_error="null"),
    ):
        rows = [row["v"] for row in ds.with_columns(v=made)]
        assert rows[0] is not None
        assert rows[1:] == [None, None, None]


def test_a_frame_that_is_not_there_is_an_error_of_its_row() -> None:
    ds = table().with_columns(v=col("video").video.frames(at=[20])).with_options(**QUIET)
    with pytest.raises(CastError, match="it has 9 frames, and no frame 20"):
        list(ds)
    late = table().with_columns(v=col("video").video.frames(times=[0.5])).with_options(**QUIET)
    with pytest.raises(CastError, match=r"it has 0\.36 seconds, and no frame at 0\.5"):
        list(late)
    for rule in ({"at": [20]}, {"times": [0.8]}):
        made = col("video").video.frames(**rule, on_error="null")
        kept = table().with_columns(v=made).drop_nulls("v")
        assert kept.count() == ROWS // 3


def test_numbers_may_have_nulls_and_none() -> None:
    data = {"v": videos(4), "n": [[0, None], [], None, [1]]}
    ds = dml.from_arrow(pa.table(data, pa.schema({"v": pa.binary(), "n": pa.list_(pa.int64())})))
    made = col("v").video.frames(at=col("n"), size=(8, 8), on_error="null")
    rows = [row["v"] for row in ds.with_columns(v=made).with_options(**QUIET)]
    assert [None if row is None else row.shape for row in rows] == [
        *(None, (0, 8, 8, 3), None, (1, 8, 8, 3))
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "frames has no rule"),
        ({"every": 2, "count": 3}, "frames has count and every"),
        ({"fps": 0}, "fps of frames"),
        ({"times": ["a"]}, "a time of frames"),
        ({"times": 3}, "times is 3"),
        ({"count": 0}, "count of frames"),
        ({"at": 3}, "at is 3"),
        ({"at": ["a"]}, "a number in at"),
        ({"count": 2, "rotate": 1}, "rotate is 1"),
        ({"count": 2, "on_error": "skip"}, "on_error is 'skip'"),
        ({"count": 2, "size": 0}, "height of frames"),
        ({"count": 2, "max_pixels": 0}, "max_pixels"),
    ],
)
def test_wrong_arguments_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        col("v").video.frames(**given)


def test_only_encoded_videos_are_taken() -> None:
    with pytest.raises(SchemaError, match="encoded videos"):
        table().with_columns(v=col("k").video.info()).schema  # noqa: B018


def test_files_are_read_by_their_suffix(tmp_path: Path) -> None:
    for name in ("a/1.mp4", "a/2.webm", "b/3.mkv", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(movie())
    ds = dml.read_videos(str(tmp_path), label="parent").with_options(**QUIET)
    assert [(row["path"], row["label"]) for row in ds] == [
        ("a/1.mp4", "a"),
        ("a/2.webm", "a"),
        ("b/3.mkv", "b"),
    ]
    batch = next(iter(ds.with_columns(video=col("video").video.frames(count=2)).batch(3)))
    assert batch["video"].shape[1:] == (2, 64, 96, 3) or batch["video"].dtype == object
