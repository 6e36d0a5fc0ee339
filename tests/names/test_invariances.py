"""Test that an edit that cannot change a row changes no fingerprint, in fifty spellings.

Each case is a program and another spelling of it, or the same program in another place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dml
from dml import col
from tests.names.programs import COLUMNS, PROGRAM, Edits, edited, files, loaded

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files(tmp_path_factory.mktemp("names") / "data")


SPELLINGS: dict[str, Edits] = {
    "blank lines": [("def helped", "\n\n\n\ndef helped")],
    "other indentation": [
        ("    moved = shifted(value)", "        moved = shifted(value)"),
        ("    return moved * SCALE", "        return moved * SCALE"),
    ],
    "a comment": [("    moved = ", "    # moves\n    moved = ")],
    "a docstring": [("def helped(value):\n", 'def helped(value):\n    """Help."""\n')],
    "a docstring of a method": [
        ("def scaled(self, value):\n", 'def scaled(self, value):\n        """Scale."""\n')
    ],
    "a docstring of a class": [("class Scaler:\n", 'class Scaler:\n    """Scales."""\n\n')],
    "parentheses": [("return moved * SCALE", "return (moved * (SCALE))")],
    "a statement over lines": [("moved * SCALE", "(\n        moved\n        * SCALE\n    )")],
    "other quotes": [('row["x"]', "row['x']")],
    "a number with underscores": [("ds.take(40)", "ds.take(4_0)")],
    "a number in hexadecimal": [("% 10 != 4", "% 0xA != 4")],
    "a product of numbers": [("% 10 != 4", "% (2 * 5) != 4")],
    "a renamed local variable": [("moved", "shifting")],
    "a renamed temporary": [("    text = ", "    words = "), ('"s": text', '"s": words')],
    "a renamed variable of the closure's own": [
        ("def around(factor)", "def around(factor)"),
        ("    return inner\n", "    made = inner\n    return made\n"),
    ],
    "a renamed handle": [
        ("    ds = ds", "    it = it"),
        ("    ds = dml", "    it = dml"),
        ("return ds", "return it"),
    ],
    "a handle in one chain": [
        ('    ds = ds.filter(col("x") > 2)\n    ds = ds', '    ds = ds.filter(col("x") > 2)')
    ],
    "a pass": [("    moved = ", "    pass\n    moved = ")],
    "annotations": [("def helped(value):", "def helped(value: int) -> int:")],
    "an else in which nothing is done": [
        (
            '    if PATTERN.match(row["s"]):\n        total = 2 * total\n',
            '    if PATTERN.match(row["s"]):\n        total = 2 * total\n    else:\n        pass\n',
        )
    ],
    "else after return": [
        (
            '    if PATTERN.match(row["s"]):\n        total = 2 * total\n    text = ',
            '    if not PATTERN.match(row["s"]): pass\n    else: total = 2 * total\n    text = ',
        )
    ],
    "a set in another order": [('["red", "blue", "green"]', '["green", "red", "blue"]')],
    "an unused global": [("SCALE = 3", "SCALE = 3\nUNUSED = 4")],
    "an unused import": [("import re\n", "import json\nimport re\n")],
    "an unused function": [("def good", "def unused(row):\n    return 1\n\n\ndef good")],
    "functions in another order": [
        ('def good(row):\n    return row["x"] % 10 != 4\n', ""),
        ("def make", 'def good(row):\n    return row["x"] % 10 != 4\n\n\ndef make'),
    ],
    "methods in another order": [
        ("    def __init__(self, by):\n        self.by = by\n\n", ""),
        ("self.offset\n", "self.offset\n\n    def __init__(self, by):\n        self.by = by\n"),
    ],
    "a renamed function of rows": [
        ("def rows(", "def described("),
        ("map(rows)", "map(described)"),
    ],
    "a lambda": [
        (
            'def good(row):\n    return row["x"] % 10 != 4\n',
            'good = lambda row: row["x"] % 10 != 4\n',
        )
    ],
    "a global computed": [("SCALE = 3", "SCALE = 1 + 2")],
    "a pattern compiled twice": [('re.compile("a+b")', 're.compile("a+" "b")')],
    "an array made otherwise": [("np.array([1.0, 2.0, 4.0])", "2.0 ** np.arange(3)")],
    "two filters swapped": [
        ('    ds = ds.filter(col("x") > 2)\n', ""),
        (
            '    ds = ds.filter(col("y") < 90.0)\n',
            '    ds = ds.filter(col("y") < 90.0)\n    ds = ds.filter(col("x") > 2)\n',
        ),
    ],
    "two filters as one": [
        ('    ds = ds.filter(col("x") > 2)\n', ""),
        ('ds.filter(col("y") < 90.0)', 'ds.filter((col("x") > 2) & (col("y") < 90.0))'),
    ],
    "a filter turned round": [('col("x") > 2', '2 < col("x")')],
    "a filter twice": [
        (
            '    ds = ds.filter(col("y") < 90.0)\n',
            '    ds = ds.filter(col("y") < 90.0)\n    ds = ds.filter(col("x") > 2)\n',
        )
    ],
    "take twice": [("ds.take(40)", "ds.take(40).take(50)")],
    "processors, memory and names of tasks": [
        ("ds.map(rows)", "ds.map(rows, num_cpus=2, concurrency=1)")
    ],
    "prefetch": [("ds.batch(4)", "ds.batch(4).prefetch(3)")],
    "an option of the run": [("return ds", "return ds.with_options(num_workers=3)")],
}

LAWS: dict[str, Edits] = {
    "a commutative sum": [('col("x") * 2 + col("id")', 'col("id") + col("x") * 2')],
    "a commutative product": [('col("x") * 2', '2 * col("x")')],
    "columns in two steps": [(', u=col("y") + 1.0)', ').with_columns(u=col("y") + 1.0)')],
    "columns in another order": [
        (
            'z=col("x") * 2 + col("id"), u=col("y") + 1.0',
            'u=col("y") + 1.0, z=col("x") * 2 + col("id")',
        )
    ],
    "columns with an alias": [
        ('z=col("x") * 2 + col("id"), u=', '(col("x") * 2 + col("id")).alias("z"), u=')
    ],
    "a temporary column": [
        (
            'with_columns(z=col("x") * 2 + col("id"),',
            'with_columns(temporary=col("x") * 2).with_columns(z=col("temporary") + col("id"),',
        )
    ],
    "a dead column": [
        ("    ds = ds.select", '    ds = ds.with_columns(dead=col("x") - 1)\n    ds = ds.select')
    ],
    "renamed and back": [
        ("    ds = ds.take", '    ds = ds.rename(z="q").rename(q="z")\n    ds = ds.take')
    ],
    "all columns selected": [
        ("    ds = ds.take", '    ds = ds.select("id", "z", "u", "s")\n    ds = ds.take')
    ],
    "dropped instead of selected": [
        ('ds.select("id", "z", "u", "s")', 'ds.drop("x", "y").select("id", "z", "u", "s")')
    ],
    "a filter after the columns": [
        ('    ds = ds.filter(col("x") > 2)\n', ""),
        ("    ds = ds.select", '    ds = ds.filter(col("x") > 2)\n    ds = ds.select'),
    ],
    "a filter of a renamed column": [
        (
            'ds.filter(col("x") > 2)',
            'ds.rename(x="other").filter(col("other") > 2).rename(other="x")',
        )
    ],
    "a filter that keeps all": [
        ("    ds = ds.take", "    ds = ds.filter(lit(True))\n    ds = ds.take")
    ],
    "a branch that is known": [
        ('u=col("y") + 1.0', 'u=when(lit(True)).then(col("y") + 1.0).otherwise(0.0)')
    ],
    "columns of the source": [
        ("dml.read_parquet(root)", 'dml.read_parquet(root).select("id", "x", "y", "s")')
    ],
}


@pytest.mark.law
@pytest.mark.parametrize("case", SPELLINGS)
def test_another_spelling_has_the_same_fingerprint(case: str, data: Path, tmp_path: Path) -> None:
    same(PROGRAM, SPELLINGS[case], data, tmp_path)


@pytest.mark.law
@pytest.mark.parametrize("case", LAWS)
def test_what_means_the_same_has_the_same_fingerprint(
    case: str, data: Path, tmp_path: Path
) -> None:
    same(COLUMNS, LAWS[case], data, tmp_path)


def same(text: str, edits: Edits, data: Path, folder: Path) -> None:
    one = loaded(folder, text)(data)
    other = loaded(folder, edited(text, edits))(data)
    assert one.fingerprint() == other.fingerprint(), dml.why_miss(one, other)
    assert not dml.why_miss(one, other)
    assert str(dml.why_miss(one, other)) == "no difference: both have one fingerprint"


# -------------------------------------------------------------------------------- elsewhere, later


def _copied(data: Path, folder: Path) -> Any:
    return shutil.copytree(data, folder / "elsewhere")


def _older(data: Path, folder: Path) -> Any:
    there = shutil.copytree(data, folder / "older")
    for path in there.iterdir():
        os.utime(path, (1e9, 1e9))
    return there


def _linked(data: Path, folder: Path) -> Any:
    (folder / "mounted").symlink_to(data)
    return folder / "mounted"


def _relative(data: Path, folder: Path) -> Any:
    return os.path.relpath(data)


def _matched(data: Path, folder: Path) -> Any:
    return f"{data}/*.parquet"


def _listed(data: Path, folder: Path) -> Any:
    return sorted(data.iterdir(), reverse=True)


def _rewritten(data: Path, folder: Path) -> Any:
    there = shutil.copytree(data, folder / "rewritten")
    for path in there.iterdir():
        found = path.read_bytes()
        path.unlink()
        path.write_bytes(found)
    return there


PLACES: list[Callable[[Path, Path], Any]] = [
    *(_copied, _older, _linked, _relative, _matched, _listed, _rewritten),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.strip("_"))
def test_the_same_files_elsewhere_have_the_same_fingerprint(
    place: Callable[[Path, Path], Any], data: Path, tmp_path: Path
) -> None:
    make = loaded(tmp_path, PROGRAM)
    assert make(place(data, tmp_path)).fingerprint() == make(data).fingerprint()


OPTIONS: list[dict[str, Any]] = [
    {"executor": "sync"},
    {"executor": "processes"},
    {"num_workers": 1},
    {"memory_limit": "300MiB"},
    {"target_partition_bytes": 1000},
    {"kernels": "numpy"},
    {"optimize": False},
    {"disable_rules": ("merge_columns",)},
    {"prefetch": 0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: next(iter(each)))
def test_how_a_run_goes_is_no_part_of_the_fingerprint(
    options: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    made = loaded(tmp_path, PROGRAM)(data)
    assert made.with_options(**options).fingerprint() == made.fingerprint()


TABLE = pa.table({"a": [1, 2, 3, 4], "b": ["p", None, "q", "r"]})
LAID: dict[str, Callable[[], dml.Dataset]] = {
    "chunks": lambda: dml.from_arrow(pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)])),
    "a slice": lambda: dml.from_arrow(pa.concat_tables([TABLE, TABLE]).slice(4)),
    "a copy": lambda: dml.from_arrow(pa.Table.from_pylist(TABLE.to_pylist(), TABLE.schema)),
}


@pytest.mark.parametrize("case", LAID)
def test_how_rows_lie_in_memory_is_no_part_of_the_fingerprint(case: str) -> None:
    whole = dml.from_arrow(TABLE).filter(col("a") > 1)
    assert LAID[case]().filter(col("a") > 1).fingerprint() == whole.fingerprint()


def test_strides_are_no_part_of_the_fingerprint() -> None:
    wide = np.arange(20).reshape(10, 2)
    one = dml.from_numpy(np.ascontiguousarray(wide[:, 0]))
    assert dml.from_numpy(wide[:, 0]).fingerprint() == one.fingerprint()


PROCESS = """
import sys
from pathlib import Path
from tests.names.programs import PROGRAM, loaded
print(loaded(Path(sys.argv[2]), PROGRAM)(Path(sys.argv[1])).fingerprint())
"""


@pytest.mark.law
@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_another_process_has_the_same_fingerprint(seed: str, data: Path, tmp_path: Path) -> None:
    """With hashes of text of its own, so that sets are in another order, and from its own file."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, data, tmp_path],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == loaded(tmp_path, PROGRAM)(data).fingerprint()


@pytest.mark.law
def test_a_helper_in_a_module_of_its_own_has_the_same_fingerprint(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "def shifted(value, by=1):\n    return value + by\n"
    (tmp_path / "shifting_apart.py").write_text(text, encoding="utf-8")
    moved = edited(
        PROGRAM, [(text, ""), ("import re\n", "import re\nfrom shifting_apart import shifted\n")]
    )
    one, other = loaded(tmp_path, PROGRAM)(data), loaded(tmp_path, moved)(data)
    sys.modules.pop("shifting_apart")
    assert one.fingerprint() == other.fingerprint(), dml.why_miss(one, other)


def test_two_handles_of_one_pipeline_differ_in_nothing(data: Path) -> None:
    one = dml.read_parquet(data).take(3)
    assert not dml.why_miss(one, one)
