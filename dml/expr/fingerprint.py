"""This file names values: a keyed hash of what they are, and which part enters which fingerprint.

A name is 16 bytes: BLAKE2b keyed with the version of the scheme, over the encoding of
``dml.expr.encoder``. Equal names mean equal values, in any process, on any machine. A pipeline has
four names, one per ``Domain``, since what must be told apart depends on who asks.

Source: OPTIMIZER 4.1 and 4.2; naming derived data by program and input is Nectar's idea.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from dml.expr.encoder import SIZE, Encoder, UnnamedError, endless

__all__ = ["ENTERS", "SIZE", "Digestible", "Domain", "Part", "digest", "digest_in"]


@runtime_checkable
class Digestible(Protocol):
    """Anything of ours that already has a name: nodes, expressions, schemas, sources."""

    @property
    def digest(self) -> bytes:
        """The 16 bytes that stand for this value wherever it is part of another."""


class Domain(enum.Enum):
    """Who asks for the name, and therefore what it must tell apart."""

    FLEET = "fleet"  # the same program over the same file names: what reports count
    SHAPE = "shape"  # the same operators in the same structure: what templates are made of
    COST = "cost"  # the same work per row: what telemetry is keyed by
    RESULT = "result"  # the same bytes: what the cache is keyed by


class Part(enum.Enum):
    """What a pipeline is made of, as far as names care."""

    OPERATOR = "operator kinds and their versions"
    STRUCTURE = "which operators feed which"
    INPUT_TYPES = "types and element shapes that an operator takes"
    LITERAL = "constants and parameters"
    COST_LITERAL = "parameters that decide how much work a row is"
    FILE_NAMES = "dataset-relative names of files"
    FILE_IDENTITY = "sizes and content of files"
    DRAWS = "seed, and epoch or reuse period, where they reach"
    FUNCTION_CODE = "code of a user's function"
    FUNCTION_NAME = "qualified name of a user's function"
    FUNCTION_LIBRARIES = "versions of the libraries that a function uses"
    KERNELS = "semantic version of kernels and of numeric libraries"
    COLUMN_NAMES = "names of columns inside the pipeline"
    FINAL_NAMES = "names of the columns that come out"
    NAMESPACE = "tenant, as a tag"


_F, _S, _C, _R = Domain.FLEET, Domain.SHAPE, Domain.COST, Domain.RESULT

#: Which part enters which name (OPTIMIZER 4.2). Namespaces stand in a cache key's path, not in it.
ENTERS: Mapping[Part, frozenset[Domain]] = {
    Part.OPERATOR: frozenset((_F, _S, _C, _R)),
    Part.STRUCTURE: frozenset((_F, _S, _R)),
    Part.INPUT_TYPES: frozenset((_C,)),
    Part.LITERAL: frozenset((_F, _R)),
    Part.COST_LITERAL: frozenset((_F, _C, _R)),
    Part.FILE_NAMES: frozenset((_F, _R)),
    Part.FILE_IDENTITY: frozenset((_R,)),
    Part.DRAWS: frozenset((_R,)),
    Part.FUNCTION_CODE: frozenset((_F, _C, _R)),
    Part.FUNCTION_NAME: frozenset((_S,)),
    Part.FUNCTION_LIBRARIES: frozenset((_R,)),
    Part.KERNELS: frozenset((_C, _R)),
    Part.COLUMN_NAMES: frozenset((_F,)),
    Part.FINAL_NAMES: frozenset((_F, _R)),
    Part.NAMESPACE: frozenset((_F,)),
}


def digest(*parts: object) -> bytes:
    """Name ``parts`` in this order: 16 bytes, equal in every process for equal values.

    Takes int, float, complex, bool, str, bytes, None, tuple, list, dict, set, frozenset, range,
    slice, NumPy arrays, scalars and dtypes, datetime, date, time, timedelta, timezone, Decimal,
    enum members, Arrow types, fields, schemas, scalars, arrays, batches and tables, and whatever is
    Digestible. Raises FingerprintError with the path to the first value that is none of these.

    >>> digest("clip", "label", 0, 1) == digest("clip", "label", 0, 1.0)
    False
    """
    out = Encoder()
    index = 0
    try:
        for index, part in enumerate(parts):  # noqa: B007 - the failing place is read below
            out.add(part)
    except UnnamedError as refusal:
        raise refusal.public(f"value[{index}]") from None
    except RecursionError:
        raise endless().public(f"value[{index}]") from None
    return out.digest()


def digest_in(domain: Domain, *parts: tuple[Part, object]) -> bytes:
    """Name those of ``parts`` that enter ``domain``, in this order; raises as ``digest`` does.

    >>> parts = (Part.OPERATOR, "take"), (Part.LITERAL, 5)
    >>> digest_in(Domain.SHAPE, *parts) == digest_in(Domain.SHAPE, (Part.OPERATOR, "take"))
    True
    """
    chosen = [value for part, value in parts if domain in ENTERS[part]]
    return digest(domain.value, *chosen)
