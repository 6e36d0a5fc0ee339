"""This file warns, before a run begins, of files too small for the groups asked of them."""

from __future__ import annotations

from dml.exec.known import files_of
from dml.expr.doors import warn
from dml.plan import Plan

# So many files are a matter of how data is stored, and groups this much smaller one of speed.
MANY, SMALLER = 16, 2


def warn_of_small_groups(plan: Plan) -> None:
    """Warn once of each ``map_batches`` whose groups end with files far shorter than a group.

    Only where footers tell how many rows there are; operators in between may leave even fewer.
    """
    files, rows = len(files_of(plan.stage.source)), plan.stage.source.row_count
    if files < MANY or rows is None:
        return
    for node in plan.on_blocks:
        if node.within_atoms and node.group_rows * files > SMALLER * rows:
            size = node.group_rows
            text = (
                f"{node.title()}: its groups have about {max(1, rows // files)} rows, not {size}"
                f" (a group ends with its file: {rows} rows in {files} files);"
                f" .batch({size}).map(f) groups rows of several files"
            )
            warn(text, UserWarning)
