"""Compare every function of the table with its definition, over all types of values."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from PIL import Image

from dml.api.dataset import Dataset
from dml.base.open_tensors import OpenTensor, column_of
from dml.data.schema import Schema
from dml.errors import DmlError, SchemaError
from dml.expr.columns.column import col
from dml.expr.columns.typing import type_of
from dml.kernels.functions.table import functions
from dml.testing.equality import difference
from dml.testing.executions import PLAIN, elements, outcome
from dml.testing.functions.table import MEANINGS
from dml.testing.oracle import Oracle
from dml.testing.oracle_types import typed
from dml.testing.strategies_data import VALUES
from tests.expr.checks import UNUSED, node_of, table
from tests.kernels.video.movies import movie

SAMPLE, CASES, ROWS = 20, 40, 12
LISTED = (pa.string(), pa.int32(), pa.float64(), pa.bool_(), pa.uint8())
TENSORS = (pa.fixed_shape_tensor(pa.float32(), (2, 3)), pa.fixed_shape_tensor(pa.int64(), (4,)))
IMAGES = (
    OpenTensor(pa.uint8(), (None, None, 3)),
    OpenTensor(pa.uint8(), (None, None, 1)),
    OpenTensor(pa.uint8(), (None, None, 4)),
    pa.fixed_shape_tensor(pa.uint8(), (5, 6, 3)),
    pa.fixed_shape_tensor(pa.uint8(), (7, 4, 1)),
)
SOUNDS = (
    pa.list_(pa.float32()),
    OpenTensor(pa.float32(), (None,)),
    pa.fixed_shape_tensor(pa.float32(), (9,)),
    OpenTensor(pa.float32(), (None, None)),
    pa.fixed_shape_tensor(pa.float32(), (2, 7)),
    OpenTensor(pa.float32(), (None, 3, None)),
)
BOXES = (pa.list_(pa.list_(pa.float64())), pa.list_(pa.list_(pa.int16())))
BYTES = (pa.binary(), pa.large_binary())
NUMBERS = (0.0, -0.0, 1.5, float("nan"), -2.0)


def value(draw: random.Random, kind: pa.DataType) -> Any:
    """One value, which may be null."""
    if draw.random() < 0.15:
        return None
    if kind in BOXES:
        inner = kind.value_type
        sides = 4 if draw.random() < 0.97 else 3
        return [
            [draw.uniform(-9, 30) if inner == BOXES[0].value_type else draw.randint(-9, 30)
             for _ in range(sides)]
            for _ in range(draw.randint(0, 3))
        ]  # fmt: skip
    if pa.types.is_list(kind) and kind.value_type in LISTED:
        return [value(draw, kind.value_type) for _ in range(draw.randint(0, 4))]
    if pa.types.is_fixed_size_list(kind):
        return [value(draw, kind.value_type) for _ in range(kind.list_size)]
    if pa.types.is_struct(kind):
        return {field.name: value(draw, field.type) for field in kind}
    if kind in BYTES and draw.random() < 0.8:
        return draw.choice([picture, sound, film])(draw)
    if pa.types.is_date(kind):
        return VALUES[pa.timestamp("us")](draw).date()
    return VALUES[kind](draw)


def pixels(draw: random.Random, height: int, width: int, channels: int) -> np.ndarray:
    return np.frombuffer(draw.randbytes(height * width * channels), np.uint8).reshape(
        height, width, channels
    )


def picture(draw: random.Random) -> bytes:
    """An encoded image, of which some end too early."""
    array = pixels(draw, draw.randint(1, 9), draw.randint(1, 9), draw.choice([1, 3, 4]))
    target = io.BytesIO()
    image = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    way = draw.choice(["PNG", "JPEG", "GIF", "BMP"])
    image = image.convert("RGB") if way == "JPEG" and image.mode == "RGBA" else image
    image.save(target, way)
    found = target.getvalue()
    return found[: len(found) // 2] if draw.random() < 0.1 else found


def sound(draw: random.Random) -> bytes:
    """An encoded sound, of which some end too early."""
    samples = samples_of(draw, (draw.randint(1, 40), draw.choice([1, 1, 2, 3])))
    samples = np.nan_to_num(samples, posinf=1.0)
    target = io.BytesIO()
    form, kind = draw.choice(
        [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_24"), ("AIFF", "PCM_U8"), ("OGG", None)]
    )
    soundfile.write(target, samples, draw.choice([8000, 11025]), format=form, subtype=kind)
    found = target.getvalue()
    return found[: len(found) // 2] if draw.random() < 0.1 else found


def film(draw: random.Random) -> bytes:
    """An encoded video, of which some are damaged."""
    found = movie(draw.choice(["h264", "vp9", "mpeg2", "mpeg4"]), draw.choice([1, 12]), (48, 64))
    place = draw.randrange(len(found))
    return found[:place] + b"\0" + found[place + 1 :] if draw.random() < 0.2 else found


def samples_of(draw: random.Random, shape: Sequence[int]) -> np.ndarray:
    odd = [0.0, 1.0, -1.0] if draw.random() < 0.9 else [0.0, float("nan"), float("inf")]
    size = int(np.prod(shape))
    found = [draw.choice([draw.uniform(-1, 1), draw.choice(odd)]) for _ in range(size)]
    return np.array(found, np.float32).reshape(shape)


def column(draw: random.Random, kind: pa.DataType) -> pa.Array:
    """Rows of a type."""
    if kind == pa.list_(pa.float32()):
        cells = [samples_of(draw, (draw.randint(0, 12),)).tolist() for _ in range(ROWS)]
        return pa.array([draw.choice([cell, cell, None, [*cell, None]]) for cell in cells], kind)
    if kind in SOUNDS:
        shapes = [
            [draw.randint(0, 12) if n is None else n for n in kind.shape] for _ in range(ROWS)
        ]
        arrays = [None if draw.random() < 0.1 else samples_of(draw, shape) for shape in shapes]
        if isinstance(kind, OpenTensor):
            return column_of(arrays, kind)
        cells = [None if array is None else array.reshape(-1).tolist() for array in arrays]
        return pa.ExtensionArray.from_storage(kind, pa.array(cells, kind.storage_type))
    if kind in IMAGES:
        height, width, channels = kind.shape
        arrays = [
            None
            if draw.random() < 0.1
            else pixels(draw, height or draw.randint(1, 9), width or draw.randint(1, 9), channels)
            for _ in range(ROWS)
        ]
        if isinstance(kind, OpenTensor):
            return column_of(arrays, kind)
        cells = [None if array is None else array.reshape(-1).tolist() for array in arrays]
        return pa.ExtensionArray.from_storage(kind, pa.array(cells, kind.storage_type))
    if not isinstance(kind, pa.FixedShapeTensorType):
        return pa.array([value(draw, kind) for _ in range(ROWS)], kind)
    size = kind.storage_type.list_size
    cells = [
        None if draw.random() < 0.1 else [draw.choice(NUMBERS) for _ in range(size)]
        for _ in range(ROWS)
    ]
    if pa.types.is_integer(kind.value_type):
        cells = [c and [draw.randint(-9, 9) for _ in c] for c in cells]
    return pa.ExtensionArray.from_storage(kind, pa.array(cells, kind.storage_type))


KINDS = {
    **{f"v{i}": kind for i, kind in enumerate(VALUES)},
    **{f"l{i}": pa.list_(kind) for i, kind in enumerate(LISTED)},
    **{f"t{i}": kind for i, kind in enumerate(TENSORS)},
    **{f"i{i}": kind for i, kind in enumerate(IMAGES)},
    **{f"s{i}": kind for i, kind in enumerate(SOUNDS)},
    **{f"b{i}": kind for i, kind in enumerate(BOXES)},
    "w": pa.list_(pa.int64(), 2),
    "d": pa.date32(),
    "m": pa.struct([("x", pa.int64()), ("y", pa.string())]),
}
SCHEMA = Schema(KINDS)


def test_every_function_has_a_meaning() -> None:
    assert set(functions()) == set(MEANINGS)


@pytest.mark.sample(40)
@pytest.mark.law
@pytest.mark.parametrize("name", sorted(MEANINGS))
def test_functions_mean_what_they_do(name: str, whole: bool) -> None:
    meaning, done, cases = MEANINGS[name], 0, CASES if whole else SAMPLE
    names = [each for each, kind in KINDS.items() if meaning.takes(kind)]
    for number in range(cases):
        draw = random.Random(f"{name} {number}")
        taken = draw.choice(names)
        made = meaning.drawn(draw, col(taken))
        try:
            wanted = typed(made.value, KINDS).kind
        except SchemaError:
            continue
        done += 1
        ds = table({taken: column(draw, KINDS[taken])}).with_columns(r=made).select("r")
        assert ds.schema["r"] == wanted, made
        same(ds)
    assert done > cases // 10


def same(ds: Dataset) -> None:
    """The engine gives what the oracle says, also where that is an error."""
    wanted = outcome(Oracle(node_of(ds)).elements())
    found = outcome(elements(node_of(ds), PLAIN, UNUSED))
    assert difference(found, wanted, optimized=True) == "", ds


@pytest.mark.law
@pytest.mark.parametrize("name", sorted(MEANINGS))
def test_what_is_refused_is_refused_by_both(name: str) -> None:
    for number, (taken, kind) in enumerate(KINDS.items()):
        draw = random.Random(f"{name} {number}")
        made = MEANINGS[name].drawn(draw, col(taken)).value
        wanted = known(lambda value, kinds: typed(value, kinds).kind, made, KINDS)
        assert known(type_of, made, SCHEMA) == wanted, (made, kind)


def known(ask: Callable[..., pa.DataType], *given: Any) -> str:
    """The type, or that there is none."""
    try:
        return str(ask(*given))
    except DmlError:
        return "refused"
