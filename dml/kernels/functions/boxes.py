"""Functions of lists of boxes (left, top, right, bottom), which follow the images they mark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dml.base.arrow_types import is_list
from dml.kernels.functions.function import Function, Kinds, Params, UnfitFailure
from dml.kernels.functions.images import BOX, SIZE
from dml.kernels.vec import ARROW_TYPES, Register, Vec

SIDES = 4
SINGLE = frozenset(kind for code, kind in ARROW_TYPES.items() if code != "b1")


def _is_boxes(kind: pa.DataType) -> bool:
    return is_list(kind) and is_list(kind.value_type) and kind.value_type.value_type in SINGLE


BOXES = Kinds("lists of boxes, which are lists of four numbers", _is_boxes)


def _given(kind: pa.DataType, _params: Params) -> pa.DataType:
    """Return lists of lists of float32 for float32, else of float64."""
    return pa.list_(pa.list_(_element(kind)))


def _element(kind: pa.DataType) -> pa.DataType:
    return pa.float32() if kind.value_type.value_type == pa.float32() else pa.float64()


def _moved(
    name: str, change: Callable[[np.ndarray, np.ndarray, Params], np.ndarray]
) -> Callable[[Sequence[Register], Params], Any]:
    """Return ``Function.run``, which changes all boxes (m, 4), given their rows' arguments."""

    def run(columns: Sequence[Register], params: Params) -> pa.Array:
        lists, given = columns
        if isinstance(lists, Vec) or not isinstance(given, Vec):
            raise TypeError("boxes are lists, and their arguments numbers")
        present = lists.is_valid().to_numpy(zero_copy_only=False)
        present = present if given.valid is None else present & given.valid
        lengths = np.where(present, _lengths(lists), 0)
        kept = lists.filter(pa.array(present)).flatten()
        rows = np.repeat(np.arange(len(lists)), lengths)
        boxes = _numbers(kept, rows, name)
        arguments = given.values[rows]
        if name == "boxes.resize" and (arguments < 1).any():
            place = int(np.flatnonzero((arguments < 1).any(1))[0])
            text = f"their image has {arguments[place].tolist()} pixels"
            raise UnfitFailure(int(rows[place]), text, name)
        made = change(boxes, arguments, params)
        cells = pa.array(made.reshape(-1).astype(_element(lists.type).to_pandas_dtype()))
        inner = pa.array(np.arange(len(boxes) + 1, dtype=np.int32) * SIDES)
        outer = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
        each = pa.ListArray.from_arrays(inner, cells)
        return pa.ListArray.from_arrays(outer, each, mask=pa.array(~present))

    return run


def _lengths(lists: pa.Array) -> np.ndarray:
    from dml.kernels.arrow_ops import compute  # noqa: PLC0415 - few programs have boxes

    found: np.ndarray = compute().list_value_length(lists).fill_null(0).to_numpy()
    return found


def _numbers(boxes: pa.Array, rows: np.ndarray, name: str) -> np.ndarray:
    """Return all boxes as (m, 4) float64; raise UnfitFailure for one of other than four numbers."""
    wrong = np.flatnonzero(_lengths(boxes) != SIDES)
    flat = boxes.flatten()
    if not len(wrong) and flat.null_count:
        wrong = np.flatnonzero(~flat.is_valid().to_numpy(zero_copy_only=False)) // SIDES
    if len(wrong):
        text = f"{boxes[int(wrong[0])].as_py()} is not a box (left, top, right, bottom)"
        raise UnfitFailure(int(rows[wrong[0]]), text, name)
    found: np.ndarray = flat.to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, SIDES)
    return found


def crop(boxes: np.ndarray, parts: np.ndarray, _: Params) -> np.ndarray:
    """Move the boxes to a part (top, left, height, width), and cut them at its edges."""
    top, left, height, width = (parts[:, side, None] for side in range(SIDES))
    moved = boxes - np.hstack([left, top, left, top])
    found: np.ndarray = np.clip(moved, 0, np.hstack([width, height, width, height]))
    return found


def resize(boxes: np.ndarray, sizes: np.ndarray, params: Params) -> np.ndarray:
    """Scale the boxes of images of ``sizes`` (height, width) to the size of the parameters."""
    scale = np.array(params, np.float64) / sizes
    found: np.ndarray = boxes * np.hstack([scale[:, 1:], scale[:, :1]] * 2)
    return found


def flip(boxes: np.ndarray, where: np.ndarray, params: Params) -> np.ndarray:
    """Mirror the boxes in images of a width, in the rows of true flags."""
    (width,) = params
    mirrored = np.column_stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]])
    return np.where(where[:, None], mirrored, boxes)


def _function(name: str, change: Callable[..., np.ndarray], kind: pa.DataType) -> Function:
    return Function(
        f"boxes.{name}",
        BOXES,
        _given,
        _moved(f"boxes.{name}", change),
        lambda _: kind,
        lambda _: True,
        ("", "lists of (left, top, right, bottom)"),
        vectors=True,
    )


FUNCTIONS = (
    _function("crop", crop, BOX),
    _function("resize", resize, SIZE),
    _function("flip", flip, pa.bool_()),
)
