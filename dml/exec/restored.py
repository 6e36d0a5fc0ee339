"""This file refuses saved states that name no place of the pipeline into which they are loaded.

A state has a check sum, but that is no secret: what it says may be anything. What can be told from
the state alone is refused when it is loaded, the rest by whoever goes on from a place and finds
that it is not there, before the first element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dml.errors import DmlError, InternalError, ResumeMismatchError

MOST = 1 << 63
# What the system says, wherever a state leads to.
SYSTEM = (MemoryError, OSError)
# Parts of a position that users have made, and that may be any JSON data.
ANYTHING = frozenset({"state", "schemas"})
# What is counted from a beginning; other numbers may be below zero.
COUNTED = frozenset(
    {"unit", "atom", "drop", "row", "at", "before", "given", "left", "pass", "since", "window"}
)


def mismatch(what: str, why: str) -> ResumeMismatchError:
    """The error for a state that was changed after it was saved."""
    return ResumeMismatchError(
        what, why=why, try_="restore an older state; states are not meant to be edited"
    )


def refuse(state: dict[str, Any]) -> None:
    """ResumeMismatchError for what no run has ever saved, by itself."""
    wrong = next(_wrong(state), None)
    if wrong is not None:
        raise mismatch("the saved state names no place in the pipeline", wrong)


def _wrong(state: dict[str, Any]) -> Iterator[str]:
    epoch, over, schemas = state["epoch"], state["over"], state["schemas"]
    if not _is_count(epoch) or epoch >= MOST:
        yield f"its epoch is {epoch!r}"
    if not isinstance(over, bool):
        yield f"its end is {over!r}"
    if not isinstance(schemas, dict) or not all(isinstance(s, str) for s in schemas.values()):
        yield "its schemas are none"
    if not isinstance(state["position"], dict | None):
        yield f"its position is {state['position']!r}"
    yield from _odd(state["position"])


def _odd(found: Any, key: str = "") -> Iterator[str]:
    """What stands in a position, and is no number, or not one for its ``key``."""
    if isinstance(found, dict):
        for name, each in found.items():
            if name not in ANYTHING:
                yield from _odd(each, name)
    elif isinstance(found, list):
        for each in found:
            yield from _odd(each)
    elif isinstance(found, float) or (key in COUNTED and _below(found)):
        yield f"{found!r} stands in its position"


def _below(found: Any) -> bool:
    return isinstance(found, int) and found < 0


def _is_count(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


def unreached(rows: int) -> ResumeMismatchError:
    """The error of who was to pass so many more rows than there are."""
    return mismatch(
        "the saved state names a row that is not there",
        f"{rows} rows were to be passed where there are no more",
    )


def blamed(error: BaseException) -> BaseException:
    """What went wrong before the first element after a state was loaded.

    A place that nothing has can fail anywhere below; errors of users, of data and of the system
    stay as they are.
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
