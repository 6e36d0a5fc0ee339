"""Read the tables for users of other libraries, and find the functions of dml that they name."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dml
from dml.api.verbs.grouping import Groups
from dml.exec.delivery.iterator import Elements
from dml.expr.columns.namespaces.audio import Audio
from dml.expr.columns.namespaces.boxes import Boxes
from dml.expr.columns.namespaces.images import Images
from dml.expr.columns.namespaces.lists import Lists
from dml.expr.columns.namespaces.moments import Moments
from dml.expr.columns.namespaces.strings import Strings
from dml.expr.columns.namespaces.structs import Structs
from dml.expr.columns.namespaces.tensors import Tensors
from dml.expr.columns.namespaces.video import Video

DOCS = Path(__file__).resolve().parent.parent / "docs"
NAMES = Path(__file__).resolve().parent / "vectors/peers"
ROW = re.compile(r"^\| (`[^|]+`) \| (.+) \|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
KEYWORD = re.compile(r"(\w+)=")

# Where code leads that is not dml's: other libraries, Python, and whatever a user has made.
OTHERS = {"pickle", "cloudpickle", "tf", "torch", "jax", "pyarrow", "datasets"}
OTHERS |= {"np", "table", "client", "writer"}
# Names that stand for a value of the user's, whatever the parameter is called.
VALUES = {*"fgabcxynik", "path", "key", "value", "ds", "other", "others", "column", "text"}
NAMESPACES: dict[str, type] = {
    "str": Strings,
    "list": Lists,
    "dt": Moments,
    "struct": Structs,
    "tensor": Tensors,
    "image": Images,
    "audio": Audio,
    "video": Video,
    "boxes": Boxes,
}


class Anything:
    """What code gives of which nothing is known, or that is not dml's."""


@dataclass(frozen=True)
class Door:
    """A function of dml's, and what it is a method of."""

    function: Callable[..., Any]
    owner: Any

    def given(self) -> Any:
        """What a call of it gives: a class of dml's, or anything."""
        kind = str(getattr(self.function, "__annotations__", {}).get("return", ""))
        known = {"Self": self.owner, "Dataset": dml.Dataset, "Column": dml.Column}
        return Groups if kind.startswith("Groups") else known.get(kind, Anything)


@dataclass(frozen=True)
class Table:
    """A table: where it stands, whose names it has, and what a bare name in it is a verb of."""

    page: str
    heading: str
    names: str
    owner: type = dml.Dataset

    def section(self) -> str:
        """Its text."""
        page = (DOCS / self.page).read_text(encoding="utf-8")
        return page.split(f"## {self.heading}\n")[1].split("\n## ")[0]

    def rows(self) -> list[tuple[tuple[str, ...], str]]:
        """The names there, and what is said of them here."""
        found = ROW.findall(self.section())
        return [(tuple(CODE.findall(names)), text) for names, text in found]

    def told(self) -> dict[str, str]:
        """What is said of each name."""
        pairs = [(name, text) for names, text in self.rows() for name in names]
        assert len(dict(pairs)) == len(pairs), "a name stands twice"
        return dict(pairs)

    def committed(self) -> list[str]:
        """All names that there are."""
        return (NAMES / f"{self.names}.txt").read_text(encoding="utf-8").split()


def checked(text: str, owner: type) -> Iterator[str]:
    """What code in ``text`` names that dml does not have."""
    doors: list[Door] = []
    wanted: list[str] = []
    for code in CODE.findall(text):
        keyword = KEYWORD.fullmatch(code)
        if keyword:
            wanted.append(keyword[1])
            continue
        try:
            Reading(owner, doors).of(ast.parse(code.removeprefix("."), mode="eval").body, top=True)
        except (LookupError, TypeError, SyntaxError) as error:
            yield f"{code}: {error}"
    for name in wanted:
        if not any(takes(door, name) for door in doors):
            yield f"{name}= is of none of {[door.function.__name__ for door in doors]}"


def takes(door: Door, name: str) -> bool:
    """Whether a door has this parameter; some doors take those of another."""
    if door.function is dml.Dataset.with_options:
        return name in inspect.signature(dml.Settings).parameters
    if door.function is dml.Dataset.to_torch:
        return name in of_tensors()
    return name in inspect.signature(door.function).parameters


@functools.cache
def of_tensors() -> set[str]:
    """What ``to_torch`` takes, as it is written: PyTorch need not be here."""
    tree = ast.parse((DOCS.parent / "dml/interop/torch.py").read_text(encoding="utf-8"))
    (door,) = [each for each in tree.body if getattr(each, "name", "") == "to_torch"]
    assert isinstance(door, ast.FunctionDef)
    return {each.arg for each in door.args.kwonlyargs}


class Reading:
    """Code as it is read: every name leads somewhere, every call fits its door."""

    def __init__(self, owner: type, doors: list[Door]) -> None:
        self.owner, self.doors = owner, doors

    def of(self, node: ast.AST, *, top: bool = False) -> Any:
        """What ``node`` is: a class, a module, a Door, or anything."""
        match node:
            case ast.Name(name):
                return self._name(name) if top else self._value(name)
            case ast.Attribute(inner, name):
                return self._member(self.of(inner, top=self._leads(inner)), name)
            case ast.Call():
                return self._call(node)
            case ast.Lambda() | ast.Constant():
                return Anything
        kinds = [self.of(inner) for inner in ast.iter_child_nodes(node)]
        return dml.Column if dml.Column in kinds else Anything

    def _leads(self, node: ast.AST) -> bool:
        """Whether ``node`` begins a chain, so that its name is a verb and no value."""
        return isinstance(node, ast.Name) and hasattr(self.owner, node.id) and node.id != "dml"

    def _name(self, name: str) -> Any:
        if name in ("dml", "ds", "other", "col"):
            return self._value(name)
        if hasattr(self.owner, name):
            return self._member(self.owner, name)
        if name in OTHERS or hasattr(builtins, name):
            return Anything
        raise LookupError(f"no {name} of {self.owner.__name__}")

    def _value(self, name: str) -> Any:
        known = {"dml": dml, "ds": dml.Dataset, "other": dml.Dataset, "col": Door(dml.col, dml)}
        return known.get(name, Anything)

    def _member(self, owner: Any, name: str) -> Any:
        if owner is Anything:
            return Anything
        if isinstance(owner, Door):
            raise LookupError(f"{name} of a function")
        if not hasattr(owner, name):
            raise LookupError(f"no {name} of {owner.__name__}")
        if owner is dml.Column and name in NAMESPACES:
            return NAMESPACES[name]
        found = getattr(owner, name)
        if not callable(found) or inspect.isclass(found):
            return Anything
        door = Door(found, dml.Column if owner in NAMESPACES.values() else owner)
        self.doors.append(door)
        return door

    def _call(self, node: ast.Call) -> Any:
        door = self.of(node.func, top=isinstance(node.func, ast.Name))
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.of(each)
        if isinstance(node.func, ast.Name) and node.func.id == "iter":
            return Elements
        if not isinstance(door, Door):
            return Anything
        parameters = inspect.signature(door.function).parameters
        method = next(iter(parameters), "") == "self"
        keywords = {each.arg: each.value for each in node.keywords if each.arg}
        given = ([None] if method else []) + list(node.args)
        bound = inspect.signature(door.function).bind(*given, **keywords)
        for name, value in bound.arguments.items():
            if isinstance(value, ast.Name) and value.id not in (VALUES | {name}):
                raise LookupError(f"{door.function.__name__} calls {value.id} {name}")
        for name in keywords:
            if "options" in parameters and not takes(door, name):
                raise LookupError(f"no option {name}")
        return door.given()
