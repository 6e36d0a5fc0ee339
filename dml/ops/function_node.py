"""Operators that call a user's function on one element share their facts and their text."""

from __future__ import annotations

from typing import ClassVar

from dml.data.schema import Schema
from dml.expr.facts import Rows
from dml.udfs.calling.error_policy import Skipping


class FunctionNode(Skipping):
    """The base of operators that replace each element by the result of a function."""

    declared: Schema | None

    states_reads: ClassVar[bool] = True

    @property
    def rows(self) -> Rows:  # type: ignore[override]
        """Return FEWER if elements whose call raises are skipped, else SAME."""
        return Rows.FEWER if self.skips else Rows.SAME
