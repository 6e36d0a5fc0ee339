"""This file names normal forms: the same text for pipelines that mean the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dml.expr.facts import Rows
from dml.expr.fingerprint import Domain, digest
from dml.expr.named import as_now, name_now, name_when_run
from dml.expr.node import Node
from dml.expr.ops.cache import on_disk
from dml.expr.ops.segment import Segment
from dml.expr.relation import Asked
from dml.expr.sources.source import Source
from dml.expr.value import Value, canonical
from dml.kernels.steps import ARITHMETIC_VERSION
from dml.optimize.rules.constants import bottom_up
from dml.plan import Plan

# Of the rows by which types settle that nobody has declared or proven: once those of the first atom
# that gave any, now the first 64.
SETTLING_VERSION = 2
STORED_VERSION = 2  # of what a name says: another where the same name would mean other rows
# Domains in which a seed is no part of the name (OPTIMIZER 4.2).
SEEDLESS = (Domain.FLEET, Domain.COST)
# Raised when positions come to mean something else: what was kept with old ones is not found.
LASTING = 1


Memo = dict[int, Value]


def fingerprint_of(normal: Node, domain: Domain, seed: int, memo: Memo | None = None) -> str:
    """Hex name of a pipeline in normal form, as ``domain`` tells pipelines apart.

    The result domain holds the content of the source and the default seed where something draws
    with it. ``memo`` spares work where several names of one normal form are made.
    """
    memo = {} if memo is None else memo
    name = _chained(normal, domain, memo, identified=domain is Domain.RESULT)
    if domain is Domain.RESULT and any(map(draws_by_default, normal.walk())):
        name = digest(name, "seed", seed)
    return name.hex()


def resuming_name(normal: Node, plan: Plan, memo: Memo) -> str:
    """Hex name of what a saved position fits: the program with its seeds, whatever the data is.

    What runs over the stream is part of it: places count what passes there, and the same pipeline
    run as it is written, or rewritten, may have other steps there.
    """
    name = _chained(normal, Domain.RESULT, memo, identified=False)
    steps = [
        name_parts(node, Domain.RESULT, memo, identified=False)
        for each in plan.all
        for node in each.stream
    ]
    return digest(name, steps).hex()


def kept_name(
    cache: Node, seed: int, *, optimized: bool, without: frozenset[str] = frozenset()
) -> bytes:
    """What the input of ``cache`` is kept by: in this process, or on disk in all of them."""
    made = _lasting_name if on_disk(cache) else _name_here
    return made(cache, seed, optimized, *sorted(without))


def _lasting_name(cache: Node, seed: int, *rewriting: object) -> bytes:
    """What every process on any machine keeps the input of ``cache`` by, as a plan runs it.

    Beside what decides the bytes it says which operators there are, whatever they were written
    like: they decide what a position is, and where in the tree types settled.
    """
    below = cache.inputs[0]
    memo: Memo = {}
    each = [name_parts(node, Domain.RESULT, memo, identified=False) for node in below.walk()]
    return digest("lasting", LASTING, stored_name(below, seed), each, *rewriting)


def _name_here(cache: Node, seed: int, *rewriting: object) -> bytes:
    """What a process keeps the input of ``cache`` by, which is as a plan runs it.

    Its result fingerprint decides the bytes (a source that is open here need not be read for it);
    the seed, the tree as it is run, whether it was rewritten and ``without`` which rules decide
    what positions and settled types mean. Functions count as what they do now, those that are
    declared impure as nobody else's.
    """
    below = cache.inputs[0]
    now = [name_now(fn) + fn.nonce for node in below.walk() if (fn := node.calls) is not None]
    sources = [node.opened() for node in below.walk() if isinstance(node, Source)]
    name = _chained(below, Domain.RESULT, {}, identified=False)
    return digest("kept", name, *sources, *now, below.digest, seed, *rewriting)


def stored_name(below: Node, seed: int) -> str:
    """Hex name that the rows of ``below`` in epoch 0 are stored by: equal names, equal parts.

    Portable between processes and machines. Functions count as what they do now, files as what
    their ``revision`` tells; the default seed where something draws with it; the version of the
    arithmetic, and those of the libraries that compute and decode.
    """
    now = [name_when_run(fn) for node in below.walk() if (fn := node.calls) is not None]
    sources = [node.revision() for node in below.walk() if isinstance(node, Source)]
    drawn = any(map(draws_by_default, below.walk()))
    name = _chained(below, Domain.RESULT, {}, identified=False)
    return _stored(name, sources, now, below.chain(), [seed] if drawn else [])


def asked_names(below: Node, seed: int) -> Asked:
    """The names that rows of ``below``, and of every step under it, are stored by.

    Each is what ``stored_name`` gives for that step; of pipelines that are one chain.
    """
    memo: Memo = {}
    chain = below.chain()
    own = [name_parts(node, Domain.RESULT, memo) for node in chain]
    functions = [b"" if node.calls is None else name_when_run(node.calls) for node in chain]
    drawn = [draws_by_default(node) for node in chain]
    source = [node.revision() for node in chain if isinstance(node, Source)]

    def named(start: int, end: int, *given: bytes) -> Iterator[str]:
        name = b""
        for place in range(start, end):
            name = digest(name, *own[place])
            now = [fn for fn in functions[start : place + 1] if fn]
            seeds = [seed] if any(drawn[start : place + 1]) else []
            yield _stored(name, list(given), now, chain[start : place + 1], seeds)

    count = len(chain)
    first = max((n for n, node in enumerate(chain, 1) if node.rows is Rows.STORED), default=count)
    # places in a chain are told of its rows, so that other chains have the same ones
    above = [*named(first, count, digest("above", first))]
    return Asked(tuple(named(0, count, *source)), tuple(functions[1:]), above[-1] if above else "")


def _stored(
    name: bytes, sources: list[bytes], now: list[bytes], chain: list[Node], drawn: list[int]
) -> str:
    kinds = [type(node).__name__ for node in chain]
    made_by = [STORED_VERSION, ARITHMETIC_VERSION, *map(_release, (np, pa))]
    return digest("stored", *made_by, name, *sources, *now, *kinds, drawn).hex()


def _release(library: ModuleType) -> str:
    """The version of a library that decides values, but for what only mends it."""
    return ".".join(str(library.__version__).split(".")[:2])


class Unnamed(NamedTuple):
    """Why rows have no name that lasts: in short, in full, and what to do about it."""

    what: str
    why: str
    try_: str


def unnamed(below: Node) -> Unnamed | None:
    """Why the rows of ``below`` have no name that lasts; None if they have one."""
    for node in below.walk():
        fn = node.calls
        if fn is not None and fn.reason:
            what, try_ = "a function below has no fingerprint", "where the function is given"
            return Unnamed(what, fn.reason, f'fingerprint="..." {try_}')
        if fn is not None and fn.declared is False:
            what = "a function below is declared impure (pure=False)"
            return Unnamed(what, f"calls of {fn.name} are not replaced", "it without pure=False")
    return None


def _chained(normal: Node, domain: Domain, memo: Memo, *, identified: bool) -> bytes:
    name = b""
    for node in normal.chain():
        beside = [_chained(n, domain, memo, identified=identified) for n in node.inputs[1:]]
        name = digest(name, *name_parts(node, domain, memo, identified=identified), *beside)
    return name


def parts_of(normal: Node, domain: Domain) -> list[tuple[str, str]]:
    """Operator and the digest of its own part, source first: what ``explain=True`` shows."""
    memo: Memo = {}
    whole = domain is Domain.RESULT
    found: list[tuple[str, str]] = []
    for node in normal.chain():
        for beside in node.inputs[1:]:
            found += [(f"  {title}", name) for title, name in parts_of(beside, domain)]
        found.append(
            (node.title(), digest(*name_parts(node, domain, memo, identified=whole)).hex())
        )
    return found


def own_parts(node: Node, domain: Domain, memo: Memo) -> list[object]:
    """What names ``node`` alone, whatever is below it and whatever the data is."""
    return name_parts(node, domain, memo)


def name_parts(node: Node, domain: Domain, memo: Memo, *, identified: bool = False) -> list[object]:
    """What names ``node`` alone, whatever is below it; with its data, if it is to be identified."""
    kind = type(node).__name__
    if isinstance(node, Source):
        return [kind, node.digest, *([node.identity()] if identified else [])]
    if domain is Domain.SHAPE:
        return [kind]
    if isinstance(node, Segment):
        node = _unseeded(node) if domain in SEEDLESS and node.draws else node
        predicate = _ordered([canonical(part, memo) for part in node.predicate])
        env = [(name, canonical(value, memo).digest) for name, value in node.env]
        return [kind, node.version, predicate, env]
    names = [n for n in node.meaning_names if n not in node.input_names]
    if domain in SEEDLESS:
        names = [n for n in names if n != "seed"]
    own = [getattr(node, n) for n in names]
    if identified and node.calls is not None:  # a global of it may be another since it was given
        own = [as_now(part) if part is node.calls else part for part in own]
    settled = (SETTLING_VERSION,) if domain is Domain.RESULT and _settles(node) else ()
    return [kind, node.version, node.ordinal if node.random else -1, node.level, *own, *settled]


def _settles(node: Node) -> bool:
    """True if the types of the rows that a function returns are what its first rows are."""
    return hasattr(node, "returned") and not node.schema.known


def _unseeded(node: Segment) -> Segment:
    values = (*node.predicate, *(value for _, value in node.env))
    done = bottom_up(values, _seedless)
    predicate = tuple(done[id(part)] for part in node.predicate)
    return Segment(node.input, predicate, tuple((n, done[id(v)]) for n, v in node.env))


def _seedless(value: Value) -> Value:
    return Value("random", (), (None, *value.params[1:])) if value.op == "random" else value


def draws_by_default(node: Node) -> bool:
    """True if the default seed decides what the operator does."""
    if isinstance(node, Segment):
        return node.draws and any(v.params[0] is None for v in _draws(_values(node)))
    if hasattr(node, "seed"):
        return node.seed is None
    return node.random


def _values(node: Segment) -> Iterator[Value]:
    yield from node.predicate
    yield from (value for _, value in node.env)


def _draws(values: Iterable[Value]) -> Iterator[Value]:
    """Every draw in ``values``, shared ones once."""
    seen: set[int] = set()
    stack = [value for value in values if value.draws]
    while stack:
        value = stack.pop()
        if value.op == "random":
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            stack += [arg for arg in value.args if arg.draws]


def _ordered(parts: list[Value]) -> list[bytes]:
    """Conjuncts that cannot fail in order of digest; from the first that can, as written."""
    sure = 0
    while sure < len(parts) and parts[sure].total:
        sure += 1
    return sorted(p.digest for p in parts[:sure]) + [p.digest for p in parts[sure:]]
