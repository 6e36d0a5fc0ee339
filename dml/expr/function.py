"""This file names functions: by what their code does and by everything that the code refers to.

A user's function is its bytecode (see ``dml.expr.bytecode`` for what is left out of it), defaults,
closure, and every global it reads, through the user's own modules and as deep as they go. What
belongs to a library is its place there and, where bytes matter, the library's version. Values are
encoded as anywhere else, but in the order in which a program would see them. What has no meaning
outside this process (locks, generators of random numbers, loggers, open files ...) raises.

Names, annotations, the order of attributes and of sets count where the code looks at them (see
``dml.expr.reflection``).

Blind to: names looked up by text (``getattr``), files read inside, a library changed in place under
the same version, what a library does with the name of a function. Source: OPTIMIZER 4.3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dml.errors import FingerprintError
from dml.expr.encoder import UnnamedError, endless
from dml.expr.fingerprint import Domain, Part, digest, digest_in
from dml.expr.origin import Library
from dml.expr.reach import FunctionEncoder, named, spelled

TRY = 'pass fingerprint="..." with a name of your own, or define __dml_fingerprint__ on it'


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionIdentity:
    """What a function is called by other processes, or why it has no such name.

    ``name`` is for people and for the SHAPE domain; ``code`` is 16 bytes; ``libraries`` are those
    the function uses. With a ``reason``, the name holds in this run only: results are not cached,
    and neither resumption elsewhere nor fleet reports can refer to them.
    """

    name: str
    code: bytes
    libraries: tuple[Library, ...] = ()
    reason: str = ""

    @property
    def local(self) -> bool:
        """True if no other process can come to the same name."""
        return bool(self.reason)

    @property
    def digest(self) -> bytes:
        """The name in the RESULT domain, so that an identity can be a part of another digest."""
        return self.digest_in(Domain.RESULT)

    def digest_in(self, domain: Domain) -> bytes:
        """16 bytes: SHAPE sees the name, FLEET and COST the code, RESULT versions as well."""
        return digest_in(
            domain,
            (Part.OPERATOR, "function"),
            (Part.FUNCTION_NAME, self.name),
            (Part.FUNCTION_CODE, self.code),
            (Part.FUNCTION_LIBRARIES, tuple(tuple(library) for library in self.libraries)),
        )


def identity(fn: Callable[..., Any], *, fingerprint: str | None = None) -> FunctionIdentity:
    """The identity of a callable; raises FingerprintError with the path to what has no name.

    ``fingerprint`` is the user's own name for the function and stands for all of its code.
    Takes functions, lambdas, methods, partials, classes, objects with ``__call__``, NumPy and numba
    functions. Costs about 30 microseconds, and 100 more the first time a code object is seen.
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
    """An identity for this run alone; ``nonce`` must be new for every function and every run.

    ``reason`` is one sentence for the user. The caller draws the nonce, since nothing here may.
    """
    return FunctionIdentity(name, digest("local", nonce), (), reason or "it has no portable name")


def identify(
    fn: Callable[..., Any], *, nonce: bytes, fingerprint: str | None = None
) -> FunctionIdentity:
    """``identity`` where there is one, else ``local_identity`` with the reason why not."""
    try:
        return identity(fn, fingerprint=fingerprint)
    except FingerprintError as error:
        return local_identity(error.what, nonce, spelled(fn))


def function_digest(fn: Callable[..., Any], domain: Domain = Domain.RESULT) -> bytes:
    """16 bytes that name ``fn`` in ``domain``; raises FingerprintError as ``identity`` does."""
    if domain is Domain.SHAPE:
        return FunctionIdentity(spelled(fn), b"").digest_in(domain)
    return identity(fn).digest_in(domain)
