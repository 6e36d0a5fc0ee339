"""This file holds the house to its plan: who imports whom, sizes, purity, import budget, doors."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "dml").rglob("*.py"))
WRITTEN = MODULES + sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
)

FILE_LINES, FUNCTION_LINES, NESTING, COMPLEXITY = 600, 40, 4, 8

# A room sees the rooms on lower floors, and itself. Rooms that share a floor do not see each other.
FLOORS: list[set[str]] = [
    {"errors"},
    {"checks", "ownership"},
    {"settings", "plugins"},
    {"kernels"},
    {"expr"},
    {"plan", "events", "profile", "read_times", "control_groups"},
    {"optimize", "exec", "fleet"},
    {"costing", "keeping", "observing", "resources"},
    {"arranging", "autocaching"},
    {"session"},
    {"elsewhere", "foreseeing", "placing", "results", "together"},
    {"collecting", "figures", "sinks"},
    {"verbs"},
    {"dataset"},
    {"catalog", "sources"},
    {"dml"},  # the package's own __init__.py
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
ROOF = {"testing", "cli", "interop", "features", "serve", "__main__"}  # see all, seen by none below

# Where a package that costs much to import may be imported: a prefix of the path.
HEAVY = {
    "numba": "dml/kernels/jit.py",
    "llvmlite": "dml/kernels/jit.py",
    "dask": "dml/exec/",
    "distributed": "dml/exec/",
}
LAZY = {*HEAVY, "pandas", "pyarrow.dataset"}
# What `import dml` may load beside numpy and pyarrow: its own modules, at 0.7 ms each, and these.
IMPORTED_MODULES = 48
LIGHT = {"_blake2", "_hashlib", "difflib", "hashlib", "numpy", "xxhash"}

PURE = (
    *(f"dml/{each}/" for each in ["expr", "kernels", "optimize"]),
    *(f"dml/{each}.py" for each in ["plan", "profile", "read_times"]),
    *(f"dml/exec/{each}" for each in ["core.py", "policy.py", "baselines.py", "twin/", "scaling/"]),
)
EDGES = {
    "dml/expr/sources/": "reads files",
    "dml/expr/forking.py": "ends copies of the process that functions fork",
    "dml/expr/interrupts.py": "looks up what Python calls for signals, and the main thread",
    "dml/expr/sources/orc_process.py": "decodes in processes of its own",
    "dml/expr/stateful.py": "keeps instances of users' classes, under a lock",
    "dml/kernels/jit.py": "keeps compiled kernels on disk",
    "dml/kernels/fuse.py": "keeps generated kernels on disk",
    "dml/kernels/compile_worker.py": "compiles in a process of its own",
}
OUTSIDE = {
    *("asyncio", "concurrent", "fcntl", "fsspec", "glob", "io", "linecache", "mmap", "os"),
    *("multiprocessing", "pathlib", "platform", "queue", "random", "secrets", "select", "shutil"),
    *("signal", "socket", "subprocess", "tempfile", "threading", "time", "urllib", "uuid"),
    *("pyarrow.fs", "pyarrow.parquet"),
}
OUTSIDE_CALLS = {"open", "input", "print", "today", "utcnow", "now"}
KEYED_RANDOM = {"BitGenerator", "Generator", "Philox"}  # of numpy.random: their state is given

# Where operators may be imported: a new one touches no other file. Elsewhere facts of nodes decide.
OF_OPERATORS = ("dml/expr/", "dml/verbs/", "dml/optimize/", "dml/testing/meanings/")
NAMING_OPERATORS = {
    "dml/exec/account.py": "which operators run in compiled kernels",
    "dml/exec/asked.py": "the steps that eager verbs add",
    "dml/exec/backends/promoting.py": "which functions are called",
    "dml/exec/graph.py": "where a cache begins",
    "dml/exec/kept.py": "what is kept for a cache",
    "dml/exec/nulls.py": "which columns a segment hands on",
    "dml/exec/steps.py": "which functions are called",
    "dml/exec/verify/apart.py": "which positions and passes are those of the whole stream",
    "dml/exec/reading.py": "the orders in which a source is read",
    "dml/testing/oracle.py": "what one source's rows are",
    "dml/testing/running.py": "which filters are tried in another order",
    "dml/together.py": "where pipelines of one run part",
    "dml/testing/plans.py": "what rewriting may do to a segment",
}

REFUSED_WORDS = {"common", "helper", "helpers", "manager", "misc", "util", "utils", "v2"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One imported module by its full name, and the line that imports it."""

    module: str
    line: int
    relative: bool = False


def each_of(paths: list[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """One test for all ``paths`` that names every one that fails: thousands would take seconds."""

    def over_all(check: Callable[[str], None]) -> Callable[[], None]:
        def test() -> None:
            failures = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    failures.append(f"{path}: {error}")
            assert not failures, "\n".join(failures)

        return test

    return over_all


@cache
def tree(path: str) -> ast.Module:
    gc.disable()  # it would look at all trees again and again, two thirds of the time
    try:
        return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)
    finally:
        gc.enable()


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


@cache
def imports(path: str) -> tuple[Import, ...]:
    """Every import of the file, at any depth, under TYPE_CHECKING as well."""
    found: list[Import] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [
                Import(name if is_module(name) else base, node.lineno, node.level > 0)
                for name in names
            ]
    return tuple(found)


def is_module(name: str) -> bool:
    if not name.startswith("dml."):
        return name in OUTSIDE | LAZY
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def room(module: str) -> str:
    """`dml.exec.core` -> exec; `dml.plan` -> plan; `dml` -> dml."""
    return module.split(".")[1] if "." in module else module


def room_of_file(path: str) -> str:
    return "dml" if path == "dml/__init__.py" else Path(path).parts[1].removesuffix(".py")


def belongs(module: str, packages: set[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:n]) in packages for n in range(1, len(parts) + 1))


def functions(path: str) -> Iterator[Function]:
    return (node for node in nodes(path) if isinstance(node, Function))


def dotted(node: ast.expr) -> str:
    """`np.random.rand` as text; empty for what is not a chain of names."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def run_python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -------------------------------------------------------------------------------------- the walls


@each_of(MODULES)
def test_a_room_sees_only_lower_floors(path: str) -> None:
    here = room_of_file(path)
    assert here in FLOOR_OF or here in ROOF, f"{here} is no room of the house"
    if here in ROOF:
        return
    below = {there for there, floor in FLOOR_OF.items() if floor < FLOOR_OF[here]}
    assert not [
        f"line {i.line} imports {i.module}"
        for i in imports(path)
        if belongs(i.module, {"dml"}) and room(i.module) not in below | {here}
    ]


def test_the_compiler_is_the_lowest_kernel() -> None:
    path = "dml/kernels/jit.py"
    assert path in MODULES
    assert not [i for i in imports(path) if belongs(i.module, {"dml.kernels"})]


def test_operators_are_named_in_few_places() -> None:
    naming = {
        path
        for path in MODULES
        if not path.startswith(OF_OPERATORS)
        and any(belongs(i.module, {"dml.expr.ops"}) for i in imports(path))
    }
    assert naming == set(NAMING_OPERATORS)


@each_of(WRITTEN)
def test_imports_are_absolute(path: str) -> None:
    assert not [i.line for i in imports(path) if i.relative]


@each_of(MODULES)
def test_heavy_packages_have_one_place_each(path: str) -> None:
    assert not [
        f"line {i.line} imports {i.module}"
        for i in imports(path)
        for package, place in HEAVY.items()
        if belongs(i.module, {package}) and not path.startswith(place)
    ]


# ------------------------------------------------------------------------------------------ purity


def reaches_outside(node: ast.AST) -> str:
    """What `node` does that a pure room may not, or nothing."""
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        first, _, last = name.rpartition(".")
        alone = not first and last in {"open", "input", "print"}
        clock = first.endswith(("datetime", "date")) and last in OUTSIDE_CALLS
        return f"calls {name}" if alone or clock else ""
    if isinstance(node, ast.Attribute) and dotted(node.value) in {"np.random", "numpy.random"}:
        return "" if node.attr in KEYED_RANDOM else f"uses numpy.random.{node.attr}"
    return ""


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.startswith(PURE) and not p.startswith(tuple(EDGES))]
)
def test_pure_rooms_do_not_reach_outside(path: str) -> None:
    broken = [
        f"line {i.line} imports {i.module}" for i in imports(path) if belongs(i.module, OUTSIDE)
    ]
    broken += [
        f"line {getattr(node, 'lineno', '?')} {what}"
        for node in nodes(path)
        if (what := reaches_outside(node))
    ]
    assert not broken


@pytest.mark.parametrize("edge", sorted(EDGES))
def test_each_named_edge_exists(edge: str) -> None:
    assert (ROOT / edge).exists(), "an edge that is gone must leave the list"


# ------------------------------------------------------------------------------------------- sizes


def nesting(node: ast.AST) -> int:
    """Levels of blocks in `node`; `elif` stays on its `if`'s level, inner functions start anew."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef | ast.Lambda):
            continue
        block = isinstance(child, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With)
        block = block or isinstance(child, ast.AsyncWith | ast.Try | ast.TryStar | ast.Match)
        elif_ = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, int(block and not elif_) + nesting(child))
    return deepest


@each_of(WRITTEN)
def test_files_and_functions_stay_small(path: str) -> None:
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    broken = [f"{lines} lines in the file"] if lines > FILE_LINES else []
    for function in functions(path):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        if length > FUNCTION_LINES:
            broken.append(f"{function.name}: {length} lines")
        if (levels := nesting(function)) > NESTING:
            broken.append(f"{function.name}: {levels} levels deep")
    assert not broken


def test_no_function_is_complex_with_or_without_noqa() -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--ignore-noqa", "--quiet"]
    rule = ["--select", "C901", "--config", f"lint.mccabe.max-complexity={COMPLEXITY}"]
    command = [*ruff, *rule, "--output-format", "concise", "dml", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# ------------------------------------------------------------------------------------- words, doors


@each_of(WRITTEN)
def test_a_module_opens_with_one_sentence(path: str) -> None:
    text = ast.get_docstring(tree(path))
    assert text, "no module docstring"
    first = text.split("\n\n")[0]
    assert first.endswith((".", ":")), first


@each_of(WRITTEN)
def test_names_say_what_is_inside(path: str) -> None:
    words = {word for part in Path(path).with_suffix("").parts for word in part.split("_")}
    assert not words & REFUSED_WORDS


def doors() -> Iterator[tuple[str, object]]:
    """Every public name, and every public method of the public classes."""
    dml = importlib.import_module("dml")
    for name in dml.__all__:
        thing = getattr(dml, name)
        yield name, thing
        if inspect.isclass(thing) and thing.__module__.startswith("dml"):
            for inner, value in vars(thing).items():
                if not inner.startswith("_") and (callable(value) or isinstance(value, property)):
                    yield f"{name}.{inner}", value


def test_every_public_door_says_what_it_does() -> None:
    silent = [
        name
        for name, thing in doors()
        if (callable(thing) or isinstance(thing, property)) and not (inspect.getdoc(thing) or "")
    ]
    assert not silent


def test_types_are_shipped() -> None:
    assert (ROOT / "dml/py.typed").is_file()


# ----------------------------------------------------------------------------------- import budget


def test_importing_dml_loads_nothing_heavy() -> None:
    loaded = json.loads(run_python("import dml, json, sys; print(json.dumps(sorted(sys.modules)))"))
    assert "dml" in loaded
    assert not LAZY & set(loaded)


def test_importing_dml_loads_little() -> None:
    """What importing costs, as a count; benchmarks/bench_import.py has the seconds."""
    program = (
        "import json, numpy, pyarrow, sys; before = set(sys.modules); import dml; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = json.loads(run_python(program))
    others = {name.partition(".")[0] for name in loaded} - {"dml"}
    assert others <= LIGHT
    assert sum(name.startswith("dml") for name in loaded) <= IMPORTED_MODULES


def test_no_file_keeps_a_threading_local() -> None:
    """Before Python 3.12, one that dies in a cycle may stop a process: see dml/exec/desk.py."""
    users = [
        path
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and node.attr == "local"
        and ast.unparse(node.value) == "threading"
    ]
    assert not users
