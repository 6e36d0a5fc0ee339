"""Test that a function has the same fingerprint in every process, file and layout."""

# ruff: noqa: ARG005 - what a lambda refers to is the point, not what it is given

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dml.base.fingerprint import Domain, digest
from dml.errors import FingerprintError
from dml.udfs.identity.function_fingerprint import (
    identify,
    identity,
    local_identity,
)

ROOT = Path(__file__).resolve().parents[3]

# Each defines ``f``. They are run in processes that differ in hash seed, file name and lines.
PROGRAMS: dict[str, str] = {
    "lambda": "f = lambda r: {'y': r['a'] * 2}",
    "def": "def f(r):\n    x = r['a'] + 1\n    return {'y': x / 3}",
    "set literal": "def f(r): return r['a'] in {'aa', 'bb', 'cc', 'dd', 'ee', 'ff'}",
    "nested set": "def f(r): return (r, {'q', 'w', 'e'}, ({'x', 'y', 'z', 1, 2.5},))",
    "global set": "S = {'aa', 'bb', 'cc'}\ndef f(r): return r in S",
    "set of tuples": "S = {('a', 1), ('b', 2), ('c', 3)}\ndef f(r): return r in S",
    "frozenset keys": "D = {frozenset({'a', 'b'}): 1, frozenset({'c'}): 2}\ndef f(r): return D",
    "global dict": "D = {'a': 1, 'b': [1, 2, (3,)]}\ndef f(r): return D[r['k']]",
    "helper": "K = 3\ndef g(x): return x * K\ndef f(r): return g(r['a'])",
    "helper of helper": "def h(x): return x\ndef g(x): return h(x)\ndef f(r): return g(r)",
    "recursion": "def f(n): return 1 if n < 2 else n * f(n - 1)",
    "two that call each other": "def g(n): return n and f(n - 1)\ndef f(n): return n and g(n - 1)",
    "closure": (
        "def make(n, s):\n"
        "    def g(r): return r['a'] + n in s\n"
        "    return g\n"
        "f = make(3, {'p', 'q', 'r'})"
    ),
    "closure of itself": "def make():\n def g(n): return n and g(n - 1)\n return g\nf = make()",
    "array": "import numpy as np\nW = np.arange(5.0)\ndef f(r): return W * r['a']",
    "numpy": "import numpy as np\ndef f(r): return np.log1p(np.clip(r['a'], 0, 1)) + np.float32(2)",
    "numpy strings": "import numpy as np\nV = np.array(['a', 'bc'])\ndef f(r): return V",
    "math": "import math\nfrom math import sqrt\ndef f(r): return math.sin(r) + sqrt(r) + math.pi",
    "regex": "import re\nW = re.compile('a+b', re.I)\ndef f(r): return W.sub('', r['t'])",
    "partial": "from functools import partial\ndef g(r, a, b=1): return r\nf = partial(g, a=2)",
    "method": (
        "class C:\n"
        "    def __init__(self): self.k = 3; self.names = {'q', 'w', 'e'}\n"
        "    def m(self, r): return r['a'] * self.k\n"
        "f = C().m"
    ),
    "callable object": "class C:\n    k = 1\n    def __call__(self, r): return self.k\nf = C()",
    "class": (
        "class Model:\n"
        "    def __init__(self, size=3): self.size = size\n"
        "    def __call__(self, batch): return batch\n"
        "f = Model"
    ),
    "inheritance": (
        "class A:\n"
        "    def m(self, r): return 1\n"
        "class B(A):\n"
        "    def m(self, r): return super().m(r) + 1\n"
        "f = B().m"
    ),
    "property and statics": (
        "class C:\n"
        "    @property\n"
        "    def p(self): return 1\n"
        "    @staticmethod\n"
        "    def s(x): return x\n"
        "    @classmethod\n"
        "    def c(cls, x): return cls\n"
        "    def __call__(self, r): return self.p\n"
        "f = C()"
    ),
    "slots": (
        "class C:\n"
        "    __slots__ = ('a', 'b')\n"
        "    def __init__(self): self.a = 1\n"
        "    def __call__(self, r): return self.a\n"
        "f = C()"
    ),
    "dataclass": (
        "import dataclasses\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class P:\n"
        "    x: int = 1\n"
        "    y: list[int] = dataclasses.field(default_factory=list)\n"
        "    def __call__(self, r): return self.x\n"
        "f = P()"
    ),
    "enum": (
        "import enum\n"
        "class E(enum.Enum):\n"
        "    A = 1\n"
        "    B = 'b'\n"
        "    def go(self): return self.value\n"
        "def f(r): return E.A.go(), E(r['k'])"
    ),
    "named tuple": (
        "import collections\n"
        "Q = collections.namedtuple('Q', 'a b')\n"
        "q = Q(1, {'z', 'y'})\n"
        "def f(r): return q, Q(1, 2)"
    ),
    "typed tuple": (
        "import typing\n"
        "class N(typing.NamedTuple):\n"
        "    a: int\n"
        "    b: float = 1.0\n"
        "def f(r): return N(1)"
    ),
    "counters": (
        "import collections\n"
        "C = collections.Counter('abca')\n"
        "D = collections.defaultdict(list, a=[1])\n"
        "O = collections.OrderedDict(x=1)\n"
        "def f(r): return C, D, O"
    ),
    "getter": "import operator\ng = operator.itemgetter('a', 'b')\ndef f(r): return g(r)",
    "cached": "import functools\n@functools.lru_cache\ndef g(x): return x\ndef f(r): return g(r)",
    "decorated": (
        "import functools\n"
        "def deco(fn):\n"
        "    @functools.wraps(fn)\n"
        "    def inner(*a, **k): return fn(*a, **k)\n"
        "    return inner\n"
        "@deco\n"
        "def f(r): return r"
    ),
    "comprehension": "def f(r): return [x + 1 for x in r['l'] if x], {k: v for k, v in r.items()}",
    "try": (
        "def f(r):\n"
        "    try:\n"
        "        return 1 / r['a']\n"
        "    except (ZeroDivisionError, KeyError):\n"
        "        return None\n"
        "    finally:\n"
        "        r.clear()"
    ),
    "match": "def f(r):\n match r:\n  case {'a': 1}: return 1\n  case [x, *_]: return x",
    "imports inside": "def f(r):\n import json\n from os import path\n return json.dumps(r)",
    "dates": (
        "import datetime\n"
        "T = datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc)\n"
        "def f(r): return r['t'] - T"
    ),
    "decimals": "from decimal import Decimal\nD = Decimal('1.10')\ndef f(r): return r['a'] * D",
    "arrow": (
        "import pyarrow as pa\n"
        "S = pa.schema({'a': pa.int8()})\n"
        "T = pa.table({'a': ['x', None]})\n"
        "def f(r): return S, T"
    ),
    "paths": "import pathlib\nP = pathlib.PurePosixPath('/a/b')\ndef f(r): return P / r['name']",
    "expression": "import dml\nE = dml.col('a') + 1\ndef f(r): return E",
    "numba": "import numba\n@numba.njit\ndef g(x): return x * 2\ndef f(r): return g(r)",
    "numba compiled": "import numba\n@numba.njit\ndef g(x):return x*2\ng(3)\ndef f(r): return g(r)",
    "numba ufunc": "import numba\n@numba.vectorize\ndef g(x): return x * 2\ndef f(r): return g(r)",
    "own name": (
        "class C:\n"
        "    def __init__(self): self.it = iter(())\n"
        "    def __dml_fingerprint__(self): return ('C', 1)\n"
        "    def __call__(self, r): return r\n"
        "f = C()"
    ),
}
DRIVER = """
import json, sys
import cloudpickle
from dml.udfs.identity.function_fingerprint import identity
file, above, ship = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "ship"
names = {}
for name, text in json.load(sys.stdin).items():
    space = {"__name__": "__main__", "__file__": file}
    exec(compile("# note\\n" * above + text, file, "exec"), space)
    f = space["f"]
    if ship and name != "cached":  # which cloudpickle cannot ship
        f = cloudpickle.loads(cloudpickle.dumps(f))
    if name == "comprehension":
        f({"l": [1, 2], "k": 1})
    found = identity(f)
    names[name] = [found.code.hex(), [list(x) for x in found.libraries]]
print(json.dumps(names))
"""


@functools.cache
def run(seed: str, file: str, above: int, ship: str) -> dict[str, Any]:
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, file, str(above), ship],
        input=json.dumps(PROGRAMS),
        capture_output=True,
        text=True,
        env=env,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.law
@pytest.mark.parametrize("name", PROGRAMS)
def test_another_process_file_and_line_give_the_same_name(name: str) -> None:
    first = run("0", "one.py", 0, "")
    assert first[name] == run("4242", "elsewhere/two.py", 7, "")[name]


@pytest.mark.law
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_function_shipped_by_value_keeps_its_name(name: str) -> None:
    assert run("0", "one.py", 0, "")[name] == run("1", "<worker>", 2, "ship")[name]


@pytest.mark.law
def test_numba_functions_are_named_by_what_was_compiled() -> None:
    first = run("0", "one.py", 0, "")
    assert first["numba"] == first["numba compiled"]
    assert first["numba"] != first["numba ufunc"]


@pytest.mark.law
def test_different_programs_have_different_names() -> None:
    names = {name: code for name, (code, _) in run("0", "one.py", 0, "").items()}
    del names["numba compiled"]
    assert len(set(names.values())) == len(names)


def scale(row: dict[str, float]) -> float:
    return row["a"] * 2


def rescaled(row: dict[str, float]) -> float:
    return row["a"] * 2


def test_domains_see_what_concerns_them() -> None:
    one, other = identity(scale), identity(rescaled)
    assert one.digest_in(Domain.SHAPE) != other.digest_in(Domain.SHAPE)
    for domain in (Domain.FLEET, Domain.COST, Domain.RESULT):
        assert one.digest_in(domain) == other.digest_in(domain)
    names = {one.digest_in(domain) for domain in Domain}
    assert len(names) == 4


def test_versions_of_libraries_enter_the_result_only() -> None:
    found = identity(scale)
    newer = type(found)(found.name, found.code, (*found.libraries, type(LIBRARY)("numpy", "9.9")))
    assert found.digest_in(Domain.FLEET) == newer.digest_in(Domain.FLEET)
    assert found.digest_in(Domain.RESULT) != newer.digest_in(Domain.RESULT)
    assert found.digest == found.digest_in(Domain.RESULT)
    assert digest(found) == digest(identity(rescaled))


LIBRARY = identity(sorted).libraries[0]


def test_the_users_name_stands_for_the_code() -> None:
    lock = object()
    unnamed: Callable[..., Any] = lambda row: lock  # noqa: E731 - a lambda is what is named
    assert identity(unnamed, fingerprint="v1").code == identity(scale, fingerprint="v1").code
    assert identity(scale, fingerprint="v1").code != identity(scale, fingerprint="v2").code


def test_a_function_without_a_name_gets_one_for_this_run() -> None:
    stream = iter([1])
    first = identify(lambda row: next(stream), nonce=b"run 1")
    assert "iterator" in first.reason
    assert first.digest == identify(lambda row: next(stream), nonce=b"run 1").digest
    assert first.digest != identify(lambda row: next(stream), nonce=b"run 2").digest
    assert first.digest != identity(scale).digest
    assert not identify(scale, nonce=b"run 1").reason
    assert local_identity("", b"x").reason


def test_the_error_names_the_path_and_what_to_try() -> None:
    state = {"deep": [0, {"lock": __import__("threading").Lock()}]}
    with pytest.raises(FingerprintError) as caught:
        identity(lambda row: state)
    assert "<lambda>.state['deep'][1]['lock']: it is a lock" in caught.value.what
    assert "__dml_fingerprint__" in caught.value.try_
    assert caught.value.why
