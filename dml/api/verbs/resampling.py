"""The share of rows to keep of each class is computed here, for ``rejection_resample``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dml.errors import PlanError
from dml.expr.columns.column import Column, lit, random

VERB = "rejection_resample"


def shares_of(given: Any, what: str) -> dict[Any, float]:
    """Return shares by class, which sum to 1, from a dict by class, or a list by class number."""
    listed = dict(enumerate(given)) if isinstance(given, list | tuple) else given
    found = listed if isinstance(listed, Mapping) else {}
    real = all(isinstance(n, int | float) and not isinstance(n, bool) for n in found.values())
    if not real or not all(0 <= n < math.inf for n in found.values()) or not any(found.values()):
        raise PlanError(
            f"{VERB} with {what}={given!r}",
            why="each class has a share of at least 0, and one has some",
            try_=f"{what}=[0.5, 0.5] for the classes 0 and 1, or {what}={{'a': 0.5, 'b': 0.5}}",
        )
    whole = math.fsum(found.values())
    return {name: share / whole for name, share in found.items()}


def accepted(target: Mapping[Any, float], initial: Mapping[Any, float]) -> dict[Any, float]:
    """Return, by class, the largest shares to keep that change ``initial`` to ``target``."""
    absent = [name for name, share in target.items() if share and not initial.get(name)]
    if absent:
        raise PlanError(
            f"{VERB} cannot give the class {absent[0]!r} a share of {target[absent[0]]:g}",
            why="no row is in it",
            try_="a share of 0, or the class as the column has it",
        )
    ratios = {name: share / initial[name] for name, share in target.items() if share}
    most = max(ratios.values())
    return {name: ratio / most for name, ratio in ratios.items()}


def draw_mask(classes: Column, shares: Mapping[Any, float], seed: int | None) -> Column:
    """Return a boolean column: True where a random draw is below the share of the row's class."""
    draw = random(seed=seed)
    parts = [
        _is(classes, name) if share >= 1 else _is(classes, name) & (draw < share)
        for name, share in shares.items()
    ]
    while len(parts) > 1:  # a tree of logarithmic depth
        pairs = [parts[i] | parts[i + 1] for i in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[2 * len(pairs) :]
    return parts[0]


def _is(classes: Column, name: Any) -> Column:
    return classes.is_null() if name is None else classes == lit(name)
