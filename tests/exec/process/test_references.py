"""Test pickling by value and by name: a name means the same code, or raises an error."""

from __future__ import annotations

import dataclasses
import enum
import functools
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest

from dml.errors import PlanError
from dml.exec.process.references import by_value, dumped, loaded, pickled

ROOT = Path(__file__).parents[3]


def crossed(value: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    sent = dumped(value, buffers.append)
    return loaded(sent, [bytes(each.raw()) for each in buffers])


Writes = Callable[[str], Any]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writes:
    """Writes and imports a module ``dml_referred``."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(text: str) -> Any:
        (tmp_path / "dml_referred.py").write_text(text)
        monkeypatch.delitem(sys.modules, "dml_referred", raising=False)
        return __import__("dml_referred")

    return written


ONE = "def f(row):\n    return len(str(1))\n\nclass K:\n    def m(self): return 1\n"
OTHER = ONE.replace("str(1)", "str(22)")
OTHER_CLASS = ONE.replace("return 1", "return 2")


def test_what_has_not_changed_is_read(write: Writes) -> None:
    module = write(ONE)
    assert crossed([module.f, module.K, module.K().m, module])[0] is module.f


@pytest.mark.parametrize(
    ("pick", "other"),
    [
        (lambda module: module.f, OTHER),
        (lambda module: module, OTHER),
        (lambda module: functools.partial(module.f, 1), OTHER),
        (lambda module: [module.K()], OTHER_CLASS),
        (lambda module: module.f, "f = None"),
        (lambda module: module.f, "def f(row): return open"),
    ],
)
def test_what_is_another_there_is_refused(write: Writes, pick: Any, other: str) -> None:
    sent = dumped(pick(write(ONE)), print)
    write(other)
    with pytest.raises(PlanError, match=r"dml_referred\.[fK] is something else"):
        loaded(sent, [])


def test_a_module_that_travels_by_value_already_goes_on_doing_so(write: Writes) -> None:
    """As the file does that the command line runs, or a module that the user registered."""
    module, other = write("def f(): return 1"), sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        with by_value([module, other]), by_value(iter([other, module])):
            assert {module.__name__, other.__name__} <= registered()
        assert module.__name__ in registered()
        assert other.__name__ not in registered()
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_modules_travel_by_value_until_the_last_block_ends(write: Writes) -> None:
    module, before = write("def f(): return 1"), registered()
    first, second = by_value([module]), by_value([module])
    with first:
        second.__enter__()
    assert registered() == before | {module.__name__}, "the second block goes on"
    second.__exit__(None, None, None)
    assert registered() == before


def test_a_module_that_cannot_travel_leaves_the_registry_alone(write: Writes) -> None:
    module, before = write("def f(): return 1"), registered()
    with pytest.raises(ValueError, match="not imported"), by_value([module, ModuleType("none")]):
        pass
    assert registered() == before


def registered() -> set[str]:
    return set(cloudpickle.list_registry_pickle_by_value())


def test_what_is_absent_there_raises_as_importing_does(write: Writes, tmp_path: Path) -> None:
    sent = dumped(write(ONE).f, print)
    del sys.modules["dml_referred"]
    (tmp_path / "dml_referred.py").unlink()
    with pytest.raises(ModuleNotFoundError, match="dml_referred"):
        loaded(sent, [])


def test_large_arrays_stay_beside() -> None:
    buffers: list[pickle.PickleBuffer] = []
    array = np.arange(100_000)
    assert len(dumped([array, len], buffers.append)) < 1000
    assert [each.raw().nbytes for each in buffers] == [array.nbytes]
    assert (crossed(array) == array).all()


def test_what_belongs_to_libraries_is_not_compared() -> None:
    names = pickle.loads(dumped([np.mean, Path, PlanError, cloudpickle.dumps], print))
    assert names == {}


SCRIPT = """
import collections, dataclasses, enum, functools, subprocess, sys
import numpy as np
from dml.exec.process.references import dumped

class Slots:
    __slots__ = ("a",)
    def __init__(self): self.a = 1
    def __call__(self, row): return row

class Base:
    def f(self, row): return row

class Child(Base):
    z: int = 3
    def f(self, row): return super().f(row)

@dataclasses.dataclass
class Point:
    x: int = 1
    def shift(self, row): return row

class Color(enum.Enum):
    A = 1

Pair = collections.namedtuple("Pair", "a b")
table = np.arange(3)
def again(n): return again(n - 1) if n else 0
values = [Slots(), Child().f, Child, Point(2).shift, lambda row: (Color.A, Pair(1, 2), table),
          functools.partial(again, 2), again]
reads = "import sys; from dml.exec.process.references import loaded; "
reads += "loaded(sys.stdin.buffer.read(), [])"
subprocess.run([sys.executable, "-c", reads], input=dumped(values, lambda _: True), check=True)
"""


@pytest.mark.law
def test_a_main_module_travels_whole() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, cwd=ROOT, timeout=60)


THERE = """
import sys
from dml.exec.process.references import loaded
fib, said, Tokens, made, three, twice = loaded(sys.stdin.buffer.read(), [])
assert (fib(9), fib.cache_parameters()) == (34, {"maxsize": 16, "typed": True})
assert (fib.known, fib.cache_info().currsize) == ("as an attribute", 10)
assert fib.__wrapped__.__globals__["fib"] is fib
assert (said(7), said("x"), said.__name__) == ("int 13 object", "object", "said")
for each in (made, Tokens()):
    assert (each.of(2), each.kind(1), each.kind("x")) == ("int 5 object" * 2, "any", "text")
    assert each.__dict__["length"] == "int 5 object"
    assert (each.loud, type(each).loud.__doc__) == ("!int 5 object!", "A class of one's own.")
assert (three(), twice(4), twice.__name__) == (2, 8, "twice")
"""
REMADE = f"""
import functools, subprocess, sys
from dml.exec.process.references import dumped

@functools.lru_cache(maxsize=16, typed=True)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@functools.singledispatch
def said(x):
    return "object"

@said.register
def _(x: int):
    return f"int {{fib(x)}} {{said(None)}}"

class Loud(functools.cached_property):
    def __get__(self, one, kind=None):
        found = super().__get__(one, kind)
        return found if one is None else "!" + found + "!"

class Tokens:
    @functools.cached_property
    def length(self):
        return said(5)

    @Loud
    def loud(self):
        "A class of one's own."
        return said(5)

    @functools.cache
    def of(self, x):
        return self.length * x

    @functools.singledispatchmethod
    def kind(self, x):
        return "any"

    @kind.register
    def _(self, x: str):
        return "text"

def wrapping(f):
    @functools.wraps(f)
    def inner(x):
        return f(x)
    return inner

@wrapping
def twice(x):
    return 2 * x

fib.known = "as an attribute"
assert fib(9) == 34 and Tokens().of(1) == "int 5 object"
values = [fib, said, Tokens, Tokens(), functools.partial(fib, 3), twice]
sent = dumped(values, lambda _: True)
subprocess.run([sys.executable, "-c", {THERE!r}], input=sent, check=True)
"""


@pytest.mark.law
@pytest.mark.parametrize("of_a_cell", [False, True])
def test_what_functools_makes_in_a_main_module_travels_whole(*, of_a_cell: bool) -> None:
    program = f"exec({REMADE!r}, {{'__name__': '__main__'}})" if of_a_cell else REMADE
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)


@functools.cache
def remembered(x: int) -> int:
    return x


@functools.singledispatch
def told(_: object) -> str:
    return ""


def test_what_functools_makes_in_a_module_travels_as_its_name() -> None:
    assert crossed([remembered, told]) == [remembered, told]


def test_a_cached_function_that_is_another_there_is_refused(write: Writes) -> None:
    text = "import functools\n\n@functools.cache\ndef f(row):\n    return len(str(1))\n"
    sent = dumped(write(text).f, print)
    write(text.replace("str(1)", "str(22)"))
    with pytest.raises(PlanError, match=r"dml_referred\.f is something else"):
        loaded(sent, [])


@dataclasses.dataclass
class Adds:
    amount: int


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize("value", [Adds(3), Color.RED, Color, sys, ROOT])
def test_values_of_modules_are_the_same_there(value: Any) -> None:
    assert crossed(value) == value


class Configured(ModuleType):
    """A module of a class of its own, as ``torch.backends`` and ``torch.backends.cudnn`` are."""


def test_a_module_of_a_class_of_its_own_is_sent_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Configured("dml_configured")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert crossed({"module": module})["module"] is module
    assert pickle.loads(pickled(module)) is module


def test_a_main_module_of_a_class_of_its_own_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Configured("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    with pytest.raises(TypeError, match="cannot pickle"):
        dumped({"module": module}, lambda _: None)
