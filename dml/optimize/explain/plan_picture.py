"""A physical plan is drawn as a picture for notebooks: one box for each operator, source first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dml.base.amounts import cut
from dml.base.display import escaped
from dml.optimize.explain.physical_text import PlanLine

WIDTH: Final = 720  # all lengths are in pixels
HEIGHT, GAP, INDENT, BAR = 42, 14, 40, 5
LETTERS: Final = 110  # more do not fit into a box
# The colour of the bar at the left of a box, by the text of the legend. Text and lines have the
# colour of the page's text.
WORKERS, ORDERED, CACHED = "all workers", "in order, in this process", "cached"
COLOURS: Final = {WORKERS: "#3b82f6", ORDERED: "#9aa0a6", CACHED: "#22a06b"}


def plan_picture(lines: Sequence[PlanLine]) -> str:
    """Return an SVG image of the operators of a plan; ``lines`` have the last one first.

    The source is at the top. Operators of a further input are indented, above the operator that
    reads them. The bar of a box shows where the operator runs.
    """
    boxes = [line for line in reversed(lines) if line.operator]
    drawn = [part for place in range(len(boxes)) for part in _box(boxes, place)]
    height = len(boxes) * (HEIGHT + GAP) + HEIGHT // 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" style="max-width:100%;height:auto" font-size="13"'
        f' fill="currentColor" role="img">{"".join(drawn)}{_legend(height - 8)}</svg>'
    )


def _box(boxes: Sequence[PlanLine], place: int) -> Iterator[str]:
    line = boxes[place]
    x, y = _left(line), 1 + place * (HEIGHT + GAP)
    width = WIDTH - x - 1
    yield (
        f'<rect x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="4" fill="none"'
        ' stroke="currentColor" stroke-opacity=".35"/>'
        f'<rect x="{x}" y="{y}" width="{BAR}" height="{HEIGHT}" fill="{COLOURS[_where(line)]}"/>'
    )
    whole = escaped("\n".join([line.title, *line.facts, *line.more]))
    title, facts = cut(line.title, LETTERS), cut("  ·  ".join([*line.facts, *line.more]), LETTERS)
    yield (  # an image of its own, so that text which is too long ends at the box
        f'<svg x="{x + BAR}" y="{y}" width="{width - BAR}" height="{HEIGHT}">'
        f'<title>{whole}</title><text x="8" y="17">{escaped(title)}</text>'
        f'<text x="8" y="34" font-size="11" opacity=".7">{escaped(facts)}</text></svg>'
    )
    yield from _link(boxes, place, x)


def _left(line: PlanLine) -> int:
    return 1 + min(line.depth * INDENT, WIDTH // 2)


def _link(boxes: Sequence[PlanLine], place: int, x: int) -> Iterator[str]:
    """Draw the line from a box to the one that reads its rows.

    It leads down within an input. At the end of a further input it leads left, to the line of the
    first input, which leads down to the operator that reads both.
    """
    depth, top = boxes[place].depth, 1 + place * (HEIGHT + GAP)
    below = next((n for n in range(place + 1, len(boxes)) if boxes[n].depth <= depth), None)
    if below is None:
        return
    down = x + INDENT // 2
    if boxes[below].depth == depth and not boxes[below].kind.endswith("scan"):
        yield _line(down, top + HEIGHT, down, 1 + below * (HEIGHT + GAP))
    else:
        yield _line(x, top + HEIGHT // 2, x - INDENT // 2, top + HEIGHT // 2)


def _line(x1: int, y1: int, x2: int, y2: int) -> str:
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="currentColor" stroke-opacity=".6"/>'
    )


def _where(line: PlanLine) -> str:
    """Return where the operator of a box runs, in the words of the legend."""
    return CACHED if "cache" in line.kind else WORKERS if line.by_workers else ORDERED


def _legend(y: int) -> str:
    return "".join(
        f'<rect x="{1 + 180 * place}" y="{y - 9}" width="9" height="9" fill="{colour}"/>'
        f'<text x="{16 + 180 * place}" y="{y}" font-size="11" opacity=".7">{text}</text>'
        for place, (text, colour) in enumerate(COLOURS.items())
    )
