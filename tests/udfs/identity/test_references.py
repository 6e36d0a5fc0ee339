"""Test the detection of names that functions use from modules imported inside them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dml.errors import FingerprintError
from dml.udfs.identity.function_fingerprint import identity
from dml.udfs.identity.references import Reference, references

WAYS = {
    "import time\nreturn time.time()": ("time", "time"),
    "import time as t\nreturn t.time()": ("time", "time"),
    "from time import sleep, time as now\nsleep(0)\nreturn now()": ("time", "time"),
    "import os.path\nreturn os.path.join": ("os", "path", "join"),
    "import os.path as p\nreturn p.join": ("os.path", "join"),
    "import xml.etree.ElementTree as tree\nreturn tree.parse": ("xml.etree.ElementTree", "parse"),
    "import time as t\nreturn lambda: [t.time() for _ in r]": ("time", "time"),
    "from time import time\ndef g():\n    def h(): return time()\n    return h\nreturn g": (
        "time",
        "time",
    ),
    "for k in r:\n    import math\n    k += math.tau\nreturn k": ("math", "tau"),
    "try:\n    import math as m\nexcept ImportError:\n    m = None\nreturn m.pi": ("math", "pi"),
}


def function(body: str) -> Any:
    namespace: dict[str, Any] = {}
    text = "def f(r):\n" + textwrap.indent(body, "    ")
    exec(compile(text, "somewhere.py", "exec"), namespace)
    return namespace["f"]


@pytest.mark.parametrize("body", WAYS)
def test_what_is_taken_from_an_import_inside_is_seen(body: str) -> None:
    assert Reference("taken", WAYS[body]) in references(function(body).__code__)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("import time\nreturn time.time()", "time.time reads the clock"),
        ("import time as t\nreturn [t.time() for _ in r]", "time.time reads the clock"),
        ("from time import time as now\nreturn (lambda: now())()", "time.time reads the clock"),
        ("from datetime import datetime\nreturn datetime.now()", "now() reads the clock"),
        ("import datetime as dt\nreturn dt.date.today()", "today() reads the clock"),
        ("import secrets\nreturn secrets.token_bytes(4)", "reads random bytes"),
        ("import random\nreturn random.random()", "a generator of random numbers"),
        ("import numpy as np\nreturn np.random.rand()", "a generator of random numbers"),
        ("from os import environ\nreturn environ['A']", "the environment of this process"),
    ],
)
def test_a_clock_that_is_imported_inside_is_refused_as_outside(body: str, why: str) -> None:
    with pytest.raises(FingerprintError, match=why.replace("(", r"\(").replace(")", r"\)")):
        identity(function(body))


@pytest.mark.parametrize(
    "body",
    [
        "import math\nreturn math.sqrt(r)",
        "import numpy as np\nreturn np.log1p(r)",
        "from datetime import datetime\nreturn datetime.fromisoformat(r)",
        "import os.path\nreturn os.path.join(r, r)",
        "import json\nreturn json.no_such_thing(r)",
    ],
)
def test_other_imports_inside_have_a_name(body: str) -> None:
    assert identity(function(body)).code == identity(function(body)).code


# (A module that imports a name at its top has other code where a function does so, too.)
LOADED = '__import__("imported_late.inner")'
LIBRARY = '__version__ = "1.2"\ndef f(x): return x\n'
PROGRAM = """
import sys, dml
sys.path.insert(0, {folder!r})
def plain(row):
    import imported_late
    return {{"x": imported_late.f(row["id"])}}
def named(row):
    from imported_late.inner import g as h
    return {{"x": h(row["id"])}}
def names(): return [dml.range(3).map(f).fingerprint() for f in (plain, named)]
first = names()
{between}
assert names() == first, "the name has changed"
print(*first)
"""


def printed(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_whether_a_library_is_loaded_by_now_is_not_seen(tmp_path: Path) -> None:
    """Of a library whose distribution has another name and version than the package says."""
    folder = tmp_path / "site-packages"
    package, told = folder / "imported_late", folder / "late_dist-1.2.0.9.dist-info"
    package.mkdir(parents=True)
    told.mkdir()
    (package / "__init__.py").write_text(LIBRARY)
    (package / "inner.py").write_text("from imported_late import f as g\n")
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: late-dist\nVersion: 1.2.0.9\n")
    (told / "top_level.txt").write_text("imported_late\n")
    (told / "RECORD").write_text("imported_late/__init__.py,,\n")
    given = {"folder": str(folder)}
    late = printed(PROGRAM.format(between=LOADED, **given))
    early = PROGRAM.replace("first =", f"{LOADED}\nfirst =")
    assert printed(early.format(between="", **given)) == late
    used = PROGRAM.format(between="list(dml.range(3).map(plain))", **given)
    assert printed(used) == late
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: late-dist\nVersion: 1.2.1.0\n")
    assert printed(PROGRAM.format(between="", **given)) != late
