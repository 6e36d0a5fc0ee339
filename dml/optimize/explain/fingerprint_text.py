"""A normal form is described operator by operator, with every part of its result fingerprint.

The name of an operator here is the digest that ``fingerprints.parts_of`` returns for it. Its parts
are those that can be shown as text: a column's expression, a function with everything that it
refers to, a file. A description can be stored beside cached rows, and compared later with another
pipeline.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dml.base.fingerprint import Domain, digest
from dml.data.schema import Schema, short
from dml.expr.columns.value import Value, canonical, value_text
from dml.expr.node import Node
from dml.expr.user_call import UserFunction
from dml.io.files.files import FileSet
from dml.io.source import Source
from dml.ops.row.segment import Segment
from dml.optimize.explain.fingerprint_tree import SpelledPart, function_parts, part, short_repr
from dml.optimize.fingerprints import Memo, conjuncts, draws_by_default, name_parts
from dml.udfs.calling.instances import Stateful
from dml.udfs.named_function import as_now

DEEPEST = 6  # nested expressions: a shared part is described at each occurrence
CALLED = ("function", "given name", "unnamed")
MOST = 512  # most parts of an operator that are stored, and most nested parts of each


class NamedOperator(NamedTuple):
    """One operator; ``name`` is its digest without inputs, ``seed`` the default seed it uses."""

    title: str
    name: str
    seed: str = ""
    parts: tuple[SpelledPart, ...] = ()

    @property
    def kind(self) -> str:
        """The operator's name without its parameters."""
        return self.title.strip().partition("(")[0]

    @property
    def outline(self) -> str:
        """The title with only the name of the operator's function as parameter."""
        indent = self.title[: len(self.title) - len(self.title.lstrip())]
        called = next((each.path for each in self.parts if each.kind in CALLED), "")
        return f"{indent}{self.kind}({called})" if called else f"{indent}{self.kind}"


class WrittenStep(NamedTuple):
    """An operator as written: its label with the user's line, and its digest without inputs."""

    label: str
    name: str

    @property
    def kind(self) -> str:
        """The operator's name without its parameters."""
        return self.label.partition("(")[0]


class FingerprintText(NamedTuple):
    """The description of a pipeline, source first; side inputs come before their operator."""

    operators: tuple[NamedOperator, ...]
    written: tuple[WrittenStep, ...] = ()


def describe(
    normal: Node, written: Node | None, seed: int, *, quick: bool = False
) -> FingerprintText:
    """Describe a pipeline by its normal form, and by its written form if that is known.

    With ``quick``, files are described by their ``revision``, without reading them. Quick
    descriptions can only be compared with each other.
    """
    operators = tuple(_operators(normal, seed, "", quick=quick))
    return FingerprintText(
        operators, tuple(map(_step, written.walk())) if written is not None else ()
    )


def to_json(story: FingerprintText, *, plain: bool = False) -> dict[str, Any]:
    """Return a description as JSON: ``operators`` with their titles and digests, then their parts.

    Unless ``plain``, constants, values that functions refer to, keys, paths and options are left
    out: their digests are enough for a comparison.
    """
    made_of = [
        [each.seed, [_short(part).to_json(plain=plain) for part in each.parts[:MOST]]]
        for each in story.operators
    ]
    return {
        "operators": [[o.title if plain else o.outline, o.name] for o in story.operators],
        "made_of": made_of,
        "written": [[step.label if plain else step.kind, step.name] for step in story.written],
    }


def keyed(story: FingerprintText, under: Callable[[str], str]) -> FingerprintText:
    """Return the description, in text form, with each digest replaced by ``under(digest)``."""
    operators = (
        each._replace(name=under(each.name), parts=tuple(part.keyed(under) for part in each.parts))
        for each in story.operators
    )
    return story._replace(operators=tuple(operators))


def from_json(about: Mapping[str, Any]) -> FingerprintText:
    """Return the description that ``to_json`` stored; unreadable parts are left out."""
    rows = _lists(about.get("operators"))
    titles = [(str(row[0]), str(row[1])) for row in rows if len(row) > 1]
    inside = _lists(about.get("made_of"))
    inside = inside if len(inside) == len(titles) else [[]] * len(titles)
    operators = (
        NamedOperator(title, name, *_read(row))
        for (title, name), row in zip(titles, inside, strict=True)
    )
    steps = (
        WrittenStep(str(row[0]), str(row[1]))
        for row in _lists(about.get("written"))
        if len(row) > 1
    )
    return FingerprintText(tuple(operators), tuple(steps))


def _lists(rows_there: object) -> list[list[Any]]:
    rows = rows_there if isinstance(rows_there, list) else []
    return [row for row in rows if isinstance(row, list)]


def _read(row: list[Any]) -> tuple[str, tuple[SpelledPart, ...]]:
    try:
        seed, parts = row
        return str(seed), tuple(map(SpelledPart.read, parts))
    except (ValueError, TypeError):
        return "", ()


def _short(whole: SpelledPart) -> SpelledPart:
    """Return the part with fewer levels of nested parts, so that the stored text stays small."""
    depths = (24, 8, 4, 2, 1)
    cut = (whole.within(depth) for depth in depths)
    return next((each for each in cut if each.size() <= MOST), whole.within(0))


def _step(node: Node) -> WrittenStep:
    return WrittenStep(node.label(), digest(*name_parts(node, Domain.RESULT, {})).hex())


def _operators(normal: Node, seed: int, indent: str, *, quick: bool) -> Iterator[NamedOperator]:
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
        yield NamedOperator(f"{indent}{node.title()}", digest(*own).hex(), drawn, parts)


def _parts(node: Node, memo: Memo, *, quick: bool) -> Iterator[SpelledPart]:
    """Yield the parts of an operator, in the order in which a user would name them."""
    if isinstance(node, Segment):
        yield _filters(node.predicate, memo, conjuncts(node.predicate, memo))
        yield from _columns(node.env, memo)
        return
    for name in node.meaning_names:
        if name not in node.input_names:
            yield from _field(name, getattr(node, name), memo)
    if isinstance(node, Source):
        for what, text, content in node.content_parts(quick=quick):
            yield SpelledPart("content", f"content of {what}", text, content.hex())
    yield part("version", "version of the operator", node.version)
    if node.random:
        yield part("place", "place among the operators that draw", node.ordinal)
    yield part("place", "place among the operators that make rows", node.level)


def _field(name: str, value: Any, memo: Memo) -> Iterator[SpelledPart]:
    """Yield the parts of the operator's parameter ``name``."""
    match value:
        case UserFunction():
            yield function_part(as_now(value))
        case FileSet():
            names = (
                SpelledPart("file name", f"file {each.name!r}", each.name, "")
                for each in value.files
            )
            schema = _schema(value.schema)
            yield SpelledPart("files", "files", repr(value), value.digest.hex(), (*names, *schema))
        case Schema():
            yield SpelledPart("schema", name, "columns", value.digest.hex(), tuple(_schema(value)))
        case Value():
            yield _value(value, name, memo, DEEPEST)
        case (Value(), *_):
            yield _filters(value, memo, [canonical(each, memo).digest for each in value])
        case ((str(), Value()), *_):
            yield from _columns(value, memo)
        case _:
            kind = "seed" if name == "seed" else "option"
            yield part(kind, "seed" if kind == "seed" else f"{name}=", value)


def function_part(fn: UserFunction) -> SpelledPart:
    """Return a function with everything that it refers to, or with its user-given fingerprint."""
    if fn.asserted or fn.reason:
        kind = "given name" if fn.asserted else "unnamed"
        return SpelledPart(kind, fn.name, fn.reason or "a name of your own", fn.digest.hex())
    call = fn.code
    if isinstance(call, Stateful):
        call = functools.partial(call.made, *call.args, **call.kwargs)
    return SpelledPart("function", fn.name, fn.name, fn.digest.hex(), function_parts(fn.name, call))


def _schema(schema: Schema) -> Iterator[SpelledPart]:
    for name, kind in schema.items():
        yield SpelledPart("type", f"column {name!r}", short(kind), digest(kind).hex())


def _filters(values: Sequence[Value], memo: Memo, names: list[bytes]) -> SpelledPart:
    """Return the filters as one part; two such parts are equal if their ``names`` are equal."""
    found = tuple(_value(value, "a filter", memo, DEEPEST) for value in values)
    text = " & ".join(value_text(value) for value in values)
    return SpelledPart("filters", "filters", text, digest(names).hex(), found)


def _columns(env: Sequence[tuple[str, Value]], memo: Memo) -> Iterator[SpelledPart]:
    """Yield the names of the output columns as one part, then the expression of each."""
    yield part("columns", "columns that come out", [name for name, _ in env])
    for name, value in env:
        yield _value(value, f"column {name!r}", memo, DEEPEST)


KINDS = {"lit": "constant", "col": "column", "random": "draw", "udf": "function"}


def _value(value: Value, path: str, memo: Memo, depth: int) -> SpelledPart:
    """Return an expression as a part with an operation, options and arguments."""
    inside: list[SpelledPart] = []
    if value.op not in KINDS and depth:
        inside.append(part("operation", path, canonical(value, memo).op))
        if value.params:
            inside.append(part("option", f"option of {value.op} in {path}", value.params))
        inside += [_value(arg, path, memo, depth - 1) for arg in value.args]
    name = canonical(value, memo).digest.hex()
    text = short_repr(value.params[0]) if value.op == "lit" else value_text(value)
    return SpelledPart(KINDS.get(value.op, "expression"), path, text, name, tuple(inside))
