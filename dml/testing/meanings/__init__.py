"""The oracle's operators are defined here, row by row, a family or an operator a file."""

from dml.testing.meaning import OperatorMeaning
from dml.testing.meanings import (
    batches,
    columns,
    combine,
    elements,
    functions,
    grouping,
    groups,
    join,
    order,
    packs,
    shuffles,
    sorting,
)

MEANINGS: tuple[OperatorMeaning, ...] = (
    *batches.MEANINGS,
    *columns.MEANINGS,
    *combine.MEANINGS,
    *elements.MEANINGS,
    *functions.MEANINGS,
    *grouping.MEANINGS,
    *groups.MEANINGS,
    *join.MEANINGS,
    *order.MEANINGS,
    *packs.MEANINGS,
    *shuffles.MEANINGS,
    *sorting.MEANINGS,
)
