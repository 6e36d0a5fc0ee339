"""Fingerprints of pipelines: digests of their normal forms, equal only for equal output bytes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dml.base.fingerprint import Domain, digest
from dml.expr.columns.value import Value, canonical
from dml.expr.facts import Rows
from dml.expr.node import Node
from dml.io.source import Source
from dml.ops.cache.cache import on_disk
from dml.ops.row.segment import Segment
from dml.optimize.rules import constants
from dml.physical.plan import Plan
from dml.udfs.named_function import as_now, name_now, name_when_run

# Version of the rule by which rows settle types that are neither declared nor proven: at first it
# was the rows of the first atom that gave any, now it is the first 64.
SETTLING_VERSION = 2
STORED_VERSION = 2  # raised when a stored name would otherwise mean other rows than before
# Domains in which a seed is no part of the name (OPTIMIZER 4.2).
SEEDLESS = (Domain.FLEET, Domain.COST)
# Raised when the meaning of positions changes, so that entries with old positions are not found.
LASTING = 1


Memo = dict[int, Value]


def fingerprint_of(normal: Node, domain: Domain, seed: int, memo: Memo | None = None) -> str:
    """Return the fingerprint of a normal form in hex; ``domain`` decides which parts it covers.

    The result domain covers the content of the source, and the default seed if an operator draws
    with it. ``memo`` saves work when several fingerprints of one normal form are computed.
    """
    memo = {} if memo is None else memo
    name = _chained(normal, domain, memo, identified=domain is Domain.RESULT)
    if domain is Domain.RESULT and any(map(draws_by_default, normal.walk())):
        name = digest(name, "seed", seed)
    return name.hex()


def resuming_name(normal: Node, plan: Plan, memo: Memo) -> str:
    """Return the hex name of the plans that can resume a position: operators and seeds, no data.

    The name covers the operators over the stream, because positions count their elements. These
    operators may differ between the written and the optimized plan of a pipeline.
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
    """Return the name under which ``cache`` stores elements of its input, in memory or on disk."""
    made = _lasting_name if on_disk(cache) else _name_here
    return made(cache, seed, optimized, *sorted(without))


def _lasting_name(cache: Node, seed: int, *rewriting: object) -> bytes:
    """Return the name of a cache's input as a plan runs it, valid in every process and machine.

    It covers everything that decides the bytes. It also covers the operators themselves, which
    decide the meaning of a position, and the places in the tree at which types settled.
    """
    below = cache.inputs[0]
    memo: Memo = {}
    each = [name_parts(node, Domain.RESULT, memo, identified=False) for node in below.walk()]
    return digest("lasting", LASTING, stored_name(below, seed), each, *rewriting)


def _name_here(cache: Node, seed: int, *rewriting: object) -> bytes:
    """Return the name of a cache's input in this process, as a plan runs it.

    The name includes the result fingerprint, which decides the bytes (a source that is open here
    need not be read for it). It also includes the parts that decide the meaning of positions and
    settled types: the seed, the executed tree, and ``rewriting`` (whether, and by which rules, the
    tree was rewritten). Functions count by their current behaviour, and functions that are declared
    impure differ from all others.
    """
    below = cache.inputs[0]
    now = [name_now(fn) + fn.nonce for node in below.walk() if (fn := node.calls) is not None]
    sources = [node.opened() for node in below.walk() if isinstance(node, Source)]
    name = _chained(below, Domain.RESULT, {}, identified=False)
    return digest("kept", name, *sources, *now, below.digest, seed, *rewriting)


def stored_name(below: Node, seed: int) -> str:
    """Return the hex name for stored rows of ``below`` in epoch 0; equal names mean equal rows.

    The name is portable between processes and machines. It includes the current behaviour of
    functions, the ``revision`` of files, the default seed if an operator draws with it, the version
    of the arithmetic, and the versions of the libraries that compute and decode.
    """
    now = [name_when_run(fn) for node in below.walk() if (fn := node.calls) is not None]
    sources = [node.revision() for node in below.walk() if isinstance(node, Source)]
    drawn = any(map(draws_by_default, below.walk()))
    name = _chained(below, Domain.RESULT, {}, identified=False)
    return _stored(name, sources, now, below.chain(), [seed] if drawn else [])


@dataclasses.dataclass(frozen=True)
class StoreQuery:
    """The names under which a store is searched for the rows of an operator, in any process.

    ``names`` has the names of the rows of the source and of every operator above it, up to the
    last; ``functions`` name the behaviour of these operators' functions. ``above`` names the
    operators above the highest stored one, independent of their input rows; "" if none is stored.
    """

    names: tuple[str, ...]
    functions: tuple[bytes, ...]
    above: str = ""


def asked_names(below: Node, seed: int) -> StoreQuery:
    """Return the names for stored rows of ``below`` and of every operator below it.

    Each name is the ``stored_name`` of its operator. ``below`` must be a chain without side inputs.
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
    # the index of the first step above counts, but not the chain below that step
    above = [*named(first, count, digest("above", first))]
    return StoreQuery(
        tuple(named(0, count, *source)), tuple(functions[1:]), above[-1] if above else ""
    )


def _stored(
    name: bytes, sources: list[bytes], now: list[bytes], chain: list[Node], drawn: list[int]
) -> str:
    from dml.kernels.math import ARITHMETIC_VERSION  # noqa: PLC0415

    kinds = [type(node).__name__ for node in chain]
    made_by = [STORED_VERSION, ARITHMETIC_VERSION, *map(_release, (np, pa))]
    return digest("stored", *made_by, name, *sources, *now, *kinds, drawn).hex()


def _release(library: ModuleType) -> str:
    """Return the major and minor version of a library whose version can change values."""
    return ".".join(str(library.__version__).split(".")[:2])


class Unnamed(NamedTuple):
    """The reason why rows have no lasting name: in short, in full, and how to give them one."""

    what: str
    why: str
    try_: str


def unnamed(below: Node) -> Unnamed | None:
    """Return why the rows of ``below`` have no lasting name; None if they have one."""
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
    """Return each operator's title and its digest without inputs, source first."""
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


def name_parts(node: Node, domain: Domain, memo: Memo, *, identified: bool = False) -> list[object]:
    """Return the parts of the fingerprint of ``node``, without its inputs.

    With ``identified``, the identity of its data is one of them.
    """
    kind = type(node).__name__
    if isinstance(node, Source):
        return [kind, node.digest, *([node.identity()] if identified else [])]
    if domain is Domain.SHAPE:
        return [kind]
    if isinstance(node, Segment):
        if node.named:
            node = node.replace(env=node.named, named=())
        if domain in SEEDLESS and node.draws:
            node = constants.with_values(node, _seedless) or node
        predicate = conjuncts(node.predicate, memo)
        env = [(name, canonical(value, memo).digest) for name, value in node.env]
        return [kind, node.version, predicate, env]
    names = [n for n in node.meaning_names if n not in node.input_names]
    if domain in SEEDLESS:
        names = [n for n in names if n != "seed"]
    own = [getattr(node, n) for n in names]
    if identified and node.calls is not None:  # its globals may have changed since it was given
        own = [as_now(part) if part is node.calls else part for part in own]
    # the first rows that a function returns settle the types of all its rows
    settles = domain is Domain.RESULT and node.returns_rows and not node.schema.known
    settled = (SETTLING_VERSION,) if settles else ()
    return [kind, node.version, node.ordinal if node.random else -1, node.level, *own, *settled]


def _seedless(value: Value) -> Value:
    return Value("random", (), (None, *value.params[1:])) if value.op == "random" else value


def _unseeded(value: Value) -> bool:
    return value.op == "random" and value.params[0] is None


def draws_by_default(node: Node) -> bool:
    """Return True if the operator's result depends on the default seed."""
    if isinstance(node, Segment):
        return node.draws and any(map(_unseeded, constants.parts_of(node)))
    return node.seed is None if node.takes_seed else node.random


def conjuncts(predicate: Sequence[Value], memo: Memo) -> list[bytes]:
    """Return the digests of conjuncts: sorted up to the first that may fail, then as written."""
    parts = [canonical(part, memo) for part in predicate]
    sure = [*itertools.takewhile(lambda part: part.total, parts)]
    return sorted(p.digest for p in sure) + [p.digest for p in parts[len(sure) :]]
