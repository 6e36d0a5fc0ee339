"""``col("x").image`` has functions of columns of images, encoded or decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dml.base.user_line import door
from dml.expr.columns.literal import whole
from dml.expr.columns.namespaces.image_arguments import (
    are_bytes,
    around,
    box_of,
    colour,
    filter_of,
    finite,
    header_of,
    interval,
    is_range,
    numbers,
    odd,
    one_of,
    probability,
    size_of,
)
from dml.expr.columns.namespaces.media import MediaFunctions, MediaNamespace, media_class
from dml.expr.columns.value import C
from dml.kernels.images.codec import LONGEST, MOST_PIXELS

MODES = ("RGB", "L", "RGBA", "P")
TURNS = ("nearest", "bilinear", "bicubic")
LAYOUTS = ("CHW", "HWC")


class ImageFunctions(MediaFunctions[C]):
    """Functions of images, row by row; null gives null.

    Encoded images are bytes, decoded ones tensors (height, width, channels) of uint8. Operations
    are in integer arithmetic, with the bytes that Pillow gives. Functions ``random_...`` draw by
    seed, epoch and row, as ``dml.random`` does; with ``params=True`` they return what was drawn.
    """

    __slots__ = ()
    _title, _place = ".image", "image"

    # ------------------------------------------------------------------------------------ encoded

    @door
    def decode(
        self,
        mode: str = "RGB",
        *,
        max_pixels: int = MOST_PIXELS,
        on_error: str = "raise",
        exif_transpose: bool = False,
    ) -> ImageFunctions[C]:
        """Decode bytes to (height, width, channels) uint8, as Pillow's ``open`` and ``convert``.

        Parameters
        ----------
        mode : "RGB", "L" (grey), "RGBA", or "P": the places in the palette, as masks have them
        max_pixels : larger images are refused before their pixels are decoded
        on_error : "raise" CastError for an image that cannot be read, or give "null" for it
        exif_transpose : turn photographs upright, as Pillow's ``ImageOps.exif_transpose``
        """
        return self._made(
            "image.decode",
            one_of("mode of decode", mode, MODES),
            *header_of(max_pixels, on_error, exif_transpose),
        )

    @door
    def size(
        self,
        *,
        max_pixels: int = MOST_PIXELS,
        on_error: str = "raise",
        exif_transpose: bool = False,
    ) -> C:
        """Return (height, width), int64; of encoded images from the header alone.

        Arguments are those of ``decode``.
        """
        return self._plain("image.size", *header_of(max_pixels, on_error, exif_transpose))

    @door
    def encode(self, format: str = "png", *, quality: int = 75) -> C:
        """Return the image as bytes of ``format``: "png", "jpeg" or "webp"."""
        kind = one_of("format of encode", format, ("png", "jpeg", "webp"))
        return self._plain("image.encode", kind, whole("quality", quality, 1, 100))

    # -------------------------------------------------------------------------------------- parts

    @door
    def crop(
        self, top: Any, left: Any = None, height: Any = None, width: Any = None
    ) -> ImageFunctions[C]:
        """Return the part of ``height`` x ``width`` pixels from row ``top`` and column ``left``.

        Or give a column of boxes (top, left, height, width), as ``params=True`` returns them.
        """
        if isinstance(top, self._kind) and left is height is width is None:
            return self._made("image.crop_box", others=(top,))
        place = (whole("top of crop", top, 0), whole("left of crop", left, 0))
        return self._made("image.crop", *place, *size_of("crop", height, width))

    @door
    def center_crop(
        self, height: int | Sequence[int], width: int | None = None
    ) -> ImageFunctions[C]:
        """Return the middle part, a square if ``width`` is not given."""
        return self._made("image.center_crop", *size_of("center_crop", height, width))

    @door
    def random_crop(
        self,
        height: int | Sequence[int],
        width: int | None = None,
        *,
        seed: int | None = None,
        params: bool = False,
        on_error: str = "raise",
        exif_transpose: bool = False,
    ) -> Any:
        """Return a part at a random place; or, with ``params``, its (top, left, height, width).

        ``on_error`` and ``exif_transpose`` are those of ``decode``, for ``params`` of encoded
        images.
        """
        size, draw = size_of("random_crop", height, width), (self._draw("random_crop", seed),)
        if not params:
            return self._made("image.random_crop", *size, others=draw)
        header = header_of(MOST_PIXELS, on_error, exif_transpose)
        return self._plain("image.random_crop_box", *size, *header, others=draw)

    @door
    def random_resized_crop(
        self,
        height: int | Sequence[int],
        width: int | None = None,
        *,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        filter: str = "bilinear",
        antialias: bool = True,
        seed: int | None = None,
        params: bool = False,
        on_error: str = "raise",
        exif_transpose: bool = False,
    ) -> Any:
        """Return a part of random area and ratio, resized, as torchvision's RandomResizedCrop.

        Parameters
        ----------
        height, width : size of the result; a square if ``width`` is not given
        scale : least and greatest share of the area
        ratio : least and greatest width over height
        filter, antialias : as in ``resize``
        seed : seed of the draws; None is the seed of the run
        params : return the part's (top, left, height, width) in place of the image
        on_error, exif_transpose : as in ``decode``, for ``params`` of encoded images
        """
        given = (
            *size_of("random_resized_crop", height, width),
            interval("scale", scale, 0.0),
            interval("ratio", ratio, 0.0),
            *filter_of(filter, antialias),
        )
        draw = (self._draw("random_resized_crop", seed),)
        if not params:
            return self._made("image.random_resized_crop", *given, others=draw)
        header = header_of(MOST_PIXELS, on_error, exif_transpose)
        return self._plain("image.random_resized_crop_box", *given, *header, others=draw)

    @door
    def resize(
        self,
        height: int | Sequence[int],
        width: int | None = None,
        *,
        filter: str = "bilinear",
        antialias: bool = True,
        box: Sequence[float] | None = None,
    ) -> ImageFunctions[C]:
        """Resize to ``height`` x ``width``; without ``width``, the shorter side gets ``height``.

        Parameters
        ----------
        height, width : size of the result, in pixels
        filter : "nearest", "box", "bilinear", "hamming", "bicubic" or "lanczos"
        antialias : average all pixels that a result covers, as Pillow; False, of "bilinear" alone,
            takes the four nearest, as OpenCV
        box : (left, upper, right, lower) of the part to resize, as in Pillow
        """
        size: tuple[int, int | None] = size_of("resize", height, width)
        if width is None and not isinstance(height, list | tuple):
            size = (size[0], None)
        part = None if box is None else box_of(box)
        return self._made("image.resize", *size, *filter_of(filter, antialias), part)

    @door
    def pad(
        self, padding: int | Sequence[int], *, fill: int | Sequence[int] = 0
    ) -> ImageFunctions[C]:
        """Surround the image with ``fill``: by one width, or by (left, top, right, bottom)."""
        given = padding if isinstance(padding, list | tuple) else (padding,) * 4
        sides = tuple(whole("padding", each, 0, LONGEST) for each in given)
        if len(sides) != 4:
            raise odd("padding", padding, "one width, or (left, top, right, bottom)")
        return self._made("image.pad", sides, colour(fill))

    # ------------------------------------------------------------------------------------- places

    @door
    def flip(self, direction: str = "horizontal", *, where: Any = None) -> ImageFunctions[C]:
        """Mirror the image "horizontal" or "vertical"; or, if given, only ``where`` it is true."""
        others = () if where is None else (where,)
        way = one_of("direction of flip", direction, ("horizontal", "vertical"))
        return self._made("image.flip", way, others=others)

    @door
    def random_flip(
        self,
        p: float = 0.5,
        direction: str = "horizontal",
        *,
        seed: int | None = None,
        params: bool = False,
    ) -> Any:
        """Mirror the image with probability ``p``; or, with ``params``, return whether to."""
        where = self._chance(f"flip {direction}", p, seed)
        return where if params else self.flip(direction, where=where)

    @door
    def rotate(
        self,
        degrees: Any,
        *,
        filter: str = "nearest",
        expand: bool = False,
        fill: int | Sequence[int] = 0,
    ) -> ImageFunctions[C]:
        """Turn counterclockwise by ``degrees``, a number or a column; ``expand`` keeps corners."""
        angle, others = self._factor("degrees", degrees)
        form = one_of("filter of rotate", filter, TURNS)
        return self._made("image.rotate", angle, form, bool(expand), colour(fill), others=others)

    @door
    def random_rotate(
        self,
        degrees: float | Sequence[float],
        *,
        seed: int | None = None,
        params: bool = False,
        **options: Any,
    ) -> Any:
        """Turn by a random angle: up to ``degrees`` either way, or from a (low, high) range."""
        low, high = interval("degrees", degrees if is_range(degrees) else around(degrees))
        angle = self._between("rotate", low, high, seed)
        turned = self.rotate(angle, **options)
        return angle if params else turned

    @door
    def affine(
        self,
        matrix: Sequence[float],
        *,
        filter: str = "nearest",
        fill: int | Sequence[int] = 0,
    ) -> ImageFunctions[C]:
        """Take each pixel (x, y) from (ax + by + c, dx + ey + f), as Pillow's transform."""
        given = numbers("matrix of affine", matrix)
        if len(given) != 6:
            raise odd("the matrix of affine", matrix, "(a, b, c, d, e, f)")
        form = one_of("filter of affine", filter, TURNS)
        return self._made("image.affine", given, form, colour(fill))

    @door
    def random_erasing(
        self,
        p: float = 0.5,
        *,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        fill: int | Sequence[int] = 0,
        seed: int | None = None,
    ) -> ImageFunctions[C]:
        """Fill a random part with ``fill``, with probability ``p``."""
        sizes = (interval("scale", scale, 0.0), interval("ratio", ratio, 0.0))
        if sizes[0][1] > 1:
            raise odd("scale", scale, "shares of the area, at most 1")
        return self._made(
            "image.random_erasing",
            probability(p),
            *sizes,
            colour(fill),
            others=(self._draw("random_erasing", seed),),
        )

    # ------------------------------------------------------------------------------------ colours

    @door
    def brightness(self, factor: Any) -> ImageFunctions[C]:
        """Multiply the values by ``factor``, a number or a column; 1 changes nothing."""
        return self._toned("brightness", factor)

    @door
    def contrast(self, factor: Any) -> ImageFunctions[C]:
        """Move values away from the image's mean grey by ``factor``; 0 leaves only that grey."""
        return self._toned("contrast", factor)

    @door
    def saturation(self, factor: Any) -> ImageFunctions[C]:
        """Move values away from the pixel's own grey by ``factor``; 0 leaves only the grey."""
        return self._toned("saturation", factor)

    @door
    def hue(self, shift: Any) -> ImageFunctions[C]:
        """Turn the hue by ``shift``, from -0.5 to 0.5 of the circle."""
        return self._toned("hue", shift)

    @door
    def blur(self, radius: Any) -> ImageFunctions[C]:
        """Blur by a Gaussian of standard deviation ``radius`` pixels, as Pillow's GaussianBlur."""
        return self._toned("blur", radius)

    @door
    def random_brightness(
        self, factor: float | Sequence[float], *, seed: int | None = None, params: bool = False
    ) -> Any:
        """Change the brightness by a factor in 1 -/+ ``factor``, or in a (low, high) range."""
        return self._random_tone("brightness", factor, seed, params=params)

    @door
    def random_contrast(
        self, factor: float | Sequence[float], *, seed: int | None = None, params: bool = False
    ) -> Any:
        """Change the contrast by a factor in 1 -/+ ``factor``, or in a (low, high) range."""
        return self._random_tone("contrast", factor, seed, params=params)

    @door
    def random_saturation(
        self, factor: float | Sequence[float], *, seed: int | None = None, params: bool = False
    ) -> Any:
        """Change the saturation by a factor in 1 -/+ ``factor``, or in a (low, high) range."""
        return self._random_tone("saturation", factor, seed, params=params)

    @door
    def random_hue(
        self, shift: float | Sequence[float], *, seed: int | None = None, params: bool = False
    ) -> Any:
        """Turn the hue by up to ``shift`` either way, or by a shift in a (low, high) range."""
        low, high = interval("shift", shift if is_range(shift) else around(shift))
        self.hue(low).hue(high)  # which refuse shifts that are too large
        drawn = self._between("hue", low, high, seed)
        return drawn if params else self.hue(drawn)

    @door
    def random_blur(
        self,
        radius: float | Sequence[float] = (0.1, 2.0),
        p: float = 1.0,
        *,
        seed: int | None = None,
    ) -> ImageFunctions[C]:
        """Blur by a radius, or one in a (low, high) range, with probability ``p``."""
        low, high = interval("radius", radius if is_range(radius) else (radius, radius), 0.0)
        drawn = self._between("blur", low, high, seed)
        return self.blur(drawn * self._chance("blur", p, seed).cast("float64"))

    @door
    def color_jitter(
        self,
        brightness: float | Sequence[float] = 0.0,
        contrast: float | Sequence[float] = 0.0,
        saturation: float | Sequence[float] = 0.0,
        hue: float | Sequence[float] = 0.0,
        *,
        p: float = 1.0,
        seed: int | None = None,
    ) -> ImageFunctions[C]:
        """Change brightness, contrast, saturation and hue by random amounts, in this order.

        An amount is the most that 1 (of hue: 0) is changed by either way, or a (low, high) range.
        ``p`` is the probability that an image is changed at all.
        """
        chance = None
        if probability(p) < 1:
            chance = self._chance("jitter", p, seed).cast("float64")
        tones = (brightness, contrast, saturation, hue)
        found: Any = self
        for name, most in zip(("brightness", "contrast", "saturation", "hue"), tones, strict=True):
            if is_range(most) or finite(f"{name} of color_jitter", most):
                found = found._jittered(name, most, chance, seed)  # noqa: SLF001 - of its own class
        changed: ImageFunctions[C] = self.brightness(1.0) if found is self else found
        return changed

    @door
    def gray(self, channels: int = 1, *, where: Any = None) -> ImageFunctions[C]:
        """Weigh red, green and blue to grey, in one channel or in several equal ones.

        Where ``where`` is false, an image that has as many channels as that keeps its colours.
        """
        others = () if where is None else (where,)
        if channels not in (1, 3):
            raise odd("channels of gray", channels, "1 or 3")
        return self._made("image.gray", channels, others=others)

    @door
    def random_gray(self, p: float = 0.1, *, seed: int | None = None, params: bool = False) -> Any:
        """Make the image grey, in three equal channels, with probability ``p``."""
        where = self._chance("gray", p, seed)
        return where if params else self.gray(3, where=where)

    @door
    def lut(self, table: Any, *, where: Any = None) -> ImageFunctions[C]:
        """Replace each value by its entry in ``table``, 256 numbers from 0 to 255."""
        values = np.asarray(table)
        if values.shape != (256,) or values.dtype.kind not in "iu" or not are_bytes(values):
            raise odd("the table of lut", table, "256 whole numbers from 0 to 255")
        others = () if where is None else (where,)
        return self._made("image.lut", values.astype(np.uint8).tobytes(), others=others)

    def invert(self) -> ImageFunctions[C]:
        """Return 255 - value."""
        return self.lut(255 - np.arange(256))

    @door
    def solarize(self, threshold: int = 128, *, where: Any = None) -> ImageFunctions[C]:
        """Invert the values from ``threshold`` on."""
        levels, least = np.arange(256), whole("threshold", threshold, 0, 256)
        return self.lut(np.where(levels < least, levels, 255 - levels), where=where)

    @door
    def posterize(self, bits: int, *, where: Any = None) -> ImageFunctions[C]:
        """Keep the upper ``bits`` bits of each value."""
        kept = 8 - whole("bits of posterize", bits, 1, 8)
        return self.lut(np.arange(256) >> kept << kept, where=where)

    @door
    def random_solarize(
        self, threshold: int = 128, p: float = 0.5, *, seed: int | None = None
    ) -> ImageFunctions[C]:
        """Invert the values from ``threshold`` on, with probability ``p``."""
        return self.solarize(threshold, where=self._chance("solarize", p, seed))

    @door
    def random_posterize(
        self, bits: int, p: float = 0.5, *, seed: int | None = None
    ) -> ImageFunctions[C]:
        """Keep the upper ``bits`` bits of each value, with probability ``p``."""
        return self.posterize(bits, where=self._chance("posterize", p, seed))

    def equalize(self) -> ImageFunctions[C]:
        """Spread the values evenly, as Pillow's ``ImageOps.equalize``."""
        return self._made("image.enhance", "equalize")

    def autocontrast(self) -> ImageFunctions[C]:
        """Stretch the values to 0 to 255, as Pillow's ``ImageOps.autocontrast``."""
        return self._made("image.enhance", "autocontrast")

    # ------------------------------------------------------------------------------------- floats

    @door
    def normalize(
        self, mean: float | Sequence[float], std: float | Sequence[float], *, layout: str = "CHW"
    ) -> ImageFunctions[C]:
        """Return ``(x / 255 - mean) / std`` in float32, channels first ("CHW") or last ("HWC")."""
        means, deviations = numbers("mean", mean), numbers("std", std)
        if not np.asarray(deviations, np.float32).all():
            raise odd("std", std, "deviations other than 0")
        given = self._given.value
        if given.op == "image.normalize" and given.params[:2] == ((0.0,), (1.0,)):
            # ``to_tensor().normalize(...)``, as in torchvision, is ``normalize(...)``
            inner: ImageFunctions[C] = media_class(ImageFunctions, self._kind)(given.args[0])
            return inner.normalize(mean, std, layout=layout)
        return self._made("image.normalize", means, deviations, one_of("layout", layout, LAYOUTS))

    def to_tensor(self, *, layout: str = "CHW") -> ImageFunctions[C]:
        """Return ``x / 255`` in float32, channels first ("CHW") or last ("HWC")."""
        return self.normalize(0.0, 1.0, layout=layout)

    # ------------------------------------------------------------------------------------- columns

    def _factor(self, what: str, factor: Any) -> tuple[float | None, tuple[Any, ...]]:
        if isinstance(factor, self._kind):
            return None, (factor,)
        return finite(what, factor), ()

    def _toned(self, name: str, factor: Any) -> ImageFunctions[C]:
        amount, others = self._factor(f"{name}'s amount", factor)
        if amount is not None and (abs(amount) > 0.5 if name == "hue" else amount < 0):
            what = "a shift from -0.5 to 0.5" if name == "hue" else "a number of at least 0"
            raise odd(f"{name}'s amount", factor, what)
        return self._made(f"image.{name}", *(() if others else (amount,)), others=others)

    def _jittered(self, name: str, most: Any, chance: Any, seed: int | None) -> ImageFunctions[C]:
        """Change one tone by a random amount in rows in which ``chance`` is 1."""
        middle = 0.0 if name == "hue" else 1.0
        low, high = self._tones(name, most)
        drawn = self._between(name, low, high, seed)
        return self._toned(name, drawn if chance is None else (drawn - middle) * chance + middle)

    def _tones(self, name: str, amount: Any) -> tuple[float, float]:
        """Return the least and the greatest amount by which ``name`` is changed."""
        if not is_range(amount):
            low, high = around(amount)
            amount = (low, high) if name == "hue" else (max(0.0, 1.0 + low), 1.0 + high)
        found = interval(f"{name}'s amount", amount)
        for each in found:
            self._toned(name, each)  # which refuses what has no meaning
        return found

    def _random_tone(self, name: str, factor: Any, seed: int | None, *, params: bool) -> Any:
        drawn = self._between(name, *self._tones(name, factor), seed)
        return drawn if params else self._toned(name, drawn)


class Images(ImageFunctions[C], MediaNamespace[C]):
    """The namespace ``.image`` of a column."""

    __slots__ = ()
