"""A user's callable becomes a ``UserFunction`` here: with a fingerprint and a purity verdict."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dml.base.fingerprint import digest
from dml.errors import FingerprintError, PlanError
from dml.expr.user_call import UserFunction

if TYPE_CHECKING:
    from dml.udfs.calling.instances import Stateful


def user_function(  # noqa: PLR0917 (the first four of any callable, the others of a class)
    fn: Any,
    verb: str,
    nonce: bytes,
    fingerprint: str | None,
    constructed: tuple[Any, Any] = ((), None),
    most: int | None = 1,
) -> UserFunction:
    """Return ``fn`` with its fingerprint, or with a digest of ``nonce`` that is valid in this run.

    A class whose instances are callable is one stateful function: it is ``constructed`` from these
    positional and keyword arguments in each process that calls it, at most ``most`` times. ``verb``
    is the method that the user called. Raise PlanError if ``fn`` is not callable.
    """
    from dml.udfs.calling.instances import Stateful  # noqa: PLC0415
    from dml.udfs.identity.function_fingerprint import identify  # noqa: PLC0415
    from dml.udfs.lifting.purity import fresh_dict, lookups, objection  # noqa: PLC0415

    args, kwargs = _arguments(verb, *constructed)
    if isinstance(fn, type) and any("__call__" in vars(base) for base in fn.__mro__):
        call = Stateful(fn, args, kwargs, b"", many=verb == "flat_map", most=most)
        return _named(call, nonce, fingerprint)
    _refuse(fn, verb, constructs=bool(args or kwargs))
    known = identify(fn, nonce=nonce, fingerprint=fingerprint)
    return UserFunction(
        fn,
        known.digest,
        known.name,
        known.reason,
        objection(fn),
        lookups=lookups(fn),
        fresh=fresh_dict(fn),
        asserted=fingerprint is not None,
    )


IMPURE = "declared impure (pure=False)"


def declared(fn: UserFunction, verb: str, nonce: bytes, *, pure: Any) -> UserFunction:
    """Return ``fn`` with the user's ``pure=``; raise PlanError unless it is a bool or None."""
    if pure is None:
        return fn
    if not isinstance(pure, bool):
        raise PlanError(
            f"{verb} with pure={pure!r}",
            why="True says that results depend on arguments alone, False that no call is repeated,"
            " None nothing",
            try_=f"{verb} without it, or with pure=True",
        )
    if pure:
        return dataclasses.replace(fn, declared=True, purity="")
    return dataclasses.replace(fn, declared=False, purity=IMPURE, nonce=nonce)


def limited(fn: UserFunction, verb: str, timeout: Any) -> UserFunction:
    """Return ``fn`` with calls of at most ``timeout`` seconds (None: no limit).

    The digest stays: a run in which no call takes longer has the same rows. Raise PlanError unless
    ``timeout`` is a positive finite number.
    """
    if timeout is None:
        return fn
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not 0 < timeout < math.inf:
        raise PlanError(
            f"{verb} with timeout={timeout!r}",
            why="it is the most seconds that one call may take, a number above 0",
            try_="timeout=30, or none for no limit",
        )
    from dml.udfs.calling.instances import Stateful  # noqa: PLC0415
    from dml.udfs.calling.time_limit import TimeLimited  # noqa: PLC0415

    seconds = float(timeout)
    if isinstance(fn.call, Stateful):
        call = dataclasses.replace(fn.call, limit_s=seconds)
        return dataclasses.replace(fn, call=call, timeout=seconds)
    within = TimeLimited(fn.call, seconds, many=verb == "flat_map")
    # a function of batches has few calls, one that yields rows is called outside of loops
    return dataclasses.replace(
        fn, call=within, timeout=seconds, unlimited=fn.call, loop=within.loop
    )


def name_now(fn: UserFunction) -> bytes:
    """Return the digest of the current behaviour of ``fn``; a global it reads may have changed.

    The original digest is returned if the user gave a fingerprint, or if the digest is valid in
    this run only. It is also returned for classes, since their arguments are the original ones.
    """
    from dml.udfs.identity.function_fingerprint import identify  # noqa: PLC0415

    if fn.asserted or fn.reason or fn.stateful:
        return fn.digest
    return identify(fn.code, nonce=fn.digest, fingerprint=None).digest


def as_now(fn: UserFunction) -> UserFunction:
    """Return ``fn`` with the digest of its current behaviour, ``name_now(fn)``."""
    return dataclasses.replace(fn, digest=name_now(fn))


def name_when_run(fn: UserFunction) -> bytes:
    """Return ``name_now(fn)``; for a class, the digest of its current state and arguments."""
    from dml.udfs.identity.function_fingerprint import identify  # noqa: PLC0415

    call: Any = fn.call
    if fn.asserted or fn.reason or not fn.stateful:
        return name_now(fn)
    whole = functools.partial(call.made, *call.args, **call.kwargs)
    try:
        return identify(whole, nonce=fn.digest, fingerprint=None).digest
    except FingerprintError:
        return fn.digest  # keep the user's own digest


def _refuse(fn: Any, verb: str, *, constructs: bool) -> None:
    """Raise PlanError if ``fn`` is not callable, or constructor arguments do not apply to it."""
    if constructs:
        raise PlanError(
            f"{verb} with arguments for the constructor of {fn!r}",
            why="they are for a class whose instances can be called",
            try_=f"a class with __call__, or functools.partial(f, ...) in {verb}",
        )
    if type(fn) is type and not any(
        {"__init__", "__new__"} & set(vars(b)) for b in fn.__mro__[:-1]
    ):
        raise PlanError(
            f"{verb} with the class {fn.__name__}, whose instances cannot be called",
            why="it has no __call__, and its constructor takes no argument either",
            try_="def __call__(self, x): ... in the class",
        )
    if not callable(fn):
        raise PlanError(
            f"{verb} needs a function, got {fn!r}",
            why=f"it is of type {type(fn).__name__}, which cannot be called",
            try_=f".{verb}(lambda {'batch' if verb == 'map_batches' else 'row'}: ...)",
        )


def _arguments(verb: str, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    named = {} if kwargs is None else kwargs
    known = isinstance(named, Mapping) and all(isinstance(name, str) for name in named)
    if isinstance(args, list | tuple) and known:
        return tuple(args), dict(named)
    raise PlanError(
        f"{verb} with fn_constructor_args={args!r}, fn_constructor_kwargs={kwargs!r}",
        why="they are a tuple of arguments, and a dict of named ones",
        try_='fn_constructor_args=("weights.npz",)',
    )


def _named(call: Stateful, nonce: bytes, fingerprint: str | None) -> UserFunction:
    """Return a class with its arguments as a function; equal digests share instances."""
    from dml.udfs.identity.function_fingerprint import identify  # noqa: PLC0415

    # the user's own fingerprint replaces the class's code; the arguments' digests still count
    whole = functools.partial(call.made, *call.args, **call.kwargs)
    known = identify(
        whole if fingerprint is None else call.made, nonce=nonce, fingerprint=fingerprint
    )
    call.key = digest("instance", known.digest)
    if fingerprint is not None:
        with contextlib.suppress(FingerprintError):
            call.key = digest("instance", known.digest, call.args, dict(call.kwargs))
    purity = "it is a class: what an instance returns may depend on what it was called with before"
    return UserFunction(call, call.key, known.name, known.reason, purity, stateful=True)
