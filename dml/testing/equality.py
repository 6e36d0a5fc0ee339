"""The results of two runs are compared here; the first difference is described in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dml.data.stream_hash import batch_bytes
from dml.errors import NullValueError
from dml.testing.executions import RunOutcome


def difference(got: RunOutcome, wanted: RunOutcome, *, optimized: bool) -> str:
    """Describe how ``got`` differs from the oracle's ``wanted``; empty if it does not.

    An ``optimized`` run may continue where the oracle raised an error, never the reverse. It may
    then raise NullValueError for a null that cannot be delivered, before any further element.
    """
    found = sequence_difference(got.elements, wanted.elements, got, wanted)
    if found:
        return found
    more = len(got.elements) > len(wanted.elements) or got.error in ("", NullValueError.__name__)
    if wanted.error and optimized and more:
        return ""
    if got.error != wanted.error:
        return f"error {got.error!r} ({got.text!r}) instead of {wanted.error!r} ({wanted.text!r})"
    if len(got.elements) != len(wanted.elements):
        return f"{len(got.elements)} elements instead of {len(wanted.elements)}"
    return ""


def sequence_difference(
    got: Sequence[Mapping[str, Any]],
    wanted: Sequence[Mapping[str, Any]],
    first: RunOutcome,
    second: RunOutcome,
) -> str:
    """Describe the first difference between two sequences: an element, or the length."""
    for number, (a, b) in enumerate(zip(got, wanted, strict=False)):
        found = element_difference(a, b)
        if found:
            return f"element {number}: {found}"
    if len(got) < len(wanted):
        return f"{len(got)} elements instead of {len(wanted)}, then {first.error!r} {first.text!r}"
    if len(got) > len(wanted) and not second.error:
        return f"{len(got)} elements instead of {len(wanted)}"
    return ""


def element_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Describe how two batches or rows differ: columns, their order, types, shapes, bits."""
    if list(a) != list(b):
        return f"columns {list(a)} instead of {list(b)}"
    if batch_bytes(a) == batch_bytes(b):
        return ""
    for name in a:
        if batch_bytes({name: a[name]}) != batch_bytes({name: b[name]}):
            return f"column {name!r}: {_shown(a[name])} instead of {_shown(b[name])}"
    return "bytes"


def _shown(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype}{list(values.shape)} {values.tolist()!r}"
    return f"{type(values).__name__} {values!r}"
