"""Find what is known of a pipeline without running it: its length, and the files that it reads."""

from __future__ import annotations

import math

from dml.expr.facts import Length
from dml.expr.node import Node
from dml.io.source import Source, read_of


def counted(node: Node) -> Length | None:
    """Return the number of elements of ``node``: ``math.inf`` if endless, None if unknown."""
    lengths: dict[int, Length | None] = {}
    for step in node.walk():
        given = [lengths[id(each)] for each in step.inputs]
        known = [length for length in given if length is not None]
        lengths[id(step)] = step.length(*known) if len(known) == len(given) else None
    length = lengths[id(node)]
    return math.inf if length is None and node.endless else length


def files_of(node: Node) -> list[str]:
    """Return the paths of files that the sources of ``node`` read, in reading order, each once."""
    found = [
        each.path
        for step in node.walk()
        if isinstance(step, Source)
        for each in getattr(getattr(read_of(step), "files", None), "files", ())
    ]
    return list(dict.fromkeys(found))
