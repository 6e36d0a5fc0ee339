"""Unknown names and arguments of the public API end in errors that say what was meant.

The answers are those of docs/coming-from.md and of the pages beside it. They have tables that list
each public name of a library, and what it is in dml. The pages are read when the first such error
is raised.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from dml.errors import ArgumentError, UnknownNameError

PACKAGE: Final = Path(__file__).parents[1]
HEADER: Final = re.compile(r"\| (?:parameter of )?(.+?)(?: [\d.]+)? \| dml \|")
ROW: Final = re.compile(r"\| (`.+?`) \| (.+) \|")
# Sections whose names are those of columns, and of the namespaces of columns.
COLUMNS, ROOMS = "pl.Expr", "Polars"
# Sections of names of several libraries; in the first one, columns begin with the word.
ELSEWHERE, SERIES, ARGUMENTS = "elsewhere", "Series", "argument"
# Sections of transforms, and the namespaces whose functions they are here.
TRANSFORMS: Final = {"torchvision.transforms.v2": "image", "torchaudio.transforms": "audio"}
# Names that other libraries have for an argument with exactly the same meaning, and for the number
# of elements of a verb.
SYNONYMS: Final = {
    "drop_remainder": "drop_last",
    "has_header": "header",
    "key": "by",
    "probabilities": "weights",
    "reverse": "descending",
    "sep": "delimiter",
    "separator": "delimiter",
    "stratify_by_column": "stratify",
}
COUNTS: Final = {
    **dict.fromkeys(("batch", "padded_batch", "ragged_batch", "rebatch"), "batch_size"),
    **dict.fromkeys(("repeat", "skip", "take"), "count"),
    "prefetch": "buffer_size",
}
SOURCES: Final = ("from_", "read_")  # the first letters of functions that make a Dataset
MOST_ANSWERS: Final = 2
# Ratios of SequenceMatcher from which names are similar, and from which one is a misspelt other.
LIKE, MISSPELT = 0.66, 0.8


class PeerAnswer(NamedTuple):
    """What ``name`` of a ``library`` is in dml, as a text for users."""

    library: str
    name: str
    text: str


def unknown(
    owner: object, name: str, title: str, place: str, line: str, *, hint: str = ""
) -> UnknownNameError:
    """Return the error for a public ``name`` that ``owner`` does not have.

    ``title`` is what messages call the owner. ``place`` is "" for verbs and functions, "col" for
    columns, and the name of a namespace of columns; ``line`` is the user's. ``hint`` is advice of
    the owner, which comes before that of the tables.
    """
    answers, near = _answers().get((place, name), ()), _similar(name, tuple(dir(owner)))
    why = f"similar names: {', '.join(near)}" if near else "no name is similar"
    return UnknownNameError(
        f"{title} has no {name!r}",
        at=_written(name, line),
        why=why,
        try_=hint
        or _source(name)
        or _advice(answers)
        or _spelling(name, near)
        or "docs/coming-from.md has other names",
    )


def _source(name: str) -> str:
    """Return how to call ``name``, if that is a function of dml that makes a Dataset, else ""."""
    functions = sys.modules["dml"].__all__
    return f"dml.{name}(...)" if name.startswith(SOURCES) and name in functions else ""


def unbound(
    verb: Callable[..., Any], args: Collection[Any], options: Mapping[str, Any], line: str
) -> ArgumentError:
    """Return the error for a call of ``verb`` whose arguments do not fit its signature."""
    signature = inspect.signature(verb)
    own = {n: each for n, each in signature.parameters.items() if n != "self"}
    at = _written(verb.__name__, line)
    needed = [
        "name=value" if each.kind is each.VAR_KEYWORD else n
        for n, each in own.items()
        if each.default is each.empty and each.kind is not each.VAR_POSITIONAL
    ]
    called = f"{verb.__name__}({', '.join([*needed, '...'][: len(own)])})"
    for name in options:
        if name not in signature.parameters:
            near = difflib.get_close_matches(name, own, n=1, cutoff=LIKE)
            answers = _answers().get((verb.__name__, name), ())
            return ArgumentError(
                f"{verb.__name__} has no argument {name!r}",
                at=at,
                why=f"it has {', '.join(own)}" if own else "it has none",
                try_=_advice(answers) or (f"{near[0]}=" if near else f"leave it out: {called}"),
            )
    try:
        signature.bind(*args, **options)
        what = "its arguments do not fit"
    except TypeError as error:
        what = str(error)
    listed = [n for n, each in own.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    if own and not listed and not needed:
        called = f"{verb.__name__}({next(iter(own))}=...)"
    why = f"by position it takes {', '.join(listed) or 'none'}, all others by name"
    return ArgumentError(f"{verb.__name__}: {what}", at=at, why=why, try_=called)


def renamed(verb: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``options`` with the names that ``verb`` has for them; None if none is a synonym."""
    known = inspect.signature(verb).parameters
    counted = {COUNTS.get(verb.__name__): "n"}
    names = {name: (SYNONYMS | counted).get(name) for name in options if name not in known}
    meant = [*names.values()]
    if not meant or len({*meant}) < len(meant) or not {*meant} <= known.keys() - options.keys():
        return None
    return {names.get(name) or name: value for name, value in options.items()}


@lru_cache
def _similar(name: str, known: tuple[str, ...]) -> list[str]:
    """Return up to three public names, best first, that are like ``name`` or have such a part."""
    parts = defaultdict[str, list[str]](list)
    for each in known:
        if not each.startswith("_"):
            for part in {each, *each.split("_")}:
                parts[part].append(each)
    near = difflib.get_close_matches(name, parts, n=3, cutoff=LIKE)
    return [*dict.fromkeys(each for part in near for each in sorted(parts[part], key=len))][:3]


def _written(name: str, line: str) -> str:
    return f"{name}, written in {line}" if line else name


def _advice(answers: Collection[PeerAnswer]) -> str:
    told = dict.fromkeys(
        each.text
        if each.library in (ELSEWHERE, ARGUMENTS)
        else f"{each.name} of {each.library}: {each.text}"
        for each in answers
    )
    return "; ".join([*told][:MOST_ANSWERS])


def _spelling(name: str, near: Sequence[str]) -> str:
    """Return the first of ``near`` if ``name`` can only be meant for it, else ""."""
    sure = near and difflib.SequenceMatcher(None, name, near[0]).ratio() >= MISSPELT
    return f"did you mean {near[0]!r}?" if sure else ""


@cache
def _answers() -> dict[tuple[str, str], list[PeerAnswer]]:
    """Return the answers of all tables, by place and name, or by verb and argument."""
    found = defaultdict[tuple[str, str], list[PeerAnswer]](list)
    for page in _pages():
        for answer in _told(page.read_text(encoding="utf-8").splitlines()):
            found[_key(answer.library, answer.name)].append(answer)
            if answer.library in TRANSFORMS:  # ``GaussianBlur`` is also looked for as a function
                snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", answer.name).lower()
                for name in {snake, answer.name}:
                    found[TRANSFORMS[answer.library], name].append(answer)
    return dict(found)


def _told(lines: Iterable[str]) -> Iterator[PeerAnswer]:
    """Yield the answers of the tables of one page."""
    library = ""
    for line in lines:
        if header := HEADER.fullmatch(line):
            library = header[1]
        elif row := ROW.fullmatch(line):
            for full in re.findall("`([^`]+)`", row[1]):
                yield PeerAnswer(library, full, row[2])


def _key(library: str, full: str) -> tuple[str, str]:
    """Return place and name of an entry such as `batch`, `MapDataset.batch`, `str.x`, `map(x=)`."""
    if argument := re.fullmatch(r"(\w+)\((\w+)=.*\)", full):
        return argument[1], argument[2]
    place, _, name = full.rpartition(".")
    if library == COLUMNS:
        return "col", name
    if library == ELSEWHERE and place.startswith(SERIES):
        return place.rpartition(".")[2] if "." in place else "col", name
    return (place if library == ROOMS else ""), name


def _pages() -> list[Path]:
    """Return the pages: of an installed package within it, of a clone beside it."""
    within = PACKAGE / "docs"
    docs = within if within.is_dir() else PACKAGE.parent / "docs"
    first = docs / "coming-from.md"
    return [
        each for each in (first, *sorted((docs / "coming-from").glob("*.md"))) if each.is_file()
    ]
