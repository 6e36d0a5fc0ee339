"""Test properties of every function of the table: rows are independent, slices, literals."""

from __future__ import annotations

import datetime as dt
import io
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from PIL import Image

from dml.base.open_tensors import OpenTensor, column_of
from dml.data.block import from_arrow
from dml.data.schema import code_of
from dml.kernels.functions.function import NoSuchElementFailure
from dml.kernels.functions.table import functions, may_fail
from dml.kernels.interpreter import ElementProgram, run
from dml.kernels.program import Program, Step
from dml.kernels.vec import Vec
from tests.kernels.video.movies import movie

# Parameters and, where there are some, further arguments.
GIVEN: dict[str, tuple[Any, ...]] = {
    "str.strip_chars": ("a",),
    "str.strip_chars_start": (None,),
    "str.strip_chars_end": ("a ",),
    "str.starts_with": ("a",),
    "str.ends_with": ("c",),
    "str.contains": ("a.", False),
    "str.replace": ("a", "x", True, None),
    "str.slice": (-2, 1),
    "str.split": (" ",),
    "str.zfill": (4,),
    "str.pad_start": (4, " "),
    "str.pad_end": (4, " "),
    "str.concat": ("-",),
    "list.get": (0, True),
    "list.slice": (1, 1),
    "list.join": ("-", True),
    "dt.epoch": ("ns",),
    "struct.field": ("y",),
    "struct.rename_fields": ("u", "v"),
    "str.tokenize_words": ("[^a-z]+",),
    "str.ngrams": (1, 2),
    "list.ngrams": (1, 2, " "),
    "str.extract": ("(.)", 1),
    "str.count_matches": ("a", True),
    "str.to_integer": (False,),
    "str.to_float": (False,),
    "str.to_datetime": ("%Y", False),
    "str.to_date": ("%Y", False),
    "list.sort": (True,),
    "dt.truncate": (7, "h"),
    "dt.strftime": ("%d.%m.%Y",),
    "tensor.reshape": ((1, -1),),
    "tensor.transpose": (None,),
    "tensor.flip": ((0,),),
    "tensor.pad": (((1, 0), (0, 1)), (0,)),
    "tensor.crop": ((1, 1), None),
    "tensor.sum": ((0,),),
    "tensor.mean": (None,),
    "list.to_tensor": (2, (0,), True),
    "list.eval": (
        ElementProgram(("i8",), (Step("add", (0, 0), "i8"),), (1,)),
        pa.int64(),
        False,
    ),
    "python.call": ("str", "s"),
    ".one_hot": (3, pa.float32()),
    ".multi_hot": (4, pa.uint8()),
    ".replace": (("a c", ""), ("x", None)),
    ".replace_strict": (("a c", ""), ("x", None), pa.string(), (None,)),
    ".lookup": (("a c", ""), -1, 2),
    "list.lookup": (("a", "c"), None, 0),
    "image.decode": ("RGB", 100, "raise", False),
    "image.size": (100, "raise", False),
    "image.crop": (0, 1, 2, 1),
    "image.center_crop": (2, 2),
    "image.random_crop": (2, 1),
    "image.random_crop_box": (2, 1, 100, "raise", False),
    "image.random_resized_crop": (2, 3, (0.1, 1.0), (0.7, 1.5), "bilinear", True),
    "image.random_resized_crop_box": (
        *(2, 3, (0.1, 1.0), (0.7, 1.5), "bilinear", True),
        *(100, "raise", False),
    ),
    "image.resize": (2, 2, "lanczos", True, None),
    "image.pad": ((1, 0, 2, 1), (7,)),
    "image.flip": ("horizontal",),
    "image.rotate": (30.0, "bilinear", False, (0,)),
    "image.affine": ((1.0, 0.1, 0.0, 0.0, 1.0, 0.0), "nearest", (0,)),
    "image.random_erasing": (1.0, (0.1, 0.5), (0.5, 2.0), (9,)),
    **dict.fromkeys(("image.brightness", "image.contrast", "image.saturation"), (1.5,)),
    "image.hue": (0.25,),
    "image.gray": (1,),
    "image.lut": (bytes(range(255, -1, -1)),),
    "image.blur": (1.0,),
    "image.enhance": ("equalize",),
    "image.encode": ("png", 75),
    "image.normalize": ((0.5,), (0.25,), "CHW"),
    "boxes.resize": (10, 20),
    "boxes.flip": (9,),
    "audio.decode": (8000, True, 0.0, None, 1000, "raise"),
    "audio.info": ("raise",),
    "audio.resample": (16000, 8000),
    "audio.slice": (10, None, 0.2),
    **dict.fromkeys(("audio.pad_or_trim", "audio.random_slice"), (3,)),
    "audio.add_noise": (5.0, 20.0),
    "audio.spectrogram": ((4, 2, 4, "hann", True), 2.0, "db"),
    "audio.mel": ((4, 2, 4, "hann", True), 2.0, None, (3, 8000, 0.0, 4000.0, "htk", None)),
    "audio.random_mask": (2, 2, 1, 0.0),
    "video.info": ("raise",),
    "video.frames": ("count", 2, None, False, 1 << 20, "raise"),
    "video.random_frames": (2, 3, None, False, 1 << 20, "raise"),
}
ITEMS = {
    pa.list_(pa.int64()): pa.array([1, 1, None, 3, 5, 6]),
    pa.list_(pa.string()): pa.array(["a", "a", None, "a", "c", "e"]),
}
DRAWS = pa.array([0.1, 0.2, 0.3, 0.9, 0.5, 0.6])
BOXES, SIZES = (pa.fixed_shape_tensor(pa.int64(), (n,)) for n in (4, 2))
OTHERS: dict[str, pa.Array] = {
    **dict.fromkeys(("image.random_crop", "image.random_crop_box"), DRAWS),
    **dict.fromkeys(("image.random_resized_crop", "image.random_resized_crop_box"), DRAWS),
    **dict.fromkeys(("image.random_erasing", "image.blur", "image.hue"), DRAWS),
    **dict.fromkeys(("image.flip", "boxes.flip"), pa.array([True, False] * 3)),
    **dict.fromkeys((f"audio.{n}" for n in ("slice", "random_slice", "gain")), DRAWS),
    **dict.fromkeys((f"audio.{n}" for n in ("add_noise", "random_mask")), DRAWS),
    "video.random_frames": DRAWS,
    "boxes.resize": pa.ExtensionArray.from_storage(
        SIZES, pa.array([[10, 20]] * 6, SIZES.storage_type)
    ),
    **dict.fromkeys(
        ("image.crop_box", "boxes.crop"),
        pa.ExtensionArray.from_storage(BOXES, pa.array([[0, 0, 2, 1]] * 6, BOXES.storage_type)),
    ),
}
# Functions with a further argument of the column's own type, or of its elements.
OPTIONAL = ("str.concat", "list.contains", "list.count_matches", "list.index")
TIME = dt.datetime(2020, 1, 2, 3, 4, 5)
# Functions of many types, whose parameters are given for one.
ONE: dict[str, pa.DataType] = {
    **dict.fromkeys((".replace", ".replace_strict", ".lookup"), pa.string()),
    "list.lookup": pa.list_(pa.string()),
    "list.eval": pa.list_(pa.int64()),
}
CLIPS = [np.linspace(-1, n / 9, n + 1, dtype=np.float32) for n in (3, 5, 8, 1)]
PIXELS = [np.full((h, w, 3), 40 * h + w, np.uint8) for h, w in ((2, 3), (4, 2), (3, 3), (2, 2))]


def encoded(array: np.ndarray) -> bytes:
    target = io.BytesIO()
    Image.fromarray(array).save(target, "PNG")
    return target.getvalue()


def recorded(samples: np.ndarray) -> bytes:
    target = io.BytesIO()
    soundfile.write(target, samples, 11025, format="FLAC")
    return target.getvalue()


DIGITS = pa.array(["2012", None, "2024", "2,5", "1e3", "-7"])
READING = ("str.to_integer", "str.to_float", "str.to_datetime", "str.to_date")
TENSOR = pa.fixed_shape_tensor(pa.float32(), (2, 1))
RECORDED = pa.array([recorded(CLIPS[0]), None, *map(recorded, CLIPS[1:]), recorded(CLIPS[1])])
FILMED = pa.array([movie(frames=9), None, *(movie(frames=n) for n in (1, 4, 7)), movie("vp9", 5)])
COLUMNS = (
    pa.array([2, None, 0, -1, 3, 1]),
    pa.ExtensionArray.from_storage(
        TENSOR, pa.array([[1, 2], None, *[[3, 4]] * 4], TENSOR.storage_type)
    ),
    pa.array(["a c", None, "", "é", "ab", "c a"]),
    DIGITS,
    pa.array([[1, 2], None, [], [3, None], [4], [5, 6, 7]], pa.list_(pa.int64())),
    pa.array([["a"], None, [], ["b", None], ["c"], ["d", "e"]]),
    pa.array([TIME, None, TIME, TIME, TIME, TIME], pa.timestamp("us")),
    pa.array([TIME.time(), None, *[TIME.time()] * 4], pa.time64("us")),
    column_of([PIXELS[0], None, *PIXELS[1:], PIXELS[0]], OpenTensor(pa.uint8(), (None, None, 3))),
    pa.array([encoded(PIXELS[0]), None, *map(encoded, PIXELS[1:]), encoded(PIXELS[1])]),
    column_of([CLIPS[0], None, *CLIPS[1:], CLIPS[0]], OpenTensor(pa.float32(), (None,))),
    RECORDED,
    FILMED,
    pa.array([[[0, 1, 2, 3]], None, [], [[1, 2, 3, 4], [5, 6, 7, 8]], [], [[0, 0, 1, 1]]]),
    pa.array([{"x": 1, "y": 2}, None, *[{"x": 3, "y": None}] * 4]),
)


def program(name: str, column: pa.Array) -> tuple[Program, list[pa.Array]]:
    function, params = functions()[name], GIVEN.get(name, ())
    kind = function.gives(column.type, params)
    code = code_of(kind)
    inputs = [column]
    if name in OTHERS:
        inputs.append(OTHERS[name])
    elif name == "audio.mix":
        inputs += [column, DRAWS]
    elif function.rest is not None and name in OPTIONAL:
        inputs.append(column if name == "str.concat" else ITEMS[column.type])
    places = tuple(range(len(inputs)))
    codes = tuple(code_of(i.type) for i in inputs)
    made = Program(codes, (Step(name, places, code, params),), (len(inputs),))
    return made, inputs


def computed(name: str, column: pa.Array, rows: slice) -> list[Any]:
    made, inputs = program(name, column)
    parts = [i[rows] for i in inputs]
    registers = [from_arrow(part) for part in parts]
    (found,) = run(made, registers, len(parts[0])).outputs
    if not isinstance(found, Vec):
        assert isinstance(found, pa.Array)
        assert found.type == functions()[name].gives(column.type, GIVEN.get(name, ()))
        return list(found.to_pylist())
    valid = np.ones(len(found.values), bool) if found.valid is None else found.valid
    return [v if ok else None for v, ok in zip(found.values.tolist(), valid, strict=True)]


def taken(name: str) -> list[pa.Array]:
    taken_by = [column for column in COLUMNS if functions()[name].takes.holds(column.type)]
    taken_by = [c for c in taken_by if (c is DIGITS) == (name in READING)]
    taken_by = [c for c in taken_by if (c is RECORDED) == (name in ("audio.decode", "audio.info"))]
    taken_by = [c for c in taken_by if (c is FILMED) == name.startswith("video.")]
    return [column for column in taken_by if column.type == ONE.get(name, column.type)]


@pytest.mark.parametrize("name", sorted(functions()))
def test_rows_are_computed_alone(name: str) -> None:
    assert taken(name)
    for column in taken(name):
        whole = computed(name, column, slice(None))
        assert whole[1] is None
        assert any(value is not None for value in whole)
        assert computed(name, column, slice(0, 0)) == []
        alone = [computed(name, column, slice(i, i + 1))[0] for i in range(len(column))]
        assert alone == whole
        assert computed(name, column, slice(2, 5)) == whole[2:5]


@pytest.mark.parametrize(
    "name", sorted(n for n, f in functions().items() if f.rest is None and not f.vectors)
)
def test_literals_are_computed_once(name: str) -> None:
    for column in taken(name):
        made, _ = program(name, column)
        step = made.steps[0]
        lit = Step("lit", (), "arrow", (column[0],))
        constant = Program((), (lit, Step(name, (0,), step.code, step.params)), (1,))
        (found,) = run(constant, [], 3).outputs
        values = found.values.tolist() if isinstance(found, Vec) else found.to_pylist()
        assert values == computed(name, column, slice(0, 1)) * 3


def test_what_may_fail_is_known() -> None:
    assert may_fail("list.get", (0, False))
    assert not may_fail("list.get", (0, True))
    assert not may_fail("str.len_chars", ())
    assert not may_fail("add", ())


def test_failures_name_the_row_and_travel() -> None:
    made = Program(("arrow",), (Step("list.get", (0,), "i8", (1, False)),), (1,))
    lists = pa.array([[1, 2], None, [3], []])
    with pytest.raises(NoSuchElementFailure) as caught:
        run(made, [lists], 4, np.array([1, 2, 3]))
    assert (caught.value.row, caught.value.value, caught.value.code) == (2, 1, "1")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, NoSuchElementFailure)
