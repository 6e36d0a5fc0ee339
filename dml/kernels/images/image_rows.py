"""Images pass through a sequence of functions, which ends in floats if it normalises them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dml.base.cached_property import cached_property
from dml.base.open_tensors import OpenTensor
from dml.kernels.functions.row_chain import RowChain, RowLink
from dml.kernels.images.codec import COLOURS
from dml.kernels.images.pixels import Misfit, Pixels
from dml.kernels.images.steps import STEPS, float_table
from dml.kernels.vec import Vec

# The last function of a chain, which writes floats.
WRITER = "image.normalize"


class ImageRows(RowChain):
    """Passes one image after the other through ``links``, as ``Pixels``."""

    steps: ClassVar = {**STEPS, WRITER: lambda image, _params, _given: image}

    @cached_property
    def writer(self) -> RowLink | None:
        """The last function, if it writes floats."""
        return self.links[-1] if self.links[-1].op == WRITER else None

    @cached_property
    def any_channels(self) -> bool:
        """True if the type of the given arrays leaves the number of channels open."""
        kind = None if isinstance(self.given, Vec) else self.given.type
        return isinstance(kind, OpenTensor) and kind.shape[2] is None

    def wrap(self, array: np.ndarray) -> Pixels:
        """Return an array as ``Pixels``; its type may leave the number of channels open."""
        if self.any_channels and array.shape[2] != COLOURS:
            text = f"it has {array.shape[2]} channels; a function's schema must say so: u1[?,?,1]"
            raise Misfit(text)
        return Pixels(array, self.kernel)

    def value(self, values: Any, row: int) -> Any:
        """Return the result of a row: an array, bytes or None."""
        found = self.pass_row(values, row)
        if not isinstance(found, Pixels):
            return found
        if self.writer is None:
            return found.array()
        table, planes = self._form(found)
        rows, columns, channels = found.shape
        out = np.empty((channels, rows, columns) if planes else found.shape, np.float32)
        found.write(out, table, planes=planes)
        return out

    def write(self, values: Any, row: int, out: np.ndarray) -> bool:
        """Write the result of a row to ``out``; return False for null."""
        found = self.pass_row(values, row)
        if found is None:
            return False
        if not isinstance(found, Pixels):
            out[...] = found
            return True
        table, planes = (None, False) if self.writer is None else self._form(found)
        found.write(out, table, planes=planes)
        return True

    def _form(self, pixels: Pixels) -> tuple[np.ndarray, bool]:
        """Return the table of floats, and whether channels are before rows."""
        if self.writer is None:
            raise TypeError("the chain ends in bytes")
        mean, std, layout = self.writer.params
        channels = pixels.shape[2]
        table = float_table((mean * channels)[:channels], (std * channels)[:channels])
        return table, layout == "CHW"
