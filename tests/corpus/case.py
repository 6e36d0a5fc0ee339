"""A row function of the corpus, with its columns and the expected result of lifting it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
Columns = dict[str, pa.DataType]

F, I, B, S = pa.float64(), pa.int64(), pa.bool_(), pa.string()  # noqa: E741 - one a column
F4, I4, U1 = pa.float32(), pa.int32(), pa.uint8()
T, D = pa.timestamp("us"), pa.date32()
TEXTS, INTS, FLOATS = pa.list_(S), pa.list_(I), pa.list_(F)


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of a row with ``columns``; ``why`` is part of the reason why it is not lifted.

    An empty ``why`` says that it is lifted. ``keeps`` makes it a filter instead of a map, and
    ``settles`` is the schema of its rows where Python's own values would not settle one.
    ``draws`` says that two calls on equal rows may differ, so that only calls can be compared.
    """

    fn: Callable[[Row], Any]
    columns: Columns
    why: str = ""
    keeps: bool = False
    settles: Columns | None = None
    draws: bool = False
    numeric: bool = False

    @property
    def name(self) -> str:
        """What the function is called."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    @property
    def module(self) -> str:
        """The module that its code was written in."""
        return str(getattr(getattr(self.fn, "func", self.fn), "__module__", ""))
