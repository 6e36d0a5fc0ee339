"""Tables are aligned, fit where they are shown, and show any text as it is."""

from __future__ import annotations

import html
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import dml
from dml.base.display import ELLIPSIS, HTML_COLUMNS, Displayed, Grid, Page, Picture
from dml.exec.delivery.row_text import FirstRows

CELL = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=8)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    width = draw(st.integers(1, 40))
    rows = draw(st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1, max_size=4))
    texts = draw(st.sets(st.integers(0, width - 1)))
    return Grid(rows, texts, heads=draw(st.integers(0, 2)))


@given(grids(), st.integers(1, 120))
def test_lines_are_aligned_and_as_narrow_as_asked_where_columns_can_go(
    grid: Grid, width: int
) -> None:
    lines, narrow = grid.lines(), grid.lines(width)
    assert len(lines) == len(narrow) == len(grid.rows)
    if max(map(cell_len, lines)) <= width and len(grid.rows[0]) > 2:
        ends = sum(max(cell_len(row[i]) for row in grid.rows) + 2 for i in range(len(grid.rows[0])))
        assert narrow == lines or ends - 2 > width  # trailing spaces were in the way
    if narrow != lines:
        assert all(ELLIPSIS in line for line in narrow)
        first, last = ([row[i] for row in grid.rows] for i in (0, -1))
        for line, one, other in zip(narrow, first, last, strict=True):
            assert one in line
            assert other in line
        two = sum(max(map(cell_len, column)) for column in (first, last)) + 4 + len(ELLIPSIS)
        assert max(map(cell_len, narrow)) <= max(width, two)


@given(grids())
def test_html_has_every_cell_as_text(grid: Grid) -> None:
    made = grid.html()
    cells = [html.unescape(cell) for cell in re.findall(r"<t[hd] [^>]*>(.*?)</t[hd]>", made)]
    wide = len(grid.rows[0]) > HTML_COLUMNS
    assert len(cells) == len(grid.rows) * (HTML_COLUMNS if wide else len(grid.rows[0]))
    if not wide:
        assert cells == [cell for row in grid.rows for cell in row]
    assert made.count("<th ") * len(grid.rows) == len(cells) * min(grid.heads, len(grid.rows))


def test_letters_of_two_columns_are_aligned() -> None:
    assert Grid([["a", "1"], ["日本", "22"], ["é", "3"]], {0}).lines() == [
        "a      1", "日本  22", "é      3",
    ]  # fmt: skip


class Both(Displayed):
    def _parts(self) -> Iterator[str | Grid]:
        yield "<first>"
        yield "second"
        yield Grid([["x"], ["<b>"]])
        yield "last"


def test_parts_are_shown_in_their_order() -> None:
    assert str(Both()) == repr(Both()) == "<first>\nsecond\n  x\n<b>\nlast"
    found = re.sub("<(pre|table|div|t[hd]) [^>]*>", r"<\1>", Both()._repr_html_())
    assert found == (
        "<pre>&lt;first&gt;\nsecond</pre><div><table><thead><tr><th>x</th></tr></thead>"
        "<tbody><tr><td>&lt;b&gt;</td></tr></tbody></table></div><pre>last</pre>"
    )
    assert ">a &lt;b&gt;</pre>" in Page("a <b>")._repr_html_()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_show_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = dml.from_dict({f"column {i}": ["text"] for i in range(30)})
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((60, 20)))
    shown = []
    for out in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", out)
        ds.show()
        shown.append(out.getvalue().splitlines())
    narrow, whole = shown
    assert max(map(len, narrow)) <= 60 < max(map(len, whole))
    assert narrow[0].split()[1::2] == ["0", "1", "2", "column", "column"]
    assert narrow[0].split()[6] == "..."
    assert whole[0].split() == [word for i in range(30) for word in ("column", str(i))]
    assert narrow[-1] == whole[-1] == "(1 row)"


NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
import dml
shell = InteractiveShell.instance()
ds = dml.from_dict({"<i>": [1, 2], "n": [3.5, None]})
with capture_output() as got:
    ds.show()
    shell.display_formatter.format(ds)
(shown,) = got.outputs
assert shown.data["text/html"].count("<td") == 4, shown.data
assert "&lt;i&gt;" in shown.data["text/html"]
assert shown.data["text/plain"].splitlines()[-1] == "(2 rows)"
assert got.stdout == "", got.stdout
"""


def test_show_in_a_notebook_gives_html(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    home = {"HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    env = {**home, "PYTHONPATH": str(Path(dml.__file__).parents[1])}
    command = [sys.executable, "-c", NOTEBOOK]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------- pipelines


def slow(row: dict[str, int]) -> dict[str, int]:
    return {"id": row["id"] + len(str(row))}


def test_a_pipeline_is_drawn_from_its_source_to_its_end() -> None:
    other = dml.from_dict({"id": [1, 2], "<script>": ["a", "b"]})
    ds = (
        dml.range(10)
        .map(slow, schema={"id": "int64"})
        .join(other, on="id")
        .cache()
        .shuffle(5)
        .batch(2)
    )
    found = ds._repr_html_()
    titles = ["Range", "MapRows(slow)", "Memory", "Join(", "Cache(", "ShuffleWindow(", "Batch(2)"]
    places = [found.index(f'y="17">{title}') for title in titles]
    assert places == sorted(places)
    assert "<script>" not in found
    assert found.count("<line") == found.count("<title>") - 1 == 6
    assert "called for each row" in found
    assert "http://" not in found.replace("http://www.w3.org/2000/svg", "")


def test_each_input_leads_to_the_operator_that_reads_it() -> None:
    a, b, c = (dml.range(n) for n in (3, 4, 5))
    found = a.concat(b.shuffle(3), c.shuffle(4))._repr_html_()
    boxes = re.findall(r'<svg x="(\d+)" y="(\d+)"', found)
    (_, first), (_, c_source), (_, c_end), (_, b_source), (_, b_end), (_, reader) = [
        (int(x), int(y)) for x, y in boxes
    ]
    middle, height = 21, 42
    lines = re.findall(r'<line x1="(\d+)" y1="(\d+)" x2="(\d+)" y2="(\d+)"', found)
    assert [tuple(map(int, line)) for line in lines] == [
        (21, first + height, 21, reader),
        (61, c_source + height, 61, c_end),
        (41, c_end + middle, 21, c_end + middle),
        (61, b_source + height, 61, b_end),
        (41, b_end + middle, 21, b_end + middle),
    ]
    deep = dml.range(3)
    for _ in range(25):
        deep = dml.range(3).join(deep, on="id")
    assert 'width="-' not in deep._repr_html_()


def test_a_pipeline_that_cannot_run_is_displayed_with_the_reason(tmp_path: Path) -> None:
    dml.range(10).write_parquet(tmp_path / "table")
    ds = dml.read_parquet(tmp_path / "table").cache("disk").batch(2)
    ds = ds.with_options(cache_dir=str(tmp_path / "kept"))
    for file in (tmp_path / "table").iterdir():
        file.unlink()
    found = ds._repr_html_()
    assert "Batch(2)" in found
    assert "cannot be read" in found


def test_sixty_columns_take_less_than_a_hundred_kilobytes() -> None:
    texts = ["a text of more letters than those 32 that are shown"] * 30
    ds = dml.from_dict({f"column {i}": texts for i in range(60)})
    for shown in (ds, ds.schema, ds.map(slow)):
        assert len(shown._repr_html_()) < 100_000
    assert len(FirstRows(ds._first_rows(20))._repr_html_()) < 100_000


def test_a_description_is_a_dict_that_is_displayed_as_a_table() -> None:
    found = dml.from_dict(
        {"n": [1, None, 4], "x": [0.5, 1e-9, 3.0], "s": ["a", "b", "c"]}
    ).describe()
    assert found["n"] == {"count": 2, "null_count": 1, "mean": 2.5, "std": pytest.approx(2.1213203),
                          "min": 1, "max": 4}  # fmt: skip
    assert isinstance(found, dict)
    assert str(found).splitlines() == [
        "column  count  null_count     mean      std    min  max",
        "n           2           1      2.5  2.12132      1    4",
        "x           3           0  1.16667  1.60728  1e-09    3",
    ]
    del found["n"]["std"]
    found["n"]["range"] = 3
    assert str(found).splitlines()[1].split() == ["n", "2", "1", "2.5", "1", "4", "3"]
    assert str(dml.from_dict({"s": ["a"]}).describe()) == "no column has numbers"
    assert str(dml.from_dict({"a\nb": [1]}).describe()).splitlines()[1].startswith("a\\nb ")


def test_pictures_are_images_in_html_and_text_elsewhere() -> None:
    grid = Grid([["name", "image"], ["<a>", Picture("b'<bytes>'", lambda: b"png")]], texts={0, 1})
    assert grid.lines() == ["name  image", "<a>   b'<bytes>'"]
    image = '<img alt="b\'&lt;bytes&gt;\'" src="data:image/png;base64,cG5n">'
    assert image.replace("'", "&#x27;") in grid.html() or image in grid.html()
    broken = Grid([["x"], [Picture("text", lambda: None)]])
    assert "<img" not in broken.html()
    assert "text" in broken.html()
