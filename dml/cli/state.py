"""This file keeps positions of a run on disk: JSON, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final

from dml.errors import DmlError, ResumeMismatchError

MAX_BYTES: Final = 64 << 20
"""A state is a few kilobytes; a file beyond this is something else, and is not read into memory."""


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Replace the file by ``state``; a crash leaves either the old state or the new one.

    Raises DmlError when the disk refuses, with the old state untouched.
    """
    try:
        _replace(path, json.dumps(state, allow_nan=False))
    except OSError as error:
        raise DmlError(
            "the position of the run could not be kept",
            at=str(path),
            why=str(error),
            try_="--checkpoint on a disk with room; the last position that was kept is still valid",
        ) from error


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def load_state(path: Path) -> dict[str, Any]:
    """The state in the file; ResumeMismatchError when it holds something else."""
    size = path.stat().st_size
    try:
        state = json.loads(path.read_text(encoding="utf-8")) if size <= MAX_BYTES else None
    except (ValueError, RecursionError) as error:
        raise _no_state(path, size, f"it is not JSON: {error}") from error
    if not isinstance(state, dict):
        raise _no_state(path, size, "it is not a JSON object")
    return state


def _no_state(path: Path, size: int, why: str) -> ResumeMismatchError:
    return ResumeMismatchError(
        f"{path.name} is not a saved position",
        at=f"{path}, {size} bytes",
        why=why,
        try_="pass a file that --checkpoint wrote, or json.dump(iterator.state_dict(), file)",
    )
