"""Encoded images are decoded to bytes that equal Pillow's: JPEG by simplejpeg, others by Pillow.

A JPEG file that simplejpeg does not decode without a warning is given to Pillow, which decides
whether it is readable.
"""

from __future__ import annotations

import functools
import importlib.metadata
import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from dml.base.memory_turns import TURNS
from dml.errors import PlanError
from dml.kernels.functions.function import UnfitValue
from dml.kernels.images.resample_filters import picture, pixels_of

if TYPE_CHECKING:
    from PIL.Image import Image

Encoded: TypeAlias = "bytes | memoryview"
# Most pixels of an image unless the user gives another number: beyond it, Pillow refuses as well.
MOST_PIXELS = 178_956_970
# Most rows or columns of an image that is made.
LONGEST = 1 << 16
CHANNELS = {"L": 1, "P": 1, "RGB": 3, "RGBA": 4}
# Channels of images whose type leaves them open, as that of arrays from a function may.
COLOURS = CHANNELS["RGB"]
# Bytes of a pixel while it is decoded: as Pillow holds it, and as it is returned.
WORKING_BYTES = 7
# Pixels of a large image that are copied at once.
STRIP_PIXELS = 1 << 20
# The formats that are read; others of Pillow's would start programs (EPS), or have no pixels.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
# The tag of EXIF with the orientation, and its values with rows and columns interchanged.
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)
# Most pixels of a side of a picture in a table.
THUMBNAIL = 64
JPEG_START = b"\xff\xd8\xff"
# Sixteen bits, of which the upper eight are kept, and numbers that are no pixels of a picture.
WIDE = ("I;16", "I;16B", "I;16L", "I;16N")
NUMBERS = ("I", "F")
# Weights of red, green and blue in grey, in units of 2**-16 (ITU-R 601-2, as in Pillow).
GREY = (19595, 38470, 7471)


class UnreadableImage(UnfitValue):
    """An encoded image is not readable; the text says why."""


@functools.cache
def libraries() -> str:
    """Return the versions of the decoders, which are part of a result's fingerprint."""
    return " ".join(f"{each}={_version(each)}" for each in ("simplejpeg", "pillow"))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


@functools.cache
def simplejpeg() -> Any:
    """Import simplejpeg; return None if it is not installed."""
    try:
        import simplejpeg as found  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return found


@functools.cache
def pillow() -> Any:
    """Import Pillow with all of its formats; raise PlanError if it is not installed."""
    try:
        from PIL import Image  # noqa: PLC0415 - an extra
    except ImportError as error:
        what, way = "images need the library PIL", 'pip install "dml[image]"'
        raise PlanError(what, why=str(error), try_=way) from None
    Image.init()
    return Image


def size(
    data: Encoded, most_pixels: int = MOST_PIXELS, *, upright: bool = False
) -> tuple[int, int]:
    """Return height and width, read from the header; raise UnreadableImage for too many pixels.

    With ``upright``, they are those of the image that is turned as its EXIF orientation says.
    """
    header = None if upright else _jpeg_header(data)
    if header is not None:
        height, width = header[:2]
    else:
        image = _opened(data)
        width, height = image.size
        if upright and _orientation(image) in SIDEWAYS:
            width, height = height, width
    _limit(height, width, most_pixels)
    return height, width


def _orientation(image: Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception as error:  # noqa: BLE001 - damaged data may raise anything
        raise UnreadableImage(_reason(error)) from None


def decode(
    data: Encoded, mode: str, most_pixels: int = MOST_PIXELS, *, upright: bool = False
) -> Any:
    """Return the image as (h, w, channels) uint8; raise UnreadableImage if it cannot be read.

    ``mode`` is "RGB", "L" (grey), "RGBA", or "P" (places in a palette). With ``upright``, an image
    is turned as its EXIF orientation says. Of an animation, the first picture is decoded.
    """
    if mode in ("RGB", "L") and not upright:
        found = _jpeg(data, mode, most_pixels)
        if found is not None:
            return found
    image = _opened(data)
    _begun(image.height, image.width, most_pixels)
    try:
        if upright:
            from PIL import ImageOps  # noqa: PLC0415 - an extra

            image = ImageOps.exif_transpose(image)
        return _array(_converted(image, mode))
    except UnreadableImage:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
        raise UnreadableImage(_reason(error)) from None


def thumbnail(image: bytes | np.ndarray) -> bytes | None:
    """Return a small PNG of encoded bytes or (h, w, channels) uint8; None if it is unreadable."""
    try:
        found = _opened(image) if isinstance(image, bytes) else picture(image)
        _limit(found.height, found.width, MOST_PIXELS)
        found.thumbnail((THUMBNAIL, THUMBNAIL))
        target = pa.BufferOutputStream()
        found.convert("RGBA" if "A" in found.mode else "RGB").save(target, "PNG")
    except Exception:  # noqa: BLE001 - a damaged file may raise anything, and is shown as text
        return None
    return bytes(target.getvalue())


def _jpeg(data: Encoded, mode: str, most_pixels: int) -> np.ndarray | None:
    """Return what simplejpeg decodes without a warning, else None."""
    header = _jpeg_header(data)
    if header is None:
        return None
    height, width, space, _ = header
    _limit(height, width, most_pixels)
    if space not in ("YCbCr", "Gray", "RGB"):
        return None  # inverted or not, CMYK is left to Pillow
    _begun(height, width, most_pixels)
    grey = mode == "L"
    try:
        found: np.ndarray = simplejpeg().decode_jpeg(
            data, "GRAY" if grey and space == "Gray" else "RGB", strict=True
        )
    except ValueError:
        return None
    return to_grey(found) if grey and space != "Gray" else found


def _jpeg_header(data: Encoded) -> tuple[int, int, str, str] | None:
    library = simplejpeg() if bytes(data[:3]) == JPEG_START else None
    try:
        return None if library is None else library.decode_jpeg_header(data, strict=True)
    except ValueError:
        return None


def _limit(height: int, width: int, most: int) -> None:
    if height * width > most:
        raise UnreadableImage(f"it has {height} x {width} pixels; max_pixels is {most}")


def _begun(height: int, width: int, most: int) -> None:
    """Refuse too many pixels; wait for memory for many."""
    _limit(height, width, most)
    TURNS.take(height * width * WORKING_BYTES)


def _opened(data: Encoded) -> Image:
    """Open an image with Pillow, which reads its header only.

    Pillow's ``open`` has a limit of pixels of its own, one for the process, and warns before it.
    So the formats are tried here.
    """
    if not len(data):
        raise UnreadableImage("it has no bytes")
    start = bytes(data[:16])
    for name in FORMATS:
        factory, accepts = pillow().OPEN[name]
        if accepts is not None and not _accepted(accepts(start)):
            continue
        try:
            image: Image = factory(pa.BufferReader(data), "")
        except (SyntaxError, IndexError, TypeError, struct.error):
            continue  # another format may begin with the same bytes
        except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
            raise UnreadableImage(_reason(error)) from None
        return image
    raise UnreadableImage(f"no decoder knows its format; it may be one of {', '.join(FORMATS)}")


def _accepted(answer: object) -> bool:
    """Return whether a format accepts a file; a text says why it does not."""
    return bool(answer) and not isinstance(answer, str)


def _converted(image: Image, mode: str) -> Image:
    """Return ``image`` in ``mode``; of sixteen bits, the upper eight are kept."""
    from PIL import Image  # noqa: PLC0415 - an extra

    if image.mode in NUMBERS:
        raise UnreadableImage(f"its pixels are numbers of 32 bits (mode {image.mode})")
    if image.mode in WIDE:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if mode == "P" and image.mode not in ("P", "L"):
        raise UnreadableImage(f"it has no palette (mode {image.mode})")
    return image if mode in (image.mode, "P") else image.convert(mode)


def _array(image: Image) -> np.ndarray:
    """Return pixels; of a large image in strips, since Pillow makes two copies of what it gives."""
    rows = max(1, STRIP_PIXELS // max(1, image.width))
    if image.height <= rows:
        return np.ascontiguousarray(pixels_of(image))
    strips = (
        pixels_of(image.crop((0, top, image.width, min(top + rows, image.height))))
        for top in range(0, image.height, rows)
    )
    first = next(strips)
    out = np.empty((image.height, *first.shape[1:]), first.dtype)
    out[:rows] = first
    for top, strip in zip(range(rows, image.height, rows), strips, strict=True):
        out[top : top + rows] = strip
    return out


def _reason(error: BaseException) -> str:
    """Return the error's text without addresses of objects, which differ between runs."""
    text = " ".join(str(error).split())
    return text or type(error).__name__


def to_grey(array: np.ndarray) -> np.ndarray:
    """Return (h, w, 1) uint8 of (h, w, 3), as Pillow weighs red, green and blue."""
    wide = array.astype(np.int32)
    total = wide[:, :, 0] * GREY[0] + wide[:, :, 1] * GREY[1] + wide[:, :, 2] * GREY[2]
    return ((total + 0x8000) >> 16).astype(np.uint8)[:, :, None]
