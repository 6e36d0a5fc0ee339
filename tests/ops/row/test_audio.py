"""Test pipelines of sounds: the same bytes however they run, as the plain libraries give."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
import soxr

import dml
from dml import col
from dml.errors import CastError, PlanError, SchemaError, SourceError
from dml.exec.delivery import row_text
from dml.expr.columns.value import walk
from dml.kernels.functions.table import functions
from tests.kernels.audio.clips import clip, saved
from tests.ops.row.media_runs import (
    QUIET,
    bytes_of,
    check_executor,
    check_resumed,
    check_slices,
)
from tests.sampling import amount

ROWS, RATE = 48, 8_000
FORMS = (("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III"))


def encoded(rows: int) -> list[bytes]:
    """Sounds of four formats, two rates, one or two channels, and different lengths."""
    return [
        saved(clip(n, 1_500 + 130 * n, 1 + n % 2), (16_000, 11_025)[n % 3 == 0], *FORMS[n % 4])
        for n in range(rows)
    ]


def table(rows: int = ROWS, atom_rows: int = 7) -> dml.Dataset:
    distinct = encoded(min(rows, ROWS))
    values = [distinct[n % ROWS] for n in range(rows)]
    made = pa.table({"k": range(rows), "audio": pa.array(values, pa.binary())})
    return dml.from_arrow(made, atom_rows=atom_rows)


def features(name: str = "audio") -> Any:
    sound = col(name).audio.decode(RATE).random_slice(0.2).random_gain(6).random_noise((5, 20))
    return sound.mel(20, n_fft=128, hop_length=64, log="db").random_mask(4, 4)


# ------------------------------------------------------------------------- as the libraries do


def plainly(data: bytes) -> np.ndarray:
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    total = samples[:, 0] if samples.shape[1] == 1 else samples[:, 0] + samples[:, 1]
    sound = total if samples.shape[1] == 1 else total / np.float32(2)
    found: np.ndarray = soxr.resample(sound, rate, RATE, quality="HQ")
    return found


def test_rows_and_batches_are_what_a_function_over_the_libraries_gives() -> None:
    rows = amount(ROWS, 10_000)
    ds = table(rows, 64).with_columns(sound=col("audio").audio.decode(RATE)).with_options(**QUIET)
    wanted = [plainly(data).tobytes() for data in encoded(ROWS)]
    for number, row in enumerate(ds.epoch(0)):
        assert row["sound"].tobytes() == wanted[number % ROWS]
    assert number == rows - 1
    number = 0
    for batch in ds.batch(9).epoch(0):
        for sound in batch["sound"]:
            assert sound.tobytes() == wanted[number % ROWS]
            number += 1
    assert number == rows


# ------------------------------------------------------------------------------ however it is run

PLACES: dict[str, Callable[[dml.Dataset], dml.Dataset]] = {
    "read": lambda ds: ds.with_columns(audio=features()),
    "in steps": lambda ds: (
        ds.with_columns(audio=col("audio").audio.decode(RATE))
        .filter(col("k") >= 0)
        .with_columns(audio=col("audio").audio.random_slice(0.2, rate=RATE))
        .with_columns(audio=col("audio").audio.mel(20, rate=RATE, n_fft=128, hop_length=64))
    ),
    "over a shuffle": lambda ds: ds.shuffle(seed=2).with_columns(audio=features()),
    "below a shuffle": lambda ds: ds.with_columns(audio=features()).shuffle(20, seed=2),
    "after a cache": lambda ds: ds.cache().with_columns(audio=features()),
    "before a cache": lambda ds: ds.with_columns(audio=features()).cache(),
    "of lengths": lambda ds: ds.filter(col("audio").audio.duration() > 0.15).with_columns(
        audio=features()
    ),
    "twice": lambda ds: ds.repeat(2).with_columns(audio=features()),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("name", PLACES)
def test_every_executor_makes_the_same_bytes(name: str, executor: str) -> None:
    rows = 0 if "shuffle" in name else ROWS
    check_executor(PLACES[name], table, "audio", executor, rows)


def test_one_step_or_several_give_the_same_bytes() -> None:
    sound = col("audio").audio.decode(RATE, mono=False).slice(0.01, 0.1)
    noise = col("audio").audio.decode(RATE).pad_or_trim(0.05)
    at_once = table().with_columns(audio=sound.mix_noise(noise, 5.0).spectrogram(64, 32))
    steps = table().with_columns(noise=noise, audio=sound)
    steps = steps.with_columns(
        audio=col("audio").audio.mix_noise(col("noise"), 5.0), n=col("audio")
    )
    steps = steps.with_columns(audio=col("audio").audio.spectrogram(64, 32))
    one, other = (
        [row["audio"].tobytes() for row in ds.with_options(**QUIET).epoch(0)]
        for ds in (at_once, steps)
    )
    assert one == other


def test_epochs_differ_and_each_is_the_same_again() -> None:
    ds = table().with_columns(audio=features()).batch(8).with_options(**QUIET)
    assert bytes_of(ds, "audio", 0) == bytes_of(ds, "audio", 0)
    assert not set(bytes_of(ds, "audio", 0)) & set(bytes_of(ds, "audio", 1))


@pytest.mark.parametrize("name", ["read", "over a shuffle", "twice"])
@pytest.mark.parametrize("taken", [1, 4])
def test_a_run_goes_on_where_it_was_left(name: str, taken: int) -> None:
    check_resumed(PLACES[name](table()), "audio", taken)


@pytest.mark.parametrize("name", ["read", "over a shuffle", "twice"])
def test_sounds_are_made_in_slices_wherever_they_stand(name: str) -> None:
    check_slices(PLACES[name](table()))


def test_draws_of_one_expression_are_independent() -> None:
    sound = col("audio").audio.decode(RATE)
    parts = {
        "one": sound.random_slice(0.01),
        "other": sound.random_slice(0.01, seed=3),
        "gain": sound.random_gain(6),
        "noise": sound.random_noise(),
        "mask": sound.spectrogram(64, 32).random_mask(4, 4),
    }
    draws = {
        (value.params, name)
        for name, part in parts.items()
        for value in walk((part.value,))
        if value.op == "random"
    }
    assert len({params for params, _ in draws}) == len(draws) == len(parts)


# ---------------------------------------------------------------------------------- what goes wrong


def folder(path: Path) -> Path:
    for name, data in (
        ("yes/a.wav", saved(clip(1, 900), 8_000)),
        ("yes/b.FLAC", saved(clip(2, 800), 8_000, "FLAC")),
        ("no/c.ogg", b"OggS, but broken"),
        ("no/d.mp3", saved(clip(3, 5_000), 16_000, "MP3", None)),
        ("no/notes.txt", b"no sound"),
    ):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    return path


def test_files_are_rows_with_labels(tmp_path: Path) -> None:
    ds = dml.read_audio(folder(tmp_path), label={"yes": 1, "no": 0})
    assert list(ds.schema) == ["path", "label", "audio"]
    rows = list(ds.epoch(0))
    assert [row["path"] for row in rows] == ["no/c.ogg", "no/d.mp3", "yes/a.wav", "yes/b.FLAC"]
    assert [row["label"] for row in rows] == [0, 0, 1, 1]
    with pytest.raises(SourceError, match="audio"):
        dml.read_audio(Path(__file__).parent)


def test_a_broken_sound_is_named_or_null(tmp_path: Path) -> None:
    ds = dml.read_audio(folder(tmp_path)).with_columns(audio=col("audio").audio.decode(RATE))
    with pytest.raises(CastError, match=r"decode refuses the sound[\s\S]*c\.ogg") as caught:
        list(ds.with_options(**QUIET).epoch(0))
    assert "on_error='null'" in str(caught.value)
    ds = dml.read_audio(tmp_path).with_columns(
        audio=col("audio").audio.decode(RATE, on_error="null"),
        seconds=col("audio").audio.duration(on_error="null"),
    )
    rows = list(ds.epoch(0))
    assert [row["audio"] is None for row in rows] == [True, False, False, False]
    assert [row["seconds"] is None for row in rows] == [True, False, False, False]
    assert [len(row["audio"]) for row in rows[2:]] == [900, 800]
    assert len(list(ds.drop_nulls("audio").epoch(0))) == 3


def test_structs_of_hugging_face_are_encoded_sounds() -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    data = saved(clip(1, 500), 8_000)
    cells = pa.array([{"bytes": data, "path": "a.wav"}, None, {"bytes": None, "path": "b"}], kind)
    ds = dml.from_arrow(pa.table({"audio": cells}))
    made = ds.with_columns(audio=col("audio").audio.decode(None))
    first = next(iter(made.take(2).with_options(**QUIET).epoch(0)))
    assert (
        first["audio"].tobytes() == soundfile.read(io.BytesIO(data), dtype="float32")[0].tobytes()
    )
    with pytest.raises(CastError, match="the path of a file, which is not opened"):
        list(made.with_options(**QUIET).epoch(0))
    nulls = ds.with_columns(audio=col("audio").audio.decode(8_000, on_error="null"))
    assert [row["audio"] is None for row in nulls.epoch(0)] == [False, True, True]


def test_a_schema_knows_lengths_where_they_are_known() -> None:
    sound = col("audio").audio.decode(RATE)
    ds = table().select(
        mono=sound,
        channels=col("audio").audio.decode(mono=False),
        cut=sound.slice(0.1),
        exact=sound.pad_or_trim(0.5),
        mel=sound.random_slice(0.5).mel(40, n_fft=256, hop_length=100),
        open=sound.spectrogram(256, 100),
        info=col("audio").audio.info(),
        seconds=col("audio").audio.duration(),
    )
    text = str(ds.schema)
    for part in ("mono: f4[?]", "channels: f4[?,?]", "cut: f4[?]", "exact: f4[4000]"):
        assert part in text
    for part in ("mel: f4[40,41]", "open: f4[129,?]", "frames: int64", "seconds: double"):
        assert part in text
    batch = next(iter(ds.select("mel").batch(5).with_options(**QUIET).epoch(0)))
    assert batch["mel"].shape == (5, 40, 41)


def test_another_library_is_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    before = table().with_columns(audio=features()).fingerprint()
    other = {
        name: dataclasses.replace(function, tool=lambda: "soxr=0.1")
        if name.startswith("audio.")
        else function
        for name, function in functions().items()
    }
    monkeypatch.setattr("dml.kernels.functions.table.functions", lambda: other)
    assert before != table().with_columns(audio=features()).fingerprint()


def test_a_notebook_plays_sounds() -> None:
    html = row_text.FirstRows(table(4).to_arrow())._repr_html_()
    assert html.count("<audio controls") == 4
    structs = pa.table({"a": pa.array([{"bytes": saved(clip(1, 50), 8_000), "path": "a"}])})
    assert "<audio controls" in row_text.FirstRows(structs)._repr_html_()
    for mime in ("audio/wav", "audio/flac", "audio/ogg", "audio/mpeg"):
        assert f"data:{mime};base64," in html
    large = pa.table({"audio": [b"RIFF0000WAVE" + bytes(row_text.MOST_SOUND)]})
    assert "<audio" not in row_text.FirstRows(large)._repr_html_()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda a: a.decode(0), "rate of decode"),
        (lambda a: a.decode("16k"), "rate of decode"),
        (lambda a: a.decode(16_000, mono="yes"), "mono"),
        (lambda a: a.decode(offset=-1), "offset"),
        (lambda a: a.decode(on_error="skip"), "on_error"),
        (lambda a: a.decode().mel(), "the rate of the sound is not known to mel"),
        (lambda a: a.decode().slice(0.1), "the rate of the sound is not known to slice"),
        (lambda a: a.decode(8_000).mel(f_max=5_000), "frequencies from 0 to 4000 Hz"),
        (lambda a: a.decode(8_000).mel(log="decibel"), "log of mel"),
        (lambda a: a.decode(8_000).mel(0), "n_mels"),
        (lambda a: a.decode(8_000).spectrogram(n_fft=1), "n_fft"),
        (lambda a: a.decode(8_000).spectrogram(win_length=500), "win_length"),
        (lambda a: a.decode(8_000).spectrogram(power=0), "power of spectrogram"),
        (lambda a: a.decode(8_000).pad_or_trim(0), "samples of pad_or_trim"),
        (lambda a: a.decode(8_000).mix_noise("noise.wav"), "a column of sounds"),
        (lambda a: a.decode(8_000).gain("loud"), "decibels of gain"),
        (lambda a: a.decode(8_000).random_noise((20, 10)), "snr of random_noise"),
        (lambda a: a.decode(8_000).mel().random_mask(-1), "time of random_mask"),
        (lambda a: a.decode(8_000).slice(1e308), "offset"),
        (lambda a: a.decode(duration=1e308), "duration"),
        (lambda a: a.decode(8_000).pad_or_trim(1e30), "duration of pad_or_trim"),
        (lambda a: a.decode(8_000).mel().random_mask(3, fill=1e300), "fill of random_mask"),
        (lambda a: a.decode(8_000).mel(log=np.array(["db"])), "log of mel"),
        (lambda a: a.decode(8_000).mel().pad_or_trim(1.0), "pad_or_trim takes a sound"),
        (lambda a: a.decode(8_000).mel().mel(), "mel takes a sound"),
        (lambda a: a.decode(8_000).spectrogram().gain(3), "gain takes a sound"),
        (lambda a: a.decode(8_000).mel().random_mask(3).resample(9_000), "resample takes a sound"),
        (lambda a: a.decode(8_000).mel().random_noise(), "random_noise takes a sound"),
        (lambda a: a.decode(8_000).mel().spectrogram(), "spectrogram takes a sound"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(
    call: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        call(col("audio").audio)


def test_functions_of_samples_name_decode() -> None:
    with pytest.raises(SchemaError, match=r"audio\.mel needs decoded sounds[\s\S]*\.audio\.decode"):
        table().with_columns(audio=col("audio").audio.mel(rate=RATE))
    sound = col("audio").audio.decode(RATE).pad_or_trim(0.01)
    with pytest.raises(SchemaError, match="a window of 400 samples does not fit"):
        table().with_columns(audio=sound.mel(center=False))


def test_noise_that_is_not_decoded_names_decode() -> None:
    sound = col("audio").audio.decode(RATE)
    with pytest.raises(SchemaError, match=r"needs sounds of one channel[\s\S]*\.audio\.decode"):
        table().with_columns(audio=sound.mix_noise(col("audio")))


def test_lengths_are_counted_and_padded() -> None:
    mel = col("audio").audio.decode(RATE).mel(8, n_fft=64, hop_length=32)
    ds = table().with_columns(mel=mel).with_columns(n=col("mel").audio.length())
    ds = ds.select("k", "mel", "n").with_options(**QUIET)
    rows = {row["k"]: row["mel"] for row in ds.epoch(0)}
    made = ds.bucket_by_length("n", [60, 120], 8, padding_values={"mel": -1.0})
    seen = 0
    for batch in made.epoch(0):
        assert batch["mel"].shape == (len(batch["n"]), 8, batch["n"].max())
        for k, n, found in zip(batch["k"], batch["n"], batch["mel"], strict=True):
            assert np.array_equal(found[:, :n], rows[k])
            assert (found[:, n:] == -1).all()
            seen += 1
    assert seen == ROWS


def test_what_is_too_loud_is_infinite() -> None:
    sound = col("audio").audio.decode(RATE).slice(0.01, 0.01)
    ds = table(3).with_columns(
        a=sound.gain(1e4), b=sound.gain(col("k") * 1e4), c=sound.mix_noise(sound, -1e5)
    )
    for row in ds.with_options(**QUIET).epoch(0):
        assert not np.isfinite(row["a"]).all()
        assert np.isfinite(row["b"]).all() == (row["k"] == 0)
        assert not np.isfinite(row["c"]).all()


def test_what_says_only_what_is_refused_changes_no_draw() -> None:
    one, other = (
        table(4).with_columns(audio=decoded.random_slice(0.05)).with_options(**QUIET)
        for decoded in (
            col("audio").audio.decode(RATE),
            col("audio").audio.decode(RATE, max_samples=10**6, on_error="null"),
        )
    )
    assert bytes_of(one.batch(4), "audio") == bytes_of(other.batch(4), "audio")


def test_lists_of_functions_are_sounds() -> None:
    ds = table().with_columns(audio=col("audio").audio.decode(RATE))
    listed = ds.map(lambda row: {"audio": row["audio"][::2].copy()})
    kept = ds.map(lambda row: {**row, "audio": row["audio"][::2].copy()}, schema=ds.schema)
    sound = col("audio").audio.gain(6).audio.spectrogram(64, 32)
    one, other = (
        [
            row["audio"].tobytes()
            for row in made.with_columns(audio=sound).with_options(**QUIET).epoch(0)
        ]
        for made in (listed, kept)
    )
    assert one == other
    assert isinstance(next(iter(kept.with_options(**QUIET).epoch(0)))["audio"], np.ndarray)


def test_an_offset_without_a_meaning_is_an_error_of_its_row() -> None:
    sound = col("audio").audio.decode(RATE).slice(col("k") * -1.0)
    with pytest.raises(CastError, match=r"row 1\n  why   its offset is -1\.0"):
        list(table().with_columns(audio=sound).with_options(**QUIET).epoch(0))
