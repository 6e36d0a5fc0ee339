"""Add a checksum to saved states, and refuse states that do not fit the loading pipeline.

Anyone can compute the checksum, so a state may contain anything. Errors that the state alone shows
are raised when it is loaded. Other errors are raised before the first element, by the operator that
should resume at a position that does not exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import xxhash

from dml.errors import DmlError, FingerprintError, InternalError, ResumeMismatchError

MOST = 1 << 63
# Errors of the system, which are never attributed to a state.
SYSTEM = (MemoryError, OSError)
# Parts of a position that come from users, and may be any JSON data.
ANYTHING = frozenset({"state", "schemas"})
# Keys that count from zero; other numbers may be negative.
COUNTED = frozenset(
    {"unit", "atom", "drop", "row", "at", "before", "given", "left", "pass", "since", "window"}
)


# Values that must be equal where a state is restored, and their names in errors.
SAME = {
    "version": "version of dml's states",
    "fingerprint": "pipeline",
    "seed": "seed",
    "data": "data",
    "process": "process",
}


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """Return ``state`` with a checksum over its other entries under "check"."""
    rest = {key: value for key, value in state.items() if key != "check"}
    text = json.dumps(rest, sort_keys=True, default=repr)
    return {**rest, "check": xxhash.xxh3_64_hexdigest(text.encode())}


def check(state: Any, mine: dict[str, Any], process: str, at: str) -> None:
    """Raise an error for a damaged state, or one of another pipeline or data than state ``mine``.

    If a function of the pipeline has no name that is valid in other processes, ``process`` names
    this process, and the state must come from it; else it is "". ``at`` is the place for errors.
    """
    if not isinstance(state, dict) or set(mine) - set(state):
        raise ResumeMismatchError(
            "this is not a saved state",
            at=at,
            why=f"it is a {type(state).__name__} without the keys of one",
            try_="pass what it.state_dict() returned",
        )
    if state["process"] != process and process:
        raise FingerprintError(
            "a function of this pipeline has no name that another process could check",
            at=at,
            why="the state was saved in another process",
            try_='give the function a name: fingerprint="..."',
        )
    for key, what in SAME.items():
        if state[key] != mine[key]:
            raise ResumeMismatchError(
                f"the saved state belongs to another {what}",
                at=at,
                why=f"saved with {state[key]!r}, this is {mine[key]!r}",
                try_="restore into the pipeline that was saved, or start anew",
            )
    if state["check"] != sealed(state)["check"]:
        why = "its contents do not give the check sum that was saved with them"
        raise mismatch("the saved state is damaged", why).under(at)
    refuse(state)


def mismatch(what: str, why: str) -> ResumeMismatchError:
    """Return the error for a state that was changed after it was saved."""
    return ResumeMismatchError(
        what, why=why, try_="restore an older state; states are not meant to be edited"
    )


def refuse(state: dict[str, Any]) -> None:
    """Raise ResumeMismatchError for a state whose values no run can have saved."""
    wrong = next(_wrong(state), None)
    if wrong is not None:
        raise mismatch("the saved state names no place in the pipeline", wrong)


def _wrong(state: dict[str, Any]) -> Iterator[str]:
    epoch, over, schemas = state["epoch"], state["over"], state["schemas"]
    if type(epoch) is not int or not 0 <= epoch < MOST:
        yield f"its epoch is {epoch!r}"
    if not isinstance(over, bool):
        yield f"its end is {over!r}"
    if not isinstance(schemas, dict) or not all(isinstance(s, str) for s in schemas.values()):
        yield "its schemas are none"
    if not isinstance(state["position"], dict | None):
        yield f"its position is {state['position']!r}"
    yield from _odd(state["position"])


def _odd(found: Any, key: str = "") -> Iterator[str]:
    """Yield a text for each invalid number in ``found``, an entry ``key`` of a position."""
    if isinstance(found, dict):
        for name, each in found.items():
            if name not in ANYTHING:
                yield from _odd(each, name)
    elif isinstance(found, list):
        for each in found:
            yield from _odd(each)
    elif isinstance(found, float) or (key in COUNTED and isinstance(found, int) and found < 0):
        yield f"{found!r} stands in its position"


def unreached(rows: int) -> ResumeMismatchError:
    """Return the error for a position that needs ``rows`` more rows than the run has."""
    return mismatch(
        "the saved state names a row that is not there",
        f"{rows} rows were to be passed where there are no more",
    )


def blamed(error: BaseException) -> BaseException:
    """Return the error to raise for ``error``, raised before the first element of a resumed run.

    A position that does not exist can make any operator fail: an unexpected exception becomes a
    ResumeMismatchError. Errors of users, of data and of the system are returned unchanged.
    """
    ours = isinstance(error, InternalError) or not isinstance(error, DmlError)
    if not ours or not isinstance(error, Exception):
        return error
    if isinstance(error, SYSTEM) or isinstance(error.__cause__, SYSTEM):
        return error
    found = mismatch(
        "the saved state names no place in the pipeline", f"{type(error).__name__}: {error}"
    )
    found.__cause__ = error
    return found
