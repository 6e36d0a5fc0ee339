"""Arguments of image functions are checked here: sizes, ranges, colours, names of filters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dml.errors import PlanError
from dml.expr.columns.literal import plain, whole
from dml.kernels.images.codec import LONGEST

FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
# Most letters of a wrong value in an error.
MOST_SHOWN = 60


def finite(what: str, given: Any) -> float:
    """Return ``given``; raise PlanError, which calls it ``what``, unless it is a finite number."""
    found = plain(given)
    if type(found) not in (int, float) or not math.isfinite(found):
        raise PlanError(
            f"{what} is {given!r}",
            why=f"it is of type {type(given).__name__}",
            try_="a finite number",
        )
    return float(found)


def around(most: Any) -> tuple[float, float]:
    """Return the range from minus ``most`` to ``most``."""
    found = finite("the amount", most)
    if found < 0:
        raise odd("the amount", most, "a number of at least 0, or (low, high)")
    return -found, found


def is_range(given: Any) -> bool:
    """Return whether ``given`` is a list or tuple, as (low, high)."""
    return isinstance(given, list | tuple)


def header_of(max_pixels: Any, on_error: Any, exif_transpose: Any) -> tuple[int, str, bool]:
    """Return the arguments of functions that read headers of files."""
    if not isinstance(exif_transpose, bool | np.bool_):
        raise odd("exif_transpose", exif_transpose, "True or False")
    return (
        whole("max_pixels", max_pixels, 1),
        one_of("on_error", on_error, ("raise", "null")),
        bool(exif_transpose),
    )


def odd(what: str, given: Any, wanted: str) -> PlanError:
    """Return the error for an argument ``what`` that is not ``wanted``."""
    text = repr(given)
    shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return PlanError(f"{what} is {shown}", why="it has no meaning there", try_=wanted)


def one_of(what: str, given: Any, names: tuple[str, ...]) -> str:
    """Return ``given``; raise PlanError unless it is one of ``names``."""
    if isinstance(given, str) and given in names:
        return given
    raise odd(what, given, f"one of {', '.join(map(repr, names))}")


def size_of(verb: str, height: Any, width: Any) -> tuple[int, int]:
    """Return height and width; a square without a width, and both from a pair."""
    if isinstance(height, list | tuple) and len(height) == 2 and width is None:
        height, width = height
    wide = height if width is None else width
    return (
        whole(f"height of {verb}", height, 1, LONGEST),
        whole(f"width of {verb}", wide, 1, LONGEST),
    )


def filter_of(name: Any, antialias: Any) -> tuple[str, bool]:
    """Return the name of a filter, and whether it antialiases; only bilinear has a choice."""
    if not antialias and name != "bilinear":
        raise PlanError(
            f"resize without antialias has no filter {name!r}",
            why="it takes the four nearest pixels, which is bilinear",
            try_='filter="bilinear", or antialias=True',
        )
    return one_of("filter", name, FILTERS), bool(antialias)


def numbers(what: str, given: Any) -> tuple[float, ...]:
    """Return a number, or one for each channel, as a tuple."""
    given = given.tolist() if isinstance(given, np.ndarray) else given
    values = given if isinstance(given, list | tuple) else (given,)
    if not values:
        raise odd(what, given, "a number, or one for each channel")
    return tuple(finite(what, each) for each in values)


def interval(what: str, given: Any, least: float | None = None) -> tuple[float, float]:
    """Return (low, high), both greater than ``least`` if that is given."""
    found = numbers(what, given)
    if len(found) != 2 or found[0] > found[1] or (least is not None and found[0] <= least):
        raise odd(what, given, "(low, high)" if least is None else "(low, high), both positive")
    return found[0], found[1]


def box_of(given: Any) -> tuple[float, ...]:
    """Return a box (left, upper, right, lower) that is not empty."""
    found = numbers("box of resize", given)
    if len(found) != 4 or min(found[:2]) < 0 or found[0] >= found[2] or found[1] >= found[3]:
        raise odd("box of resize", given, "(left, upper, right, lower), in pixels")
    return found


def colour(given: Any) -> tuple[int, ...]:
    """Return a colour: one whole number from 0 to 255, or one for each channel."""
    values = given if isinstance(given, list | tuple) else (given,)
    if not values:
        raise odd("fill", given, "a number from 0 to 255, or one for each channel")
    return tuple(whole("fill", each, 0, 255) for each in values)


def probability(p: Any) -> float:
    """Return a number from 0 to 1."""
    found = finite("p", p)
    if not 0 <= found <= 1:
        raise odd("p", p, "a probability from 0 to 1")
    return found


def are_bytes(values: np.ndarray) -> bool:
    """Return True if all ``values`` are from 0 to 255."""
    return bool(values.min() >= 0 and values.max() <= 255)
