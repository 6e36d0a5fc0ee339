"""Sounds pass through a sequence of functions."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dml.kernels.audio.sounds import STEPS
from dml.kernels.functions.row_chain import RowChain


class SoundRows(RowChain):
    """Passes one sound after the other through ``links``."""

    steps: ClassVar = STEPS

    def value(self, values: Any, row: int) -> Any:
        """Return the result of a row, in which every NaN has the canonical bit pattern."""
        with np.errstate(all="ignore"):
            found = self.pass_row(values, row)
        if isinstance(found, np.ndarray):
            nan = np.isnan(found)
            if nan.any():
                return np.where(nan, np.float32(np.nan), found)
        return found
