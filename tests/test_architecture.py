"""Test the architecture: import order, sizes, purity, import budget, public functions."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import house

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "dml").rglob("*.py"))
WRITTEN = MODULES + sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
)

FILE_LINES, FUNCTION_LINES, NESTING, COMPLEXITY = 600, 40, 4, 8
FOLDER_FILES, ROOM_SHARE = 25, 0.15

# Where a package that costs much to import may be imported: a prefix of the path.
HEAVY = {
    "numba": "dml/kernels/compiled/jit.py",
    "llvmlite": "dml/kernels/compiled/jit.py",
    "dask": "dml/cluster/",
    "distributed": "dml/cluster/",
}
LAZY = {*HEAVY, "pandas", "pyarrow.dataset"}
# What `import dml` may load beside numpy and pyarrow: its own modules, at 0.7 ms each, and these.
IMPORTED_MODULES, FIRST_BATCH_MODULES = 38, 188
# The way to a first batch (tests/first_batch.py), with room for what differs between machines.
MOST_FRAMES, MOST_FUNCTIONS, MOST_FILES, MOST_MODULES = 12, 815, 103, 180
LIGHT = {"_blake2", "_hashlib", "difflib", "hashlib", "numpy", "xxhash"}

PURE = (
    *(
        f"dml/{each}/"
        for each in ["data", "expr", "kernels", "ops", "optimize", "physical", "udfs"]
    ),
    "dml/profile.py",
    *(f"dml/exec/scheduler/{each}.py" for each in ["core", "policy", "baseline_policies"]),
    *("dml/base/read_times.py", "dml/cluster/autoscale/scaling_policy.py"),
    "dml/verify/simulate/",
)
EDGES = {
    "dml/udfs/calling/instances.py": "keeps instances of users' classes, under a lock",
    "dml/udfs/calling/time_limit.py": "gives up calls that take too long, in threads of their own",
    "dml/kernels/compiled/jit.py": "keeps compiled kernels on disk",
    "dml/kernels/compiled/tier_choice.py": "keeps generated kernels on disk",
    "dml/kernels/compiled/compile_worker.py": "compiles in a process of its own",
    "dml/verify/simulate/virtual_cluster.py": "draws times from a seed",
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
OF_OPERATORS = ("dml/ops/", "dml/api/verbs/", "dml/optimize/", "dml/testing/meanings/")
NAMING_OPERATORS = {
    "dml/exec/delivery/account.py": "which operators run in compiled kernels",
    "dml/api/head_step.py": "the steps that eager verbs add",
    "dml/exec/drivers/promotion.py": "which functions are called",
    "dml/cluster/graph/graph.py": "where a cache begins",
    "dml/cache/elements/element_cache.py": "what is kept for a cache",
    "dml/exec/tasks/null_check.py": "which columns a segment hands on",
    "dml/exec/tasks/steps.py": "which functions are called",
    "dml/verify/isolated_run.py": "which positions and passes are those of the whole stream",
    "dml/exec/tasks/unit_reader.py": "the orders in which a source is read",
    "dml/testing/oracle.py": "what one source's rows are",
    "dml/testing/executions.py": "which filters are tried in another order",
    "dml/api/multi_run.py": "where pipelines of one run part",
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


class Facts(NamedTuple):
    """What these tests ask of a file; its tree would be a hundred times as large."""

    doc: str | None
    lines: int
    imports: tuple[Import, ...]
    functions: tuple[tuple[str, int, int], ...]  # name, lines, levels
    outside: tuple[str, ...]
    has_local: bool


@cache
def facts(path: str) -> Facts:
    text = (ROOT / path).read_text(encoding="utf-8")
    with house.uncollected():
        tree = ast.parse(text, path)
        nodes = list(ast.walk(tree))
        functions = [each for each in nodes if isinstance(each, Function)]
        return Facts(
            ast.get_docstring(tree),
            len(text.splitlines()),
            tuple(found for node in nodes for found in imported(node)),
            tuple((each.name, length(each), nesting(each)) for each in functions),
            tuple(f"line {at} {what}" for each in nodes for at, what in reaches_outside(each)),
            any(map(is_local, nodes)),
        )


def imported(node: ast.AST) -> Iterator[Import]:
    """Every import, at any depth, under TYPE_CHECKING as well."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        names = [f"{base}.{alias.name}" for alias in node.names]
        for name in names:
            yield Import(name if is_module(name) else base, node.lineno, node.level > 0)


def is_module(name: str) -> bool:
    if not name.startswith("dml."):
        return name in OUTSIDE | LAZY
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def belongs(module: str, packages: set[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:n]) in packages for n in range(1, len(parts) + 1))


def dotted(node: ast.expr) -> str:
    """`np.random.rand` as text; empty for what is not a chain of names."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def run_python(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -------------------------------------------------------------------------------------- the walls


def test_every_room_has_its_place_in_the_order() -> None:
    assert set(house.rooms()) - {"__main__"} == set(house.ORDER)


def test_a_room_sees_only_rooms_that_stand_before_it() -> None:
    assert house.against_the_order() == []


def test_no_imports_of_any_kind_make_a_circle() -> None:
    assert house.circles() == []


def test_a_folder_has_at_most_25_files() -> None:
    assert {folder: n for folder, n in house.folders().items() if n > FOLDER_FILES} == {}


def test_a_room_has_at_most_15_percent_of_the_lines() -> None:
    assert max(house.rooms().values()) <= ROOM_SHARE


def test_a_public_class_has_a_name_of_its_own() -> None:
    assert house.names_used_twice() == {}


def test_a_module_is_a_noun_or_says_why_not() -> None:
    assert [name for name, why in house.no_nouns().items() if not why] == []


def test_the_program_that_counts_the_house_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    house.main()
    assert capsys.readouterr().out.startswith("circles of imports: 0\n")


def test_the_compiler_is_the_lowest_kernel() -> None:
    path = "dml/kernels/compiled/jit.py"
    assert path in MODULES
    assert not [i for i in facts(path).imports if belongs(i.module, {"dml.kernels"})]


def test_operators_are_named_in_few_places() -> None:
    operators = {
        name
        for name in house.modules()
        if house.room(name) == "ops" and house.contents(name).has_operator
    }
    naming = {
        path
        for path in MODULES
        if not path.startswith(OF_OPERATORS)
        and any(i.module in operators for i in facts(path).imports)
    }
    assert naming == set(NAMING_OPERATORS)


@each_of(WRITTEN)
def test_imports_are_absolute(path: str) -> None:
    assert not [i.line for i in facts(path).imports if i.relative]


@each_of(MODULES)
def test_heavy_packages_have_one_place_each(path: str) -> None:
    assert not [
        f"line {i.line} imports {i.module}"
        for i in facts(path).imports
        for package, place in HEAVY.items()
        if belongs(i.module, {package}) and not path.startswith(place)
    ]


# ------------------------------------------------------------------------------------------ purity


def reaches_outside(node: ast.AST) -> Iterator[tuple[int, str]]:
    """What `node` does that a pure room may not, and where."""
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        first, _, last = name.rpartition(".")
        alone = not first and last in {"open", "input", "print"}
        clock = first.endswith(("datetime", "date")) and last in OUTSIDE_CALLS
        if alone or clock:
            yield node.lineno, f"calls {name}"
    if is_unkeyed(node):
        yield node.lineno, f"uses {dotted(node)}"


def is_unkeyed(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Whether it is something of numpy.random whose state is the process's."""
    random = {"np.random", "numpy.random"}
    if not isinstance(node, ast.Attribute) or node.attr in KEYED_RANDOM:
        return False
    return dotted(node.value) in random


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.startswith(PURE) and not p.startswith(tuple(EDGES))]
)
def test_pure_rooms_do_not_reach_outside(path: str) -> None:
    broken = [
        f"line {i.line} imports {i.module}"
        for i in facts(path).imports
        if belongs(i.module, OUTSIDE)
    ]
    assert not [*broken, *facts(path).outside]


@pytest.mark.parametrize("edge", sorted(EDGES))
def test_each_named_edge_exists(edge: str) -> None:
    assert (ROOT / edge).exists(), "an edge that is gone must leave the list"


# ------------------------------------------------------------------------------------------- sizes


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements are


def nesting(node: ast.AST) -> int:
    """Levels of blocks in `node`; `elif` stays on its `if`'s level, inner functions start anew."""
    deepest = 0
    for child in itertools.chain.from_iterable(getattr(node, name, ()) for name in BLOCKS):
        if isinstance(child, Function | ast.ClassDef | ast.Lambda):
            continue
        block = isinstance(child, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With)
        block = block or isinstance(child, ast.AsyncWith | ast.Try | ast.TryStar | ast.Match)
        elif_ = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, int(block and not elif_) + nesting(child))
    return deepest


def length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@each_of(WRITTEN)
def test_files_and_functions_stay_small(path: str) -> None:
    lines = facts(path).lines
    broken = [f"{lines} lines in the file"] if lines > FILE_LINES else []
    for name, length, levels in facts(path).functions:
        if length > FUNCTION_LINES:
            broken.append(f"{name}: {length} lines")
        if levels > NESTING:
            broken.append(f"{name}: {levels} levels deep")
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
    text = facts(path).doc
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


def modules_of_dml() -> set[str]:
    """Those that hold code: packages are not counted."""
    return {name for name, path in house.modules().items() if path.name != "__init__.py"}


def test_a_first_batch_loads_few_modules(tmp_path: Path) -> None:
    program = f"""
import json, sys, dml, pyarrow as pa, pyarrow.parquet as pq
from dml import col
pq.write_table(pa.table({{"x": list(range(100))}}), {str(tmp_path / "x.parquet")!r})
ds = dml.read_parquet({str(tmp_path / "x.parquet")!r}).filter(col("x") > 1)
ds = ds.with_columns(y=col("x") * 2).select("y").batch(8)
ds = ds.with_options(telemetry_dir={str(tmp_path / "events")!r})
next(iter(ds))
print(json.dumps(sorted(sys.modules)))
"""
    loaded = json.loads(run_python(program))
    assert len(set(loaded) & modules_of_dml()) <= FIRST_BATCH_MODULES


@pytest.mark.parametrize(
    "source",
    [
        "dml.from_items([{'x': 1, 'wait': 0.5, 'flag': True}] * 99)",
        "dml.from_dict({'x': list(range(99))})",
        "dml.from_numpy({'x': np.arange(99)})",
        "dml.range(99).rename({'id': 'x'})",
        "dml.read_parquet(path)",
    ],
)
def test_a_first_batch_imports_neither_pandas_nor_compute_functions(
    tmp_path: Path, source: str
) -> None:
    """Pyarrow imports pandas, where it is installed, at the first ``pyarrow.array`` of a list."""
    pq.write_table(pa.table({"x": list(range(99))}), tmp_path / "x.parquet")
    program = f"""
import sys, dml, numpy as np
path = {str(tmp_path / "x.parquet")!r}
def row(row):
    return {{"y": int(np.sqrt(row["x"])), "word": "a"}}
ds = {source}.shuffle(9, seed=1).map(row).batch(8).with_options(telemetry_dir="off")
next(iter(ds))
print(sorted({{"pandas", "pyarrow.compute"}} & set(sys.modules)))
"""
    assert run_python(program).strip() == "[]"


def test_a_first_batch_of_texts_does_not_import_pandas() -> None:
    program = """
import sys, dml
ds = dml.from_items([{"word": str(i)} for i in range(99)]).shuffle(9, seed=1)
ds = ds.map(lambda row: {"n": len(row["word"])}).batch(8).with_options(telemetry_dir="off")
next(iter(ds))
print("pandas" in sys.modules)
"""
    assert run_python(program).strip() == "False"


def test_the_way_to_a_first_batch_does_not_grow() -> None:
    """To be shortened to 350 functions and 70 files; 12 frames and 180 modules are reached."""
    found = json.loads(run_python((ROOT / "tests/first_batch.py").read_text("utf-8"), "--json"))
    assert found.pop("frames above the read of a row group") <= MOST_FRAMES
    assert found.pop("functions run until a first batch") <= MOST_FUNCTIONS
    assert found.pop("files with such a function") <= MOST_FILES
    assert found.pop("modules loaded, without packages") <= MOST_MODULES


def test_importing_dml_loads_little() -> None:
    """What importing costs, as a count; benchmarks/bench_import.py has the seconds."""
    program = (
        "import json, numpy, pyarrow, sys; before = set(sys.modules); import dml; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    loaded = json.loads(run_python(program))
    others = {name.partition(".")[0] for name in loaded} - {"dml"}
    assert others <= LIGHT
    assert len(set(loaded) & modules_of_dml()) <= IMPORTED_MODULES


def test_no_file_keeps_a_threading_local() -> None:
    """Before Python 3.12, one that dies in a cycle may stop a process: see task_runner.py."""
    assert not [path for path in MODULES if facts(path).has_local]


def is_local(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and dotted(node) == "threading.local"
