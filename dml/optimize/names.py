"""This file names normal forms: the same text for pipelines that mean the same bytes."""

from __future__ import annotations

from dml.expr.fingerprint import Domain, digest
from dml.expr.node import Node
from dml.expr.ops.segment import Segment
from dml.expr.sources.source import Source
from dml.expr.value import Value, canonical


def fingerprint_of(normal: Node, domain: Domain, seed: int) -> str:
    """Hex name of a pipeline in normal form, as ``domain`` tells pipelines apart.

    The result domain holds the content of the source and the default seed where something draws.
    """
    memo: dict[int, Value] = {}
    name = b""
    for node in normal.chain():
        name = digest(name, *_parts(node, domain, memo))
    if domain is Domain.RESULT and any(node.random for node in normal.walk()):
        name = digest(name, "seed", seed)
    return name.hex()


def parts_of(normal: Node, domain: Domain) -> list[tuple[str, str]]:
    """Operator and the digest of its own part, source first: what ``explain=True`` shows."""
    memo: dict[int, Value] = {}
    return [(n.title(), digest(*_parts(n, domain, memo)).hex()) for n in normal.chain()]


def _parts(node: Node, domain: Domain, memo: dict[int, Value]) -> list[object]:
    kind = type(node).__name__
    if isinstance(node, Source):
        return [kind, node.digest, *([node.identity()] if domain is Domain.RESULT else [])]
    if domain is Domain.SHAPE:
        return [kind]
    if isinstance(node, Segment):
        predicate = _ordered([canonical(part, memo) for part in node.predicate])
        env = [(name, canonical(value, memo).digest) for name, value in node.env]
        return [kind, node.version, predicate, env]
    own = [getattr(node, n) for n in node.field_names if n not in node.input_names]
    if domain in (Domain.FLEET, Domain.COST):
        own = [v for n, v in zip(_own_names(node), own, strict=True) if n != "seed"]
    return [kind, node.version, node.ordinal if node.random else -1, node.level, *own]


def _own_names(node: Node) -> list[str]:
    return [n for n in node.field_names if n not in node.input_names]


def _ordered(parts: list[Value]) -> list[bytes]:
    """Conjuncts that cannot fail in order of digest; from the first that can, as written."""
    sure = 0
    while sure < len(parts) and parts[sure].total:
        sure += 1
    return sorted(p.digest for p in parts[:sure]) + [p.digest for p in parts[sure:]]
