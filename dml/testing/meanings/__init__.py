"""This folder says what every operator means, row by row, a family or an operator a file."""

from dml.testing.meaning import Meaning
from dml.testing.meanings import columns, functions, groups, order, shuffles

MEANINGS: tuple[Meaning, ...] = (
    *columns.MEANINGS,
    *functions.MEANINGS,
    *groups.MEANINGS,
    *order.MEANINGS,
    *shuffles.MEANINGS,
)
