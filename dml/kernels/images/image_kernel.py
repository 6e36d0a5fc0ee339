"""One compiled kernel resamples an image, mirrors it, maps its values and writes them to a batch.

The kernel is driven by tables, so it serves all sizes, filters and layouts. Sums are in 32-bit
integers, as in Pillow, and a pass rounds to bytes, so both tiers and all processors give the same
bytes.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dml.kernels.images.resample_filters import SUPPORTS, Resize, vertical_first

if TYPE_CHECKING:
    from dml.kernels.compiled.codegen import KernelSource
    from dml.kernels.compiled.jit import Kernel

FILTERS = ("box", "bilinear", "hamming", "bicubic", "lanczos")

TEXT = """
HALF = np.int32(1 << 21)
WIDE, NARROW = np.float64(np.float32(0.54)), np.float64(np.float32(0.46))


@N.inlined
def weight(kind, x):
    if kind == 0:
        return 1.0 if (x > -0.5) & (x <= 0.5) else 0.0
    x = abs(x)
    if kind == 1:
        return 1.0 - x if x < 1.0 else 0.0
    if kind == 2:
        if x == 0.0:
            return 1.0
        if x >= 1.0:
            return 0.0
        x *= math.pi
        return math.sin(x) / x * (WIDE + NARROW * math.cos(x))
    if kind == 3:
        if x < 1.0:
            return (1.5 * x - 2.5) * x * x + 1.0
        if x < 2.0:
            return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
        return 0.0
    if x >= 3.0:
        return 0.0
    if x == 0.0:
        return 1.0
    y, z = x * math.pi, x / 3.0 * math.pi
    return math.sin(y) / y * (math.sin(z) / z)


@N.inlined
def fill_taps(kind, support, wide, size, start, stop, out, axis, room):
    edges, taps, width = axis
    scale = np.float64(np.float32(stop) - np.float32(start)) / out
    spread = max(scale, 1.0) if wide else 1.0
    reach = support * spread
    step = 1.0 / spread
    for x in range(out):
        centre = np.float64(np.float32(start)) + (x + 0.5) * scale
        first = max(np.int64(centre - reach + 0.5), 0)
        count = min(np.int64(centre + reach + 0.5), size) - first
        total = 0.0
        for i in range(count):
            part = weight(kind, (i + first - centre + 0.5) * step)
            room[np.uint64(i)] = part
            total += part
        for i in range(count):
            part = room[np.uint64(i)]
            if total != 0.0:
                part = part / total
            rounding = -0.5 if part < 0 else 0.5
            taps[np.uint64(x * width + i)] = np.int32(rounding + part * 4194304.0)
        edges[np.uint64(2 * x)] = first
        edges[np.uint64(2 * x + 1)] = count


@N.inlined
def byte(total):
    return np.uint8(min(max(total >> 22, 0), 255))


@N.inlined
def along(source, base, pixel, channels, columns, axis, out, place):
    edges, taps, width = axis
    at = place
    for x in range(columns):
        p = base + edges[np.uint64(2 * x)] * pixel
        t = np.uint64(x * width)
        if channels == 3:
            a = b = c = HALF
            for i in range(np.uint64(edges[np.uint64(2 * x + 1)])):
                q = np.uint64(p)
                k = taps[t + i]
                a = np.int32(a + np.int32(source[q]) * k)
                b = np.int32(b + np.int32(source[q + np.uint64(1)]) * k)
                c = np.int32(c + np.int32(source[q + np.uint64(2)]) * k)
                p += pixel
            out[np.uint64(at)] = byte(a)
            out[np.uint64(at + 1)] = byte(b)
            out[np.uint64(at + 2)] = byte(c)
        else:
            a = HALF
            for i in range(np.uint64(edges[np.uint64(2 * x + 1)])):
                a = np.int32(a + np.int32(source[np.uint64(p)]) * taps[t + i])
                p += pixel
            out[np.uint64(at)] = byte(a)
        at += channels


@N.inlined
def across(source, begin, stride, values, first, y, axis, sums, out, at):
    edges, taps, width = axis
    top, count = edges[np.uint64(2 * y)] - first, edges[np.uint64(2 * y + 1)]
    for j in range(np.uint64(values)):
        sums[j] = HALF
    for i in range(count):
        k = taps[np.uint64(y * width + i)]
        base = np.uint64(begin + (top + i) * stride)
        for j in range(np.uint64(values)):
            sums[j] += np.int32(source[base + j]) * k
    start = np.uint64(at)
    for j in range(np.uint64(values)):
        out[start + j] = byte(sums[j])


@N.inlined
def copied(source, base, pixel, channels, columns, out, at):
    for x in range(columns):
        for c in range(channels):
            out[np.uint64(at + x * channels + c)] = source[np.uint64(base + x * pixel + c)]


@N.inlined
def emitted(line, y, rows, columns, channels, mirrored, kind, table, bytes_out, floats_out):
    step = channels
    first = 0
    if mirrored:
        step = -channels
        first = (columns - 1) * channels
    for c in range(channels):
        at = first + c
        to = np.uint64((y * columns) * channels + c)
        gap = np.uint64(channels)
        if kind & 1:
            to = np.uint64((c * rows + y) * columns)
            gap = np.uint64(1)
        base = np.uint64(c * 256)
        if kind & 2:
            for x in range(columns):
                floats_out[to] = table[base + np.uint64(line[np.uint64(at)])]
                at += step
                to += gap
        else:
            for x in range(columns):
                bytes_out[to] = line[np.uint64(at)]
                at += step
                to += gap


@N.kernel
def {entry}({arguments}):
    source = carray(pointer(table[0, 0]), FAR, np.uint8)
    middle = carray(pointer(table[0, 1]), FAR, np.uint8)
    x_taps = carray(pointer(table[0, 2]), FAR, np.int32)
    x_edges = carray(pointer(table[0, 3]), FAR, np.int64)
    y_taps = carray(pointer(table[0, 4]), FAR, np.int32)
    y_edges = carray(pointer(table[0, 5]), FAR, np.int64)
    sums = carray(pointer(table[0, 6]), FAR, np.int32)
    line = carray(pointer(table[0, 7]), FAR, np.uint8)
    mapped = carray(pointer(table[0, 8]), FAR, np.float32)
    room = carray(pointer(table[0, 9]), FAR, np.float64)
    out = carray(pointer(table[0, 10]), FAR, np.uint8)
    numbers = carray(pointer(table[0, 10]), FAR, np.float32)
    begin, stride, pixel = integers[0, 0], integers[0, 1], integers[0, 2]
    height, width, channels = integers[0, 3], integers[0, 4], integers[0, 5]
    rows, columns = integers[0, 6], integers[0, 7]
    kind, wide, turned = integers[0, 8], integers[0, 9] != 0, integers[0, 10] != 0
    horizontal, vertical = integers[0, 11] != 0, integers[0, 12] != 0
    x_axis, y_axis = (x_edges, x_taps, integers[0, 13]), (y_edges, y_taps, integers[0, 14])
    form, mirrored = integers[0, 15], integers[0, 16] != 0
    support = floats[0, 4]
    first, last = 0, height
    if vertical:
        start, stop = floats[0, 1], floats[0, 3]
        fill_taps(kind, support, wide, height, start, stop, rows, y_axis, room)
        first = y_edges[0]
        last = y_edges[np.uint64(2 * rows - 2)] + y_edges[np.uint64(2 * rows - 1)]
    if horizontal:
        start, stop = floats[0, 0], floats[0, 2]
        fill_taps(kind, support, wide, width, start, stop, columns, x_axis, room)
    values = columns * channels
    if horizontal and vertical and not turned:
        for y in range(first, last):
            base = begin + y * stride
            at = (y - first) * values
            along(source, base, pixel, channels, columns, x_axis, middle, at)
    for y in range(rows):
        base = begin + y * stride
        if not horizontal and not vertical:
            copied(source, base, pixel, channels, columns, line, 0)
        elif not vertical:
            along(source, base, pixel, channels, columns, x_axis, line, 0)
        elif not horizontal:
            across(source, begin, stride, values, 0, y, y_axis, sums, line, 0)
        elif turned:
            across(source, begin, stride, width * channels, 0, y, y_axis, sums, middle, 0)
            along(middle, 0, channels, channels, columns, x_axis, line, 0)
        else:
            across(middle, 0, values, values, first, y, y_axis, sums, line, 0)
        emitted(line, y, rows, columns, channels, mirrored, form, mapped, out, numbers)
"""


@functools.cache
def source() -> KernelSource:
    """Return the kernel's source."""
    from dml.kernels.compiled import codegen  # noqa: PLC0415 most runs are over before kernels are worth it

    body = TEXT.format(entry=codegen.ENTRY, arguments=", ".join(codegen.ARGUMENTS))
    text = codegen.HEADER + body
    name = "i" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    return codegen.KernelSource(name, text, nullable=False, known=())


class ImageMachine(NamedTuple):
    """The constants with which the kernel runs: none but its source."""

    source: KernelSource


# The bits of the form in which the kernel writes: channels before rows, and floats.
PLANES, FLOATS = 1, 2
NONE = np.zeros(1)


class Target(NamedTuple):
    """Where and how the kernel writes an image.

    ``out`` is contiguous, (rows, columns, channels) or, with ``planes``, channels first. Floats are
    looked up in ``table`` (channels, 256); ``mirrored`` reverses each row.
    """

    out: np.ndarray
    planes: bool = False
    mirrored: bool = False
    table: np.ndarray | None = None


def write(kernel: Kernel, array: np.ndarray, wanted: Resize, target: Target) -> None:
    """Resize ``array`` (h, w, 1 or 3 channels) uint8 and write it to ``target``."""
    across, down = wanted.passes(array.shape)
    turned = vertical_first(array.shape, wanted)
    channels = array.shape[2]
    if array.strides[2] != 1 or (down and (turned or not across) and array.strides[1] != channels):
        array = np.ascontiguousarray(array)
    height, width, _ = array.shape
    left, upper, right, lower = wanted.edges(array.shape)
    support = SUPPORTS[wanted.filter]
    x_width = _taps(support, wanted, (right - left) / wanted.width)
    y_width = _taps(support, wanted, (lower - upper) / wanted.height)
    columns, rows = wanted.width, wanted.height
    low, _ = np.lib.array_utils.byte_bounds(array)
    line = max(width, columns) * channels
    held = (
        np.empty(line if turned or not across else height * columns * channels, np.uint8),
        *_axis(columns, x_width),
        *_axis(rows, y_width),
        np.empty(line, np.int32),
        np.empty(columns * channels, np.uint8),
        NONE if target.table is None else target.table,
        np.empty(max(x_width, y_width)),
        target.out,
    )
    form = PLANES * target.planes + FLOATS * (target.table is not None)
    begin = array.ctypes.data - low
    integers = [begin, *array.strides[:2], *array.shape, rows, columns]
    integers += [FILTERS.index(wanted.filter), wanted.antialias, turned, across, down]
    integers += [x_width, y_width, form, target.mirrored]
    kernel(
        1,
        False,  # noqa: FBT003 positional in the signature: no rows are selected
        np.empty(0, "u8"),
        np.array([[low, *(each.ctypes.data for each in held)]], np.int64),
        np.array([integers], np.int64),
        np.array([[left, upper, right, lower, support]]),
        np.empty(0, np.int64),
        np.zeros(2, bool),
    )


def _axis(size: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return memory for the weights of ``size`` results, and for the pixels that they begin at."""
    return np.empty(size * width, np.int32), np.empty(2 * size, np.int64)


def _taps(support: float, wanted: Resize, scale: float) -> int:
    """Return the most pixels that one result is a sum of."""
    spread = max(scale, 1.0) if wanted.antialias else 1.0
    return math.ceil(support * spread) * 2 + 1
