"""Figures of the code base: import cycles, imports against the order, sizes, duplicate names.

python tests/house.py      # prints the figures that tests/test_architecture.py limits
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# Rooms in the order in which data and plans pass: a room sees those before it.
ORDER = (
    *("errors", "checks", "settings", "plugins", "events", "profile", "base", "kernels", "data"),
    *(
        "expr",
        "vision",
        "udfs",
        "io",
        "ops",
        "physical",
        "optimize",
        "exec",
        "fleet",
        "cache",
        "cluster",
    ),
    *("ranks", "verify", "interop", "api", "dml", "cli", "testing"),
)
# Rooms that do not see each other, in whatever order they stand: they meet in values.
SIBLINGS = {"optimize", "exec", "fleet"}

# Last words of names that are verbs, adjectives or adverbs, so that each needs a reason.
ENDINGS = ("ing", "ed", "ly")
NOUNS = {"meaning", "speed"}
NO_NOUNS = {
    *("apply", "choose", "compute", "drop", "explain", "explode", "mix", "open", "pack", "pad"),
    *("rename", "select", "seek", "skip", "take", "unbatch", "unnest"),
}
VERB = "an operator has the name of the user's verb"
ACTIVITY = "the field's word for the activity"
EXCEPTIONS = {
    "ops": VERB,
    "cli": "a command has the name that is typed",
    "kernels.compiled": "the tier, as opposed to the interpreted one",
    "optimize.explain": "the user's word for what is in it",
    **dict.fromkeys(
        (
            *("api.verbs.grouping", "api.verbs.resampling", "data.row_slicing", "exec.slicing"),
            *("exec.writing", "expr.columns.typing", "fleet.learning", "kernels.rows.key_matching"),
            *("optimize.lowering", "optimize.rules.function_lifting", "optimize.rules.grouping"),
            *("testing", "udfs.calling", "udfs.lifting", "verify.simulate.packing"),
        ),
        ACTIVITY,
    ),
}


class Import(NamedTuple):
    """One module that imports another, and how: at the top, late, for types alone, by a string."""

    here: str
    there: str
    kind: str


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its full name."""
    found = {}
    for path in sorted((ROOT / "dml").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


class Contents(NamedTuple):
    """What is counted of a module: its tree would be a hundred times as large."""

    imported: tuple[tuple[str, str], ...]
    classes: tuple[str, ...]
    has_operator: bool


@cache
def contents(name: str) -> Contents:
    """What is counted of a module."""
    with uncollected():
        tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
        classes = [each for each in tree.body if isinstance(each, ast.ClassDef)]
        public = tuple(each.name for each in classes if not each.name.startswith("_"))
        found = tuple((there, kind) for there, kind in _edges(tree, "top") if there in modules())
        return Contents(found, public, any(map(_is_operator, classes)))


@contextmanager
def uncollected() -> Iterator[None]:
    """Cycles are not looked for meanwhile: it would look at each tree again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _is_operator(node: ast.ClassDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "op" for each in node.decorator_list)


def room(name: str) -> str:
    """`dml.exec.scheduler.core` -> exec; `dml` -> dml."""
    return name.split(".")[1] if "." in name else name


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield full if full in modules() else node.module


def _by_string(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and _last(node.func).endswith("import_module"):
        first = node.args[0]
        if isinstance(first, ast.Constant):
            yield str(first.value)
        elif isinstance(first, ast.JoinedStr) and "dml." in ast.unparse(first):
            yield "dml"


def _last(node: ast.expr) -> str:
    """The last of a chain of names."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _edges(node: ast.AST, kind: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        here = kind
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            here = "types"
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            here = "late" if kind == "top" else kind
        yield from ((there, here) for there in _imported(child))
        yield from ((there, "string") for there in _by_string(child))
        yield from _edges(child, here)


@cache
def imports() -> tuple[Import, ...]:
    """Every import of one module of the package by another, of any kind."""
    return tuple(
        Import(name, there, kind)
        for name in modules()
        for there, kind in contents(name).imported
        if there != name
    )


def against_the_order() -> list[Import]:
    """Imports of rooms that stand later, or beside."""
    place = {name: at for at, name in enumerate(ORDER)}
    last = len(ORDER)
    wrong = []
    for each in imports():
        here, there = room(each.here), room(each.there)
        siblings = here != there and {here, there} <= SIBLINGS
        later = place.get(there, last) > place.get(here, last)
        if siblings or (here in place and later):
            wrong.append(each)
    return wrong


def circles() -> list[set[str]]:
    """Sets of modules of which each reaches every other by imports of any kind."""
    graph: dict[str, set[str]] = defaultdict(set)
    for each in imports():
        graph[each.here].add(each.there)
    reach = {name: _reached(graph, name) for name in graph}
    found: list[set[str]] = []
    for name, there in reach.items():
        if name in there and not any(name in circle for circle in found):
            found.append({each for each in there if name in reach.get(each, ())})
    return found


def _reached(graph: dict[str, set[str]], name: str) -> set[str]:
    seen, stack = set[str](), list(graph[name])
    while stack:
        here = stack.pop()
        if here not in seen:
            seen.add(here)
            stack += graph.get(here, ())
    return seen


def folders() -> Counter[str]:
    """How many files lie in each folder."""
    return Counter(path.parent.relative_to(ROOT).as_posix() for path in modules().values())


def rooms() -> dict[str, float]:
    """The share of all lines that each room has."""
    lines: Counter[str] = Counter()
    for name, path in modules().items():
        lines[room(name)] += len(path.read_text(encoding="utf-8").splitlines())
    return {name: count / lines.total() for name, count in lines.most_common()}


def names_used_twice() -> dict[str, list[str]]:
    """Public classes whose name another module has, too."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in modules():
        for each in contents(name).classes:
            found[each].append(name)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def no_nouns() -> dict[str, str]:
    """Modules whose last word is no noun, and why each may be: empty if nothing says why."""
    found = {}
    for name in modules():
        word = name.rpartition(".")[2].rpartition("_")[2]
        if word in NO_NOUNS or (word.endswith(ENDINGS) and word not in NOUNS):
            parts = name.removeprefix("dml.").split(".")
            above = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
            found[name] = next((EXCEPTIONS[each] for each in above if each in EXCEPTIONS), "")
    return found


def report() -> str:
    """All of it as text."""
    lines = [f"circles of imports: {len(circles())}"]
    lines += ["  " + ", ".join(sorted(circle)) for circle in circles()]
    lines += [f"imports against the order: {len(against_the_order())}"]
    lines += [f"  {here} -> {there} ({kind})" for here, there, kind in against_the_order()]
    (folder, files), *_ = folders().most_common(1)
    lines += [f"largest folder: {folder}, {files} files"]
    (largest, share), *_ = rooms().items()
    lines += [f"largest room: {largest}, {share:.1%} of the lines"]
    kinds = Counter(each.kind for each in imports())
    lines += [f"imports: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}"]
    lines += [f"public class names in two modules or more: {len(names_used_twice())}"]
    lines += [f"  {name}: {', '.join(where)}" for name, where in names_used_twice().items()]
    reasons = Counter(no_nouns().values())
    lines += [f"modules whose names are no nouns: {len(no_nouns())}"]
    lines += [f"  {count}: {why or 'no reason'}" for why, count in reasons.most_common()]
    lines += [f"    {name}" for name, why in no_nouns().items() if not why]
    return "\n".join(lines)


def main() -> None:
    """Print all of it."""
    sys.stdout.write(report() + "\n")


if __name__ == "__main__":
    main()
