"""Refuse columns with nulls that no delivered array could represent, before a run begins."""

from __future__ import annotations

from dml.base.user_line import warn
from dml.data.schema import code_of
from dml.exec.delivery.known_length import files_of
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.ops.row.rowwise import Env, RowWise
from dml.ops.row.segment import Segment
from dml.physical.plan import Plan
from dml.udfs.calling.batch_arrays import null_error

# Least number of files, and factor by which groups are too small, that cost enough speed to warn.
MANY, SMALLER = 16, 2


def warn_of_small_groups(plan: Plan) -> None:
    """Warn of each ``map_batches`` whose groups are small, since files have far fewer rows.

    Groups end with their file. There is no warning if footers do not state the number of rows.
    Operators before ``map_batches`` may make groups even smaller.
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


KEEPING = (Rows.PERMUTED, Rows.GROUPED, Rows.REPEATED)


def refuse_nulls(plan: Plan) -> None:
    """Raise NullValueError if statistics prove a null in a delivered integer or boolean array.

    A column is checked only if the pipeline delivers batches, and all rows of the source with this
    column unchanged. Other nulls are found when a batch is made. Only footers are read.
    """
    if not plan.batched:
        return
    source = plan.stage.source
    for name, column in _passed_on(plan).items():
        kind = plan.schema[name]
        place = source.null_in(column) if code_of(kind)[0] in "biu" else ""
        if place:
            raise null_error(name, kind, place).located(plan.operators[-1].label())


def _passed_on(plan: Plan) -> dict[str, str]:
    """Return {delivered column: source column} for columns that keep all rows and values."""
    found = {name: name for name in plan.schema}
    for node in reversed(plan.operators[1:]):
        if node.rows in KEEPING and not node.drop_last:
            if node.passes == 0:
                return {}
            continue
        same = {name: v.params[0] for name, v in _env(node) if v.op == "col"}
        found = {name: same[column] for name, column in found.items() if column in same}
    return found


def _env(node: Node) -> Env:
    """Return output columns as expressions of input columns; () if rows may change otherwise."""
    if isinstance(node, Segment):
        return () if node.predicate else node.env
    if isinstance(node, RowWise) and node.inputs[0].schema.known:
        return node.columns(node.inputs[0].schema)
    return ()
