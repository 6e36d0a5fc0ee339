"""Near misses of a plan are rewritings that a reader might expect but that were not made.

They are found in the finished plan; rules that could never have applied are not mentioned.
"""

from __future__ import annotations

from dml.expr.columns.value import Value
from dml.expr.facts import Needs
from dml.expr.node import Node
from dml.io.source import Source
from dml.ops.batch.batch import Batch
from dml.ops.row.filter import Filter
from dml.ops.row.map_rows import MapRows
from dml.ops.row.rowwise import RowWise
from dml.ops.row.segment import Segment
from dml.ops.shuffle.shuffle_all import ShuffleAll
from dml.ops.shuffle.shuffle_window import ShuffleWindow
from dml.ops.slice.repeat import Repeat
from dml.ops.slice.skip import Skip
from dml.ops.slice.take import Take
from dml.optimize.engine import Refused
from dml.optimize.rules.constants import values_of
from dml.optimize.rules.pushdown import silent
from dml.physical.plan import Stage


def refusals(root: Node, stage: Stage) -> list[Refused]:
    """Return all near misses of ``root``, whose source is read as ``stage`` says, source first."""
    found = [_at_node(node) for node in root.chain()[1:]]
    found += [_at_source(part, stage) for part in _first_predicate(stage)]
    return [refused for refused in found if refused is not None]


def _at_node(node: Node) -> Refused | None:
    match node:
        case Segment(input=below) if not isinstance(below, Source):
            return _of_segment(node, below)
        case RowWise() | Filter() if not node.inputs[0].schema.known:
            return Refused(
                f"{node.title()} not merged with what is around it",
                "the columns it is given are known only once a function has returned rows; "
                "declare them: schema={...}",
            )
        case Take() | Skip():
            return _of_slice(node)
        case ShuffleAll(input=below):
            return _of_shuffle(node, below)
        case MapRows() if node.needs != Needs() and node.lifted is not None:
            return Refused(
                f"{node.title()} not computed as expressions",
                "it is called where the resources are that it asks for",
            )
    return None


def _of_segment(node: Segment, below: Node) -> Refused | None:
    what = "filter" if node.predicate else "columns"
    moving = f"{what} not moved below {below.title()}"
    fn = below.calls
    if fn is not None:
        return Refused(moving, f"nothing is known of what {fn.name} reads and writes")
    if isinstance(below, Segment):
        return Refused(moving, "together they would be too long for one program")
    reason = _why_above(node, below)
    return None if reason is None else Refused(moving, reason)


def _why_above(node: Segment, below: Node) -> str | None:
    """Return why ``node`` must stay above ``below``; None if there is no reason worth showing."""
    if not node.total:
        cast = next(part for part in values_of(node) if not part.total)
        return f"{cast!r} may fail, and must not fail on a row that would not have reached it"
    match below:
        case Take() | Skip():
            return "positions would change: it would take other rows"
        case ShuffleWindow():
            return "windows count the rows that reach them"
        case Batch():
            return "batches would be made of other rows"
        case Repeat() if node.draws:
            return "it draws other numbers in every pass"
        case Repeat():
            return "an endless repeat ends at an empty pass, which this filter could make"
    return None


def _of_slice(node: Take | Skip) -> Refused | None:
    below = node.input
    moving = f"{node.title()} not moved below {below.title()}"
    if isinstance(below, Segment) and below.predicate:
        return Refused(moving, "positions would change: it counts rows that pass the filter")
    if isinstance(below, ShuffleAll | ShuffleWindow):
        return Refused(moving, "it would shuffle the first rows instead of taking shuffled ones")
    return None


def _of_shuffle(node: ShuffleAll, below: Node) -> Refused | None:
    moving = f"{node.title()} not done by reading in its order"
    if node.ranked_source is None:
        return Refused(moving, "its rows are not one to one those of a source of known length")
    if node.ranked_source.addressed() is None:
        return Refused(moving, f"{node.ranked_source.title()} cannot read single rows")
    for step in below.chain()[1:]:
        if not step.rows.local:
            return Refused(moving, f"{step.title()} lies between it and the source")
        if not silent(step):
            return Refused(moving, f"{step.title()} must be called in the order of the source")
    return None


def _first_predicate(stage: Stage) -> tuple[Value, ...]:
    match stage.steps:
        case (Segment(predicate=parts), *_):
            return parts[len(stage.predicate) :]
    return ()


def _at_source(part: Value, stage: Stage) -> Refused | None:
    if stage.source.unit_count == 0:
        return None
    moving = f"{part!r} not used to skip units"
    if part.draws:
        return Refused(moving, "it draws")
    if not part.total:
        return Refused(moving, "it may fail")
    return Refused(moving, "it is tried after a part that draws or may fail")
