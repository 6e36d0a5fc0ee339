"""Tables and texts are displayed here: aligned on a terminal, and as HTML in a notebook.

A class that people look at derives from ``Displayed``, and says what it consists of::

    class Sizes(Displayed):
        def _parts(self):
            yield "sizes of files"
            yield Grid([["file", "bytes"], ["a.parquet", "12"]], texts={0})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Self

HTML_COLUMNS: Final = 24  # more columns than these are elided in HTML
ELLIPSIS: Final = "..."
# Colours are those of the page, which may be dark. A notebook wraps preformatted text otherwise.
PRE: Final = '<pre style="white-space:pre;overflow-x:auto">'
TABLE: Final = '<div style="overflow-x:auto"><table style="border-collapse:collapse">'
CELL: Final = "white-space:pre;padding:.2em .8em;text-align:"
TYPE: Final = ";font-weight:normal;opacity:.65"  # of the second line of a header


class Sound(str):
    """A cell that HTML plays: ``data`` is a file that browsers know, of type ``mime``."""

    __slots__ = ("data", "mime")

    def __new__(cls, text: str, data: bytes, mime: str) -> Self:
        """Make a cell of ``text`` and a sound."""
        made = super().__new__(cls, text)
        made.data, made.mime = data, mime
        return made

    data: bytes
    mime: str

    def html(self) -> str:
        """Return a player of the sound."""
        return f'<audio controls preload="metadata" src="{_inline(self.data, self.mime)}"></audio>'


class Picture(str):
    """A cell that HTML shows as an image; other media show it as text.

    ``png`` returns the encoded image, or None if there is none, when HTML is made.
    """

    __slots__ = ("png",)

    def __new__(cls, text: str, png: Callable[[], bytes | None]) -> Self:
        """Make a cell of ``text`` and an image."""
        made = super().__new__(cls, text)
        made.png = png
        return made

    png: Callable[[], bytes | None]

    def html(self) -> str:
        """Return an image element with the picture in it, or the text."""
        data = self.png()
        if data is None:
            return escaped(one_line(self))
        return f'<img alt="{escaped(one_line(self))}" src="{_inline(data, "image/png")}">'


def _inline(data: bytes, mime: str) -> str:
    """Return a URL that contains the file."""
    import base64  # noqa: PLC0415 - only pictures and sounds need it

    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class Grid:
    """Texts in rows and columns. The first ``heads`` rows are a header.

    Columns ``texts`` are aligned left, all others right.
    """

    rows: Sequence[Sequence[str]]
    texts: Collection[int] = ()
    heads: int = 1

    def lines(self, width: int | None = None) -> list[str]:
        """Return the rows as aligned lines; columns in the middle go if they exceed ``width``."""
        rows = [[one_line(cell) for cell in row] for row in self.rows]
        widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
        if width is not None and sum(widths) + 2 * len(widths) - 2 > width and len(widths) > 2:
            return self._elided(_fitting(widths, width)).lines()
        return ["  ".join(map(self._padded, range(len(row)), row, widths)).rstrip()
                for row in rows]  # fmt: skip

    def _padded(self, place: int, cell: str, width: int) -> str:
        missing = " " * (width - columns_of(cell))
        return cell + missing if place in self.texts else missing + cell

    def _elided(self, count: int) -> Grid:
        """Return the first and last of the columns, ``count`` in all, and an ellipsis between."""
        total = len(self.rows[0])
        first = (count + 1) // 2
        kept = [*range(first), *range(total - count + first, total)]
        rows = [[row[place] for place in kept] for row in self.rows]
        for row in rows:
            row.insert(first, ELLIPSIS)
        places = [*kept[:first], -1, *kept[first:]]
        texts = {new for new, old in enumerate(places) if old in self.texts or old < 0}
        return Grid(rows, texts, self.heads)

    def html(self) -> str:
        """Return the rows as an HTML table, with markup escaped and wide tables elided."""
        if self.rows and len(self.rows[0]) > HTML_COLUMNS:
            return self._elided(HTML_COLUMNS - 1).html()
        head = "".join(
            self._html_row(row, "th", TYPE * (number > 0))
            for number, row in enumerate(self.rows[: self.heads])
        )
        body = "".join(self._html_row(row, "td", "") for row in self.rows[self.heads :])
        head = f"<thead>{head}</thead>" if head else ""
        return f"{TABLE}{head}<tbody>{body}</tbody></table></div>"

    def _html_row(self, row: Sequence[str], tag: str, style: str) -> str:
        cells = (
            f'<{tag} style="{CELL}{"left" if place in self.texts else "right"}{style}">'
            f"{_cell_html(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )
        return f"<tr>{''.join(cells)}</tr>"


def _cell_html(cell: str) -> str:
    return cell.html() if isinstance(cell, Sound | Picture) else escaped(one_line(cell))


def one_line(text: str) -> str:
    """Return ``text`` with escapes in place of line ends and other control characters."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def columns_of(text: str) -> int:
    """Return the number of columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - most texts have one column for each letter

    return cell_len(text)


def _fitting(widths: Sequence[int], most: int) -> int:
    """Return how many columns, the first and last ones, fit into ``most`` with an ellipsis."""
    for count in range(len(widths) - 1, 2, -1):
        first = (count + 1) // 2
        kept = [*widths[:first], *widths[len(widths) - count + first :]]
        if sum(kept) + 2 * len(kept) + len(ELLIPSIS) <= most:
            return count
    return 2


class Displayed:
    """A value that is displayed by its ``_parts``: lines of text, and grids."""

    __slots__ = ()

    def _parts(self) -> Iterable[str | Grid]:
        """Yield what is displayed, from top to bottom."""
        raise NotImplementedError

    def _text(self, width: int | None = None) -> str:
        """Return the parts as text; grids have at most ``width`` columns, if that is given."""
        parts = (part.lines(width) if isinstance(part, Grid) else [part] for part in self._parts())
        return "\n".join(line for lines in parts for line in lines)

    def __str__(self) -> str:
        return self._text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        made = list[str]()
        for kind, parts in groupby(self._parts(), type):
            if kind is Grid:
                made += [part.html() for part in parts if isinstance(part, Grid)]
            else:
                made.append(preformatted("\n".join(map(str, parts))))
        return "".join(made)

    def show(self) -> None:
        """Display this now: as HTML in a notebook, and as text that fits a terminal elsewhere."""
        columns, shell = _terminal_columns(), sys.modules.get("IPython")
        if columns is None and shell is not None and shell.get_ipython() is not None:
            shell.display.display(self)
        else:
            sys.stdout.write(self._text(columns) + "\n")


def _terminal_columns() -> int | None:
    """Return the width of the terminal that prints; None if the output is not a terminal."""
    try:
        if not sys.stdout.isatty():
            return None
    except AttributeError:  # not every object that prints says so
        return None
    import shutil  # noqa: PLC0415 - only a terminal has a width

    return shutil.get_terminal_size().columns


class Page(str):
    """A string that Python and notebooks display as it is, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return preformatted(self)


def preformatted(text: str) -> str:
    """Return ``text`` as HTML whose lines are not wrapped, with markup escaped."""
    return f"{PRE}{escaped(text)}</pre>"


def escaped(text: str) -> str:
    """Return ``text`` as HTML that shows it, outside of attributes."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
