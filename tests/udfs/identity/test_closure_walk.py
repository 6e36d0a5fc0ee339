"""Test that any change of a function's behaviour changes its fingerprint, or raises an error."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from dml.errors import FingerprintError
from dml.udfs.identity.function_fingerprint import identity

PROGRAM = '''
import datetime, enum, functools, math, re
import collections
import numpy as np
K = 3
TABLE = {"a": 1, "b": 2}
NAMES = {"q", "w"}
WEIGHTS = np.array([1.0, 2.0])
WORD = re.compile("ab+", re.I)
WHEN = datetime.date(2020, 1, 2)
Pair = collections.namedtuple("Pair", "x y")
class Kind(enum.Enum):
    GOOD = 1
    BAD = 2
class Base:
    offset = 10
    def shift(self, x): return x + self.offset
class Scale(Base):
    factor = 2.0
    def __init__(self, start): self.start = start
    def apply(self, x): return x * self.factor + self.start
    @staticmethod
    def clip(x): return min(max(x, 0), 1)
    @property
    def size(self): return self.start
scale = Scale(1.5)
def deep(x): return x - 1
def helper(x): return deep(x) * K
def make(low, *, high=9):
    limit = [low, 5]
    def inner(x): return limit[0] < x < high
    return inner
inside = make(0)
def base(x, exp, mod=None): return pow(x, exp)
power = functools.partial(base, 2, mod=7)
def f(row, first=1.0, *, kind="l"):
    """Doc."""
    a, b = row["a"], row["b"]
    if inside(a) and WORD.match(row["t"]):
        return {"y": helper(a) - b, "z": [v + 1 for v in row["l"] if v > 2]}
    try:
        total = a / b
    except ZeroDivisionError:
        total = None
    while b > 0:
        b -= 1
    return {"y": scale.apply(total), "k": TABLE[kind], "w": WEIGHTS.sum() * math.sin(a),
            "n": row["t"] in NAMES, "p": power(a), "q": Pair(1, 2), "d": WHEN, "e": Kind.GOOD}
'''
EDITS: dict[str, tuple[str, str]] = {
    "a global": ("K = 3", "K = 4"),
    "a global's type": ("K = 3", "K = 3.0"),
    "a global as True": ("K = 3", "K = True"),
    "a value in a dict": ('"b": 2}', '"b": 3}'),
    "a key in a dict": ('"b": 2}', '"c": 2}'),
    "the order of a dict": ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
    "a member of a set": ('{"q", "w"}', '{"q", "v"}'),
    "an array's element": ("np.array([1.0, 2.0])", "np.array([1.0, 3.0])"),
    "an array's dtype": ("np.array([1.0, 2.0])", "np.array([1.0, 2.0], 'f4')"),
    "an array's shape": ("np.array([1.0, 2.0])", "np.array([[1.0, 2.0]])"),
    "a pattern": ('"ab+"', '"ab*"'),
    "a pattern's flag": ("re.I", "re.M"),
    "a date": ("date(2020, 1, 2)", "date(2020, 1, 3)"),
    "a tuple's field": ('"Pair", "x y"', '"Pair", "x z"'),
    "an enum's value": ("GOOD = 1", "GOOD = 3"),
    "an enum's member": ('"e": Kind.GOOD', '"e": Kind.BAD'),
    "a base's attribute": ("offset = 10", "offset = 11"),
    "a base's method": ("return x + self.offset", "return x - self.offset"),
    "a class's attribute": ("factor = 2.0", "factor = 2.5"),
    "the type of a class's attribute": ("factor = 2.0", "factor = 2"),
    "a method": ("x * self.factor + self.start", "x * self.factor - self.start"),
    "a constructor": ("self.start = start", "self.start = start * 1"),
    "a static method": ("min(max(x, 0), 1)", "min(max(x, 0), 2)"),
    "a static method's kind": ("@staticmethod", "@classmethod"),
    "a property": ("def size(self): return self.start", "def size(self): return -self.start"),
    "an instance's state": ("Scale(1.5)", "Scale(1.25)"),
    "a class's base": ("class Scale(Base)", "class Scale"),
    "a callee's callee": ("return x - 1", "return x - 2"),
    "a callee": ("return deep(x) * K", "return deep(x) + K"),
    "which callee": ("return deep(x) * K", "return base(x, 1) * K"),
    "a closure's value": ("make(0)", "make(-0.0)"),
    "a closure's keyword default": ("high=9", "high=8"),
    "a list in a closure": ("limit = [low, 5]", "limit = [low, 6]"),
    "a list as a tuple": ("limit = [low, 5]", "limit = (low, 5)"),
    "a partial's argument": ("(base, 2, mod=7)", "(base, 3, mod=7)"),
    "a partial's keyword": ("(base, 2, mod=7)", "(base, 2, mod=8)"),
    "a partial's function": ("(base, 2, mod=7)", "(deep, 2, mod=7)"),
    "a default": ("first=1.0", "first=2.0"),
    "a keyword default": ('kind="l"', 'kind="m"'),
    "an argument's kind": ("first=1.0, *,", "first=1.0,"),
    "an argument's name": ("first=1.0", "other=1.0"),
    "an output's name": ('{"y": helper', '{"x": helper'),
    "a column's name": ('row["a"]', 'row["c"]'),
    "an operator": ("helper(a) - b", "helper(a) + b"),
    "the order of operands": ("helper(a) - b", "b - helper(a)"),
    "a comparison": ("limit[0] < x < high", "limit[0] <= x < high"),
    "a boolean operator": ("inside(a) and", "inside(a) or"),
    "a constant in a comprehension": ("[v + 1", "[v + 2"),
    "a condition in a comprehension": ("if v > 2", "if v > 3"),
    "which exception": ("except ZeroDivisionError", "except ValueError"),
    "a result in a handler": ("total = None", "total = 0"),
    "a loop's condition": ("while b > 0", "while b > 1"),
    "which library function": ("math.sin(a)", "math.cos(a)"),
    "which method": ("WEIGHTS.sum()", "WEIGHTS.max()"),
    "an attribute": ("scale.apply(total)", "scale.shift(total)"),
    "a negation": ('row["t"] in NAMES', 'row["t"] not in NAMES'),
    "a statement more": ("a, b = row", "a, c = row"),
}


def name_of(text: str) -> bytes:
    space: dict[str, Any] = {"__name__": "written"}
    exec(compile(text, "written.py", "exec"), space)
    return identity(space["f"]).code


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_changes_the_name(edit: str) -> None:
    old, new = EDITS[edit]
    assert PROGRAM.count(old), "the edit must fit the program"
    assert name_of(PROGRAM.replace(old, new)) != name_of(PROGRAM)


@pytest.mark.law
def test_every_edit_has_its_own_name() -> None:
    assert len({name_of(PROGRAM.replace(*edit)) for edit in EDITS.values()}) == len(EDITS)


UNSEEN: dict[str, tuple[str, str]] = {
    "a comment": (
        "K = 3",
        "K = 3  # three",
    ),
    "lines above": (
        "import datetime",
        "\n\nimport datetime",
    ),
    "the docstring": (
        '"""Doc."""',
        '"""Another."""',
    ),
    "no docstring": (
        '    """Doc."""\n',
        "",
    ),
    "a local variable's name": (
        "total",
        "sum_of_it",
    ),
    "a global that is not used": (
        "K = 3",
        "K = 3\nOTHER = object()",
    ),
    "the order of methods": (
        (
            "    @staticmethod\n"
            "    def clip(x): return min(max(x, 0), 1)\n"
            "    @property\n"
            "    def size(self): return self.start\n"
        ),
        (
            "    @property\n"
            "    def size(self): return self.start\n"
            "    @staticmethod\n"
            "    def clip(x): return min(max(x, 0), 1)\n"
        ),
    ),
    "the order of a set": (
        '{"q", "w"}',
        '{"w", "q"}',
    ),
    "a function that is not used": (
        "def f(row",
        "def unused(): pass\ndef f(row",
    ),
}


@pytest.mark.parametrize("edit", UNSEEN)
def test_what_does_not_matter_keeps_the_name(edit: str) -> None:
    old, new = UNSEEN[edit]
    assert PROGRAM.count(old), "the edit must fit the program"
    assert name_of(PROGRAM.replace(old, new)) == name_of(PROGRAM)


# ------------------------------------------------------------------------------ modules of the user


def module(name: str, text: str) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__file__ = f"/home/someone/{name}.py"
    sys.modules[name] = made
    exec(compile(text, made.__file__, "exec"), vars(made))
    return made


def test_of_a_module_only_what_is_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own", types.ModuleType("own"))
    text = "import own\ndef f(row): return own.used(row)"
    module("own", "def deep(x): return x\ndef used(x): return deep(x)\ndef unused(x): return 1")
    first = name_of(text)
    module("own", "def deep(x): return x\ndef used(x): return deep(x)\ndef unused(x): return 2")
    assert name_of(text) == first
    module("own", "def deep(x): return -x\ndef used(x): return deep(x)")
    assert name_of(text) != first


@pytest.mark.parametrize(
    "text",
    [
        "import own\ndef f(row):\n    m = own\n    return m.used(row)",
        "def f(row):\n    import own\n    return own.used(row)",
        "def f(row):\n    from own import used\n    return used(row)",
        "import own\ndef f(row): return getattr(own, row['name'])(row)",
    ],
)
def test_a_module_used_as_a_whole_counts_as_a_whole(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own", types.ModuleType("own"))
    module("own", "def used(x): return x")
    first = name_of(text)
    module("own", "def used(x): return x + 1")
    assert name_of(text) != first


def test_a_library_function_is_its_place_and_version() -> None:
    found = identity(np.log1p)
    assert found.libraries == (("numpy", np.__version__),)
    assert found.code != identity(np.log2).code


def test_a_function_that_only_claims_to_be_a_librarys_is_the_users() -> None:
    text = "def f(x): return x + {}\nf.__module__, f.__qualname__ = 'numpy', 'log1p'"
    assert name_of(text.format(1)) != name_of(text.format(2))


def test_a_closure_made_by_a_library_counts_with_what_it_holds() -> None:
    text = "import functools\nf = functools.wraps(len)(lambda x: x + {})"
    assert name_of(text.format(1)) != name_of(text.format(2))
    text = "import functools\n@functools.singledispatch\ndef g(x): return {}\nf = g.dispatch(int)"
    assert name_of(text.format(1)) != name_of(text.format(2))


def test_deep_and_wide_programs_are_walked_once() -> None:
    calls = "".join(f"def g{i}(x): return g{i - 1}(x) + g{i - 1}(-x)\n" for i in range(1, 60))
    text = "def g0(x): return x * {}\n" + calls + "def f(x): return g59(x)"
    assert name_of(text.format(1)) != name_of(text.format(2))


def test_a_name_that_is_not_defined_yet_is_refused() -> None:
    with pytest.raises(FingerprintError, match="'later' is not defined yet"):
        name_of("def f(row): return later(row)")
