"""This file spells out a normal form, operator by operator: all that its result fingerprint holds.

The name of an operator here is that of ``names.parts_of``; parts say what it is made of, as far as
they can be told: a column's expression, a function with what it reaches, a file. What is spelled
out can be written down beside rows that are kept, and compared later with another pipeline.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dml.expr.calls import UserFunction
from dml.expr.fingerprint import Domain, digest
from dml.expr.named import as_now
from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.expr.schema import Schema, short
from dml.expr.sources.files import FileSet
from dml.expr.sources.source import Source
from dml.expr.spelling import Part, function_parts, part, shown
from dml.expr.stateful import Stateful
from dml.expr.value import Value, canonical
from dml.expr.value import shown as as_written
from dml.optimize.names import Memo, draws_by_default, name_parts

DEEPEST = 6  # expressions in expressions: a shared part is told each time that it is met
CALLED = ("function", "given name", "unnamed")
MOST = 512  # parts of an operator that are written down, and parts in each of them


class Operator(NamedTuple):
    """One operator: ``name`` is that of its own part, ``seed`` the default one where it draws."""

    title: str
    name: str
    seed: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def kind(self) -> str:
        """The operator without its parameters."""
        return self.title.strip().partition("(")[0]

    @property
    def outline(self) -> str:
        """The title with the name of a function for all parameters."""
        indent = self.title[: len(self.title) - len(self.title.lstrip())]
        called = next((each.path for each in self.parts if each.kind in CALLED), "")
        return f"{indent}{self.kind}({called})" if called else f"{indent}{self.kind}"


class Step(NamedTuple):
    """An operator as it was written: what it is called, with its line, and a name of its own."""

    label: str
    name: str

    @property
    def kind(self) -> str:
        """The operator without its parameters."""
        return self.label.partition("(")[0]


class Told(NamedTuple):
    """A pipeline, source first; what stands beside a chain comes before the operator it feeds."""

    operators: tuple[Operator, ...]
    written: tuple[Step, ...] = ()


def told(normal: Node, written: Node | None, seed: int, *, quick: bool = False) -> Told:
    """What a pipeline with this normal form is made of, and how it was written, where it is known.

    ``quick``: files are what ``revision`` tells of them, which need not read them; to be compared
    with what was told so alone.
    """
    operators = tuple(_operators(normal, seed, "", quick=quick))
    return Told(operators, tuple(map(_step, written.walk())) if written is not None else ())


def told_in_json(story: Told, *, plain: bool = False) -> dict[str, Any]:
    """The same to be written down: ``operators`` by title and name, then what they are made of.

    Unless ``plain``, without constants, values that functions reach, keys, paths and options: their
    digests are enough to be compared.
    """
    rows = [
        [each.seed, [_short(part).told(plain=plain) for part in each.parts[:MOST]]]
        for each in story.operators
    ]
    titles = [each.title if plain else each.outline for each in story.operators]
    names = [each.name for each in story.operators]
    steps = [(each.label if plain else each.kind, each.name) for each in story.written]
    return {
        "operators": [list(pair) for pair in zip(titles, names, strict=True)],
        "made_of": rows,
        "written": [list(pair) for pair in steps],
    }


def keyed(story: Told, under: Callable[[str], str]) -> Told:
    """The same with other digests, which ``under`` makes of those in a text."""
    operators = (
        each._replace(name=under(each.name), parts=tuple(part.keyed(under) for part in each.parts))
        for each in story.operators
    )
    return story._replace(operators=tuple(operators))


def read_told(about: Mapping[str, Any]) -> Told:
    """What was written down; what cannot be read of it is left out."""
    rows = _lists(about.get("operators"))
    titles = [(str(row[0]), str(row[1])) for row in rows if len(row) > 1]
    inside = _lists(about.get("made_of"))
    inside = inside if len(inside) == len(titles) else [[]] * len(titles)
    operators = (
        Operator(title, name, *_read(row))
        for (title, name), row in zip(titles, inside, strict=True)
    )
    steps = (Step(str(row[0]), str(row[1])) for row in _lists(about.get("written")) if len(row) > 1)
    return Told(tuple(operators), tuple(steps))


def _lists(told_there: object) -> list[list[Any]]:
    rows = told_there if isinstance(told_there, list) else []
    return [row for row in rows if isinstance(row, list)]


def _read(row: list[Any]) -> tuple[str, tuple[Part, ...]]:
    try:
        seed, parts = row
        return str(seed), tuple(map(Part.read, parts))
    except (ValueError, TypeError):
        return "", ()


def _short(whole: Part) -> Part:
    """The same with fewer parts within parts, so that what is written down stays small."""
    depths = (24, 8, 4, 2, 1)
    cut = (whole.within(depth) for depth in depths)
    return next((each for each in cut if each.size() <= MOST), whole.within(0))


def _step(node: Node) -> Step:
    return Step(node.label(), digest(*name_parts(node, Domain.RESULT, {})).hex())


def _operators(normal: Node, seed: int, indent: str, *, quick: bool) -> Iterator[Operator]:
    memo: Memo = {}
    for node in normal.chain():
        for beside in node.inputs[1:]:
            yield from _operators(beside, seed, f"{indent}  ", quick=quick)
        read = not (quick and isinstance(node, Source))
        own = name_parts(node, Domain.RESULT, memo, identified=read)
        if isinstance(node, Source) and quick:
            own.append(node.revision())
        drawn = str(seed) if draws_by_default(node) else ""
        parts = tuple(_parts(node, memo, quick=quick))
        yield Operator(f"{indent}{node.title()}", digest(*own).hex(), drawn, parts)


def _parts(node: Node, memo: Memo, *, quick: bool) -> Iterator[Part]:
    """What an operator is made of; first what a user would name first."""
    if isinstance(node, Segment):
        yield _filters(node.predicate, memo)
        yield from _columns(node.env, memo)
        return
    for name in node.meaning_names:
        if name not in node.input_names:
            yield from _field(name, getattr(node, name), memo)
    if isinstance(node, Source):
        for what, text, content in node.content_parts(quick=quick):
            yield Part("content", f"content of {what}", text, content.hex())
    yield part("version", "version of the operator", node.version)
    if node.random:
        yield part("place", "place among the operators that draw", node.ordinal)
    yield part("place", "place among the operators that make rows", node.level)


def _field(name: str, value: Any, memo: Memo) -> Iterator[Part]:
    """What a parameter is made of."""
    match value:
        case UserFunction():
            yield function_part(as_now(value))
        case FileSet():
            names = (
                Part("file name", f"file {each.name!r}", each.name, "") for each in value.files
            )
            schema = _schema(value.schema)
            yield Part("files", "files", repr(value), value.digest.hex(), (*names, *schema))
        case Schema():
            yield Part("schema", name, "columns", value.digest.hex(), tuple(_schema(value)))
        case Value():
            yield _value(value, name, memo, DEEPEST)
        case (Value(), *_):
            yield _filters(value, memo)
        case ((str(), Value()), *_):
            yield from _columns(value, memo)
        case _:
            kind = "seed" if name == "seed" else "option"
            yield part(kind, "seed" if kind == "seed" else f"{name}=", value)


def function_part(fn: UserFunction) -> Part:
    """A function with all that it reaches, or with the name that its author gave it."""
    if fn.asserted or fn.reason:
        kind = "given name" if fn.asserted else "unnamed"
        return Part(kind, fn.name, fn.reason or "a name of your own", fn.digest.hex())
    call = fn.call
    if isinstance(call, Stateful):
        call = functools.partial(call.made, *call.args, **call.kwargs)
    return Part("function", fn.name, fn.name, fn.digest.hex(), function_parts(fn.name, call))


def _schema(schema: Schema) -> Iterator[Part]:
    for name, kind in schema.items():
        yield Part("type", f"column {name!r}", short(kind), digest(kind).hex())


def _filters(values: Sequence[Value], memo: Memo) -> Part:
    """What must be true of a row; which of them it is, not where it stands, says what it is."""
    found = tuple(_value(value, "a filter", memo, DEEPEST) for value in values)
    text = " & ".join(as_written(value) for value in values)
    return Part("filters", "filters", text, digest([each.name for each in found]).hex(), found)


def _columns(env: Sequence[tuple[str, Value]], memo: Memo) -> Iterator[Part]:
    """The columns that come out: which, then what they are."""
    yield part("columns", "columns that come out", [name for name, _ in env])
    for name, value in env:
        yield _value(value, f"column {name!r}", memo, DEEPEST)


KINDS = {"lit": "constant", "col": "column", "random": "draw", "udf": "function"}


def _value(value: Value, path: str, memo: Memo, depth: int) -> Part:
    """An expression: what is done, with which options, to what."""
    inside: list[Part] = []
    if value.op not in KINDS and depth:
        inside.append(part("operation", path, value.op))
        if value.params:
            inside.append(part("option", f"option of {value.op} in {path}", value.params))
        inside += [_value(arg, path, memo, depth - 1) for arg in value.args]
    name = canonical(value, memo).digest.hex()
    text = shown(value.params[0]) if value.op == "lit" else as_written(value)
    return Part(KINDS.get(value.op, "expression"), path, text, name, tuple(inside))
