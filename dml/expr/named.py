"""This file makes a user's callable a part of a pipeline: with a name, and a verdict on purity."""

from __future__ import annotations

from typing import Any

from dml.errors import PlanError
from dml.expr.calls import UserFunction
from dml.expr.function import identify
from dml.expr.purity import fresh_dict, only_looks_up, proven_pure


def user_function(fn: Any, verb: str, nonce: bytes, fingerprint: str | None) -> UserFunction:
    """``fn`` with its name; ``nonce`` names it in this run if nothing else can.

    PlanError if it cannot be called; ``verb`` is what the user wrote.
    """
    if not callable(fn):
        raise PlanError(
            f"{verb} needs a function, got {fn!r}",
            why=f"a {type(fn).__name__} cannot be called",
            try_=f".{verb}(lambda row: ...)",
        )
    known = identify(fn, nonce=nonce, fingerprint=fingerprint)
    verdict = proven_pure(fn)
    purity = "" if verdict else verdict.reason
    return UserFunction(
        fn,
        known.digest,
        known.name,
        known.reason,
        purity,
        looks_up=only_looks_up(fn),
        fresh=fresh_dict(fn),
    )
