"""Test what users see where something fails: their own lines, and the row."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dml
from dml.base import tracebacks
from dml.base.user_line import line_name
from dml.errors import InternalError, UDFError

OFF: dict[str, Any] = {"telemetry_dir": "off"}
HERE = Path(__file__).name


def inner(x: int) -> float:
    return 10 / (x - 3)


def load(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": inner(row["x"])}


@pytest.fixture
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tracebacks.SWITCH)


def failing(**options: Any) -> dml.Dataset:
    return dml.from_dict({"x": [1, 2, 3, 4]}).map(load).with_options(**OFF, **options)


def frames(error: BaseException) -> list[str]:
    """The files of a traceback."""
    return [Path(each.filename).name for each in traceback.extract_tb(error.__traceback__)]


@pytest.mark.usefixtures("_brief")
@pytest.mark.parametrize("executor", ["sync", "threads"])
def test_the_last_line_of_a_failing_function_is_its_own(executor: str) -> None:
    with pytest.raises(UDFError) as raised:
        list(failing(executor=executor))
    assert frames(raised.value) == [HERE, "iterator.py"]
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert frames(raised.value.__cause__) == [HERE, HERE]
    line = inner.__code__.co_firstlineno + 1
    told = f"at {HERE}:{line}: return 10 / (x - 3); the row was then {{x: 3}}"
    assert raised.value.__notes__ == [told]
    assert "x: 3" not in str(raised.value)


def test_all_lines_are_there_if_asked_for() -> None:
    with pytest.raises(UDFError) as raised:
        list(failing(executor="sync"))
    assert len(frames(raised.value)) > 5
    assert frames(raised.value.__cause__ or raised.value)[-2:] == [HERE, HERE]


@pytest.mark.usefixtures("_brief")
def test_a_verb_that_refuses_has_one_line_of_dml() -> None:
    with pytest.raises(dml.errors.SchemaError) as raised:
        dml.range(3).select("gone")
    assert frames(raised.value) == [HERE, "user_line.py"]


@pytest.mark.usefixtures("_brief")
def test_a_fault_of_dml_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise InternalError("broken")

    monkeypatch.setattr(dml.Dataset, "_then", broken)
    with pytest.raises(InternalError) as raised:
        dml.range(3).take(1)
    assert len(frames(raised.value)) > 2


@pytest.mark.cluster
def test_what_a_script_prints(tmp_path: Path) -> None:
    """Also of a function that failed in another process."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\n"
        "import dml\n"
        "def load(row):\n"
        "    return {'y': 1 / row['id']}\n"
        "for row in dml.range(3).map(load).with_options(executor=sys.argv[1]):\n"
        "    pass\n"
    )
    clean = {key: value for key, value in os.environ.items() if key != tracebacks.SWITCH}
    for executor in ("threads", "processes"):
        done = subprocess.run(
            [sys.executable, str(script), executor],
            env=clean, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        lines = done.stderr.splitlines()
        assert done.returncode == 1
        assert len(lines) < 24, done.stderr
        assert "user_call.py" not in done.stderr
        assert "line 4, in load" in done.stderr
        assert "at train.py:4: " in lines[-1] or "at line 4 of" in lines[-1]
        assert "the row was then {id: 0}" in lines[-1]


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("not this one")


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"x": 1, "s": "a", "n": None, "f": 0.5}, "{x: 1, s: 'a', n: None, f: 0.5}"),
        ({"b": b"12345" * 1000}, "{b: 5,000 bytes}"),
        ({"a": np.zeros((2, 3), "u1"), "z": np.float32(0.5)}, "{a: uint8[2, 3], z: 0.5}"),
        ({"l": [1, 2, 3], "d": {"k": 1}, "o": Odd()}, "{l: list of 3, d: dict of 1, o: Odd}"),
        (dict.fromkeys("abcdefghij", 0), "{a: 0, b: 0, c: 0, d: 0, e: 0, f: 0, g: 0, h: 0, ...}"),
        ({"a\nb": "c\nd"}, "{a b: 'c\\nd'}"),
    ],
)
def test_a_row_is_shown_on_one_short_line(row: Any, shown: str) -> None:
    assert tracebacks._row(row) == shown


def test_long_values_are_cut() -> None:
    shown = tracebacks._row({"s": "x" * 10**7, "n": 10**500, "m": 10**9999})
    assert len(shown) < 250
    assert shown.count("...") == 2


def test_an_exception_without_lines_of_the_users_has_no_place() -> None:
    assert tracebacks.failed_at(ValueError("never raised"), load, "row", line_name) == ""
    with pytest.raises(UDFError) as raised:
        list(
            dml.from_dict({"x": ["a"]})
            .map(vars(dict)["popitem"])
            .with_options(**OFF, executor="sync")
        )
    assert raised.value.why


CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.colors = "nocolor"
shell.run_cell("import dml", store_history=True)
shell.run_cell("def load(row):\\n    return {'x': 1 / row['id']}", store_history=True)
shell.run_cell("list(dml.range(3).map(load))", store_history=True)
shell.run_cell("dml.range(3).select('gone')", store_history=True)
"""


@pytest.mark.cluster
def test_a_notebook_names_cells_and_shows_few_lines() -> None:
    clean = {key: value for key, value in os.environ.items() if key != tracebacks.SWITCH}
    done = subprocess.run(
        [sys.executable, "-c", CELLS],
        env=clean, capture_output=True, text=True, check=True, timeout=200,
    )  # fmt: skip
    function, verb = done.stdout.split("SchemaError", 1)
    assert "written in Cell In[3], line 1" in function
    assert "at Cell In[2], line 2: return {'x': 1 / row['id']}; the row was then" in function
    assert "written in Cell In[4], line 1" in verb
    assert "user_call.py" not in function
    assert len(function.splitlines()) < 45
    assert len(verb.splitlines()) < 25


@pytest.mark.parametrize("shell", [None, object(), types.SimpleNamespace(compile=object())])
def test_a_shell_that_names_no_cells_names_files(
    shell: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", made)
    assert line_name("/a/train.py", 3) == "train.py:3"


def test_a_function_that_cannot_be_called_so_says_what_a_row_is() -> None:
    def pair(image: Any, label: Any) -> Any:
        return {"image": image, "label": label}

    with pytest.raises(UDFError) as raised:
        list(dml.range(3).map(pair).with_options(**OFF))  # type: ignore[arg-type]
    assert raised.value.__notes__ == ["a row is one argument, a dict by column"]


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """It refuses attributes."""

    number: int


@pytest.mark.usefixtures("_brief")
@pytest.mark.parametrize("executor", ["sync", "threads", "processes"])
def test_an_exception_that_refuses_attributes_is_the_cause_of_a_typed_error(executor: str) -> None:
    def refuse(row: dict[str, Any]) -> dict[str, Any]:
        raise FrozenError(row["id"])

    with pytest.raises(UDFError) as raised:
        list(dml.range(3).map(refuse).with_options(**OFF, executor=executor))
    assert "FrozenError" in raised.value.what


@pytest.mark.usefixtures("_brief")
def test_lines_of_the_users_between_those_of_dml_stay() -> None:
    def build(ds: dml.Dataset) -> dml.Dataset:
        return ds.select("gone")

    with pytest.raises(dml.errors.SchemaError) as raised:
        dml.range(3).pipe(build)
    assert frames(raised.value).count(HERE) == 2


def decorated(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper


@decorated
def wrapped(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": 1 / row["id"]}


def scaled(factor: float, row: dict[str, Any]) -> dict[str, Any]:
    return {"y": factor / row["id"]}


class Loading:
    def __call__(this, row: dict[str, Any]) -> dict[str, Any]:  # noqa: N805 - whatever its name is
        return {"y": 1 / row["id"]}


@pytest.mark.parametrize(
    ("fn", "line", "row"),
    [
        (wrapped, 'return {"y": 1 / row["id"]}', "{id: 0}"),
        (functools.partial(scaled, 3.0), 'return {"y": factor / row["id"]}', ""),
        (Loading(), 'return {"y": 1 / row["id"]}', ""),
        (Loading, 'return {"y": 1 / row["id"]}', ""),
    ],
)
def test_the_line_is_that_of_the_function_and_the_row_is_no_other_argument(
    fn: Any, line: str, row: str
) -> None:
    with pytest.raises(UDFError) as raised:
        list(dml.range(3).map(fn).with_options(**OFF, executor="sync"))
    (note,) = raised.value.__notes__
    assert line in note
    assert note.partition("the row was then ")[2] == row
