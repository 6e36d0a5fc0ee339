"""Test that fingerprints include everything that code can read by reflection."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import types
import typing
from typing import Any

import pytest

from dml.errors import FingerprintError
from dml.udfs.identity import closure_walk
from dml.udfs.identity.function_fingerprint import identity
from dml.udfs.identity.reflection import sight


def made(text: str) -> Any:
    """The function ``f`` of a program that is a module of its own."""
    module = types.ModuleType("__main__")
    exec(compile(text, "program.py", "exec"), vars(module))
    return module.f


ARRAY = "import numpy as np\nA = np.arange(4).reshape(2, 2)\n"
# Programs whose ``f`` gives other values, for all that it does the same with equal values.
UNLIKE: dict[str, tuple[str, str]] = {
    "name": (
        "def g(): pass\ndef f(r): return g.__name__",
        "def h(): pass\ng = h\ndef f(r): return g.__name__",
    ),
    "name by text": (
        "def g(): pass\ndef f(r): return getattr(g, '__name__')",
        "def h(): pass\ng = h\ndef f(r): return getattr(g, '__name__')",
    ),
    "name in a wrapper": (
        "def w(g):\n def f(r): return g.__qualname__\n return f\ndef a(): pass\nf = w(a)",
        "def w(g):\n def f(r): return g.__qualname__\n return f\ndef b(): pass\nf = w(b)",
    ),
    "doc": (
        "def g(): 'one'\ndef f(r): return g.__doc__",
        "def g(): 'two'\ndef f(r): return g.__doc__",
    ),
    "annotations": (
        "def g(a: int): pass\ndef f(r): return g.__annotations__",
        "def g(a: str): pass\ndef f(r): return g.__annotations__",
    ),
    "signature": (
        "import inspect\ndef g(a: int): pass\ndef f(r): return str(inspect.signature(g))",
        "import inspect\ndef g(a: str): pass\ndef f(r): return str(inspect.signature(g))",
    ),
    "local variables": (
        "def g():\n a = 1\ndef f(r): return g.__code__.co_varnames",
        "def g():\n b = 1\ndef f(r): return g.__code__.co_varnames",
    ),
    "a function within": (
        "def g(): return lambda: (lambda x: x)\ndef f(r): return g().__code__.co_consts_of",
        "def g(): return lambda: (lambda y: y)\ndef f(r): return g().__code__.co_consts_of",
    ),
    "order of attributes": (
        "class C:\n a = 1\n b = 2\ndef f(r): return list(vars(C))",
        "class C:\n b = 2\n a = 1\ndef f(r): return list(vars(C))",
    ),
    "order of numbers in a set": (
        "S = {0, 8}\ndef f(r): return list(S)",
        "S = {8, 0}\ndef f(r): return list(S)",
    ),
    "order of a set in an instance": (
        "class C:\n def m(self, r): return [x for x in self.s]\nc = C()\nc.s = {0, 8}\nf = c.m",
        "class C:\n def m(self, r): return [x for x in self.s]\nc = C()\nc.s = {8, 0}\nf = c.m",
    ),
    "order in memory": (
        ARRAY + "def f(r): return A.ravel('K').tolist()",
        ARRAY + "A = A.copy('F')\ndef f(r): return A.ravel('K').tolist()",
    ),
    "two names of one list": (
        "A = []\nB = A\ndef f(r): return A is B",
        "A = []\nB = []\ndef f(r): return A is B",
    ),
    "two names of one array": (
        "import numpy as np\nA = np.zeros(1)\nB = A\ndef f(r): return A is B",
        "import numpy as np\nA = np.zeros(1)\nB = A.copy()\ndef f(r): return A is B",
    ),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_what_gives_other_values_has_another_name(case: str) -> None:
    one, other = map(made, UNLIKE[case])
    if case != "a function within":
        assert one({}) != other({})
    assert identity(one).code != identity(other).code
    assert identity(one).code == identity(made(UNLIKE[case][0])).code


WORDS = ("abcdefgh", "hgfedcba", "badcfehg")
STOP = "S = {'a', 'b'}\n"
CHANCE = {
    "a list": STOP + "def f(r): return list(S)",
    "a comprehension": STOP + "def f(r): return [x for x in S]",
    "a dict": STOP + "def f(r): return {x: 1 for x in S}",
    "a joined text": STOP + "def f(r): return ' '.join(x.upper() for x in S)",
    "a loop": STOP + "def f(r):\n for x in S: r = r.replace(x, '')\n return r",
    "the first": STOP + "def f(r): return next(iter(S))",
    "spread": STOP + "def f(r): return [*S]",
    "arguments": STOP + "def f(r): return print(*S)",
    "taken apart": STOP + "def f(r):\n a, b = S\n return a",
    "one or the other": STOP + "def f(r): return tuple(S if r else [])",
    "an attribute": "class C:\n def __init__(self): self.s = frozenset('ab')\n"
    " def m(self, r): return list(self.s)\nf = C().m",
    "made of the row": "def f(r): return list(set(r['words']))",
    "two operations": "def f(r):\n s = set(r)\n t = s | {'x'}\n return tuple(t)",
    "a set comprehension": "def f(r): return list({w.lower() for w in r})",
    "a constant": "def f(r):\n for x in {'a', 'b'}: print(x)",
    "subclasses": "class C: pass\ndef f(r): return len(C.__subclasses__())",
    "who calls": "import sys\ndef f(r): return sys._getframe(1).f_lineno",
    "the line": "def f(r): return f.__code__.co_firstlineno",
}


@pytest.mark.parametrize("case", CHANCE)
def test_what_is_left_to_chance_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closure_walk, "RANDOM_HASHES", True)
    with pytest.raises(FingerprintError, match=r"depends on the order of|it reads") as caught:
        identity(made(CHANCE[case]))
    assert caught.value.try_


def test_where_hashes_are_always_the_same_sets_have_an_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closure_walk, "RANDOM_HASHES", False)
    assert identity(made(CHANCE["made of the row"])).code
    names = [identity(made(f"S = set({word!r})\ndef f(r): return list(S)")).code for word in WORDS]
    orders = [tuple(set(word)) for word in WORDS]
    assert len(set(names)) == len(set(orders))


# Programs that see no more than one is to be told apart by, and another spelling of each.
ALIKE = {
    "looked up": (STOP + "def f(r): return r in S", "S = {'b', 'a'}\ndef f(r): return r in S"),
    "sorted": (
        STOP + "def f(r): return sorted(S), len(S), sum(1 for w in r if w in S)",
        "S = {'b', 'a'}\ndef f(r): return sorted(S), len(S), sum(1 for w in r if w in S)",
    ),
    "any": (
        STOP + "def f(r): return any(x in r for x in S)",
        "S = {'b', 'a'}\ndef f(r): return any(x in r for x in S)",
    ),
    "made and sorted": (
        "def f(r): return sorted(set(r) | {'q'}), len({x for x in r})",
        "def f(r): return sorted(set(r) | {'q'}), len({y for y in r})",
    ),
    "numbers looked up": (
        "S = {0, 8}\ndef f(r): return r in S",
        "S = {8, 0}\ndef f(r): return r in S",
    ),
    "another name": (
        "def g(): 'one'\ndef f(r): return g()",
        "def h(): 'two'\ng = h\nf = lambda r: g()",
    ),
    "another order": (
        "class C:\n a = 1\n b = 2\ndef f(r): return C.a",
        "class C:\n b = 2\n a = 1\ndef f(r): return C.a",
    ),
}


@pytest.mark.parametrize("case", ALIKE)
def test_what_nobody_sees_is_no_part_of_a_name(case: str) -> None:
    one, other = ALIKE[case]
    assert identity(made(one)).code == identity(made(other)).code


def test_a_list_that_contains_itself_has_a_name() -> None:
    assert identity(made("A = []\nA.append(A)\ndef f(r): return len(A)")).code


def test_code_of_any_kind_can_be_looked_at() -> None:
    """Whatever instructions this version of Python has."""
    modules = [inspect, subprocess, asyncio.tasks, typing]
    members = [value for module in modules for value in vars(module).values()]
    codes = [each.__code__ for each in members if isinstance(each, types.FunctionType)]
    assert len(codes) > 100
    for code in codes:
        sight(code)
