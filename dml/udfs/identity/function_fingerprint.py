"""The fingerprint of a function covers its bytecode and everything that the code refers to.

A user's function is encoded by its bytecode (see ``dml.udfs.identity.bytecode`` for the parts left
out), its defaults and closure, and every global that it reads, through the user's own modules at
any depth. An object of a library is encoded by its name and, in the domain RESULT, the library's
version. Values are encoded as by ``dml.base.encoder``, but dictionaries in their own order. Objects
without a meaning outside this process raise an error: locks, random generators, loggers, open
files.

Names, annotations, and the order of attributes and of sets are included if the code observes them
(see ``dml.udfs.identity.reflection``).

Not detected: names looked up by text (``getattr``), files that the function reads, a library that
was changed without a new version, and a library's use of the function's name. Source: OPTIMIZER
4.3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dml.base.encoder import UnnamedError, endless
from dml.base.fingerprint import Domain, FingerprintPart, digest, digest_in
from dml.base.library_code import Library
from dml.errors import FingerprintError
from dml.udfs.identity.closure_walk import FunctionEncoder, named, spelled

TRY = 'pass fingerprint="..." with a name of your own, or define __dml_fingerprint__ on it'


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionIdentity:
    """The portable fingerprint of a function, or the ``reason`` why there is none.

    ``name`` is for people and for the SHAPE domain; ``code`` is a digest of 16 bytes; ``libraries``
    are those that the function uses. With a ``reason``, the fingerprint is valid in this run only:
    results are not cached, and other processes cannot refer to the function in positions or in
    telemetry.
    """

    name: str
    code: bytes
    libraries: tuple[Library, ...] = ()
    reason: str = ""

    @property
    def digest(self) -> bytes:
        """The digest in the RESULT domain, so that an identity can be part of another digest."""
        return self.digest_in(Domain.RESULT)

    def digest_in(self, domain: Domain) -> bytes:
        """Return a digest, 16 bytes, of the parts of the function that ``domain`` includes.

        SHAPE includes the name, FLEET and COST the code, RESULT the code and library versions.
        """
        return digest_in(
            domain,
            (FingerprintPart.OPERATOR, "function"),
            (FingerprintPart.FUNCTION_NAME, self.name),
            (FingerprintPart.FUNCTION_CODE, self.code),
            (FingerprintPart.FUNCTION_LIBRARIES, tuple(map(tuple, self.libraries))),
        )


def identity(fn: Callable[..., Any], *, fingerprint: str | None = None) -> FunctionIdentity:
    """Return the identity of a callable.

    ``fingerprint`` is the user's own name for the function and stands for all of its code. ``fn``
    may be a function, lambda, method, partial, class, object with ``__call__``, or a NumPy or numba
    function. The call takes about 30 microseconds, and 100 more for each new code object. Raise
    FingerprintError for a value without fingerprint, with the path to it.
    """
    name = spelled(fn)
    if fingerprint is not None:
        return FunctionIdentity(name, digest("named by user", fingerprint))
    try:
        out = named(fn, FunctionEncoder)
    except UnnamedError as refusal:
        refusal.try_ = refusal.try_ or TRY
        raise refusal.public(name) from None
    except RecursionError:
        raise endless().public(name) from None
    return FunctionIdentity(name, out.digest(), tuple(sorted(out.libraries)))


def local_identity(reason: str, nonce: bytes, name: str = "function") -> FunctionIdentity:
    """Return an identity for this run alone; ``nonce`` must be new for every function and run.

    ``reason`` is one sentence for the user. The caller provides the nonce, since this function is
    pure.
    """
    return FunctionIdentity(name, digest("local", nonce), (), reason or "it has no portable name")


def identify(
    fn: Callable[..., Any], *, nonce: bytes, fingerprint: str | None = None
) -> FunctionIdentity:
    """Return ``identity`` of ``fn``, or a ``local_identity`` with the reason of the failure."""
    try:
        return identity(fn, fingerprint=fingerprint)
    except FingerprintError as error:
        return local_identity(error.what, nonce, spelled(fn))
