"""Fingerprints are keyed hashes of values; each domain includes its own parts of a pipeline.

A fingerprint is 16 bytes: BLAKE2b keyed with the version of the scheme, over the encoding of
``dml.base.encoder``. Equal fingerprints mean equal values, in any process, on any machine. A
pipeline has four, one per ``Domain``, since each use must tell other pipelines apart.

Source: OPTIMIZER 4.1 and 4.2; naming derived data by program and input is Nectar's idea.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from dml.base.encoder import SIZE, Encoder, UnnamedError, endless

__all__ = ["ENTERS", "SIZE", "Domain", "FingerprintPart", "digest", "digest_in"]


class Domain(enum.Enum):
    """The use of a fingerprint, which decides which parts of a pipeline it includes."""

    FLEET = "fleet"  # equal for the same program over the same file names; reports count these
    SHAPE = "shape"  # equal for the same operators in the same structure
    COST = "cost"  # equal for the same work per row; the key of measured costs
    RESULT = "result"  # equal for the same bytes; the key of the cache


class FingerprintPart(enum.Enum):
    """The parts of a pipeline that a fingerprint may include."""

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

#: The domains of each part (OPTIMIZER 4.2). A namespace is in a cache path, not in the key.
ENTERS: Mapping[FingerprintPart, frozenset[Domain]] = {
    FingerprintPart.OPERATOR: frozenset((_F, _S, _C, _R)),
    FingerprintPart.STRUCTURE: frozenset((_F, _S, _R)),
    FingerprintPart.INPUT_TYPES: frozenset((_C,)),
    FingerprintPart.LITERAL: frozenset((_F, _R)),
    FingerprintPart.COST_LITERAL: frozenset((_F, _C, _R)),
    FingerprintPart.FILE_NAMES: frozenset((_F, _R)),
    FingerprintPart.FILE_IDENTITY: frozenset((_R,)),
    FingerprintPart.DRAWS: frozenset((_R,)),
    FingerprintPart.FUNCTION_CODE: frozenset((_F, _C, _R)),
    FingerprintPart.FUNCTION_NAME: frozenset((_S,)),
    FingerprintPart.FUNCTION_LIBRARIES: frozenset((_R,)),
    FingerprintPart.KERNELS: frozenset((_C, _R)),
    FingerprintPart.COLUMN_NAMES: frozenset((_F,)),
    FingerprintPart.FINAL_NAMES: frozenset((_F, _R)),
    FingerprintPart.NAMESPACE: frozenset((_F,)),
}


def digest(*parts: object) -> bytes:
    """Return the fingerprint of ``parts`` in this order: 16 bytes, equal in every process.

    Takes int, float, complex, bool, str, bytes, None, tuple, list, dict, set, frozenset, range,
    slice, NumPy arrays, scalars and dtypes, datetime, date, time, timedelta, timezone, Decimal,
    enum members, Arrow types, fields, schemas, scalars, arrays, batches and tables, and objects
    whose ``digest`` is their own fingerprint (nodes, expressions, schemas, sources). Raises
    FingerprintError with the path to the first value of any other type.

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


def digest_in(domain: Domain, *parts: tuple[FingerprintPart, object]) -> bytes:
    """Return the fingerprint of those ``parts`` that enter ``domain``; raise as ``digest`` does.

    >>> parts = (FingerprintPart.OPERATOR, "take"), (FingerprintPart.LITERAL, 5)
    >>> digest_in(Domain.SHAPE, *parts) == digest_in(Domain.SHAPE, parts[0])
    True
    """
    chosen = [value for part, value in parts if domain in ENTERS[part]]
    return digest(domain.value, *chosen)
