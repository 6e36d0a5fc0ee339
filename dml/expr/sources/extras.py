"""This file loads libraries that one source needs, and words what they say without secrets."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from typing import Any

from dml.errors import PlanError, SourceError
from dml.expr.sources.paths import plain
from dml.expr.sources.store_errors import scrubbed, secrets_in

# What libraries in Rust add to their errors: colours, and the frames of a stack.
COLOURS, FRAMES = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"\n\s*0: ")
# User and password of a URL, and its query.
USER, QUERY = (
    re.compile(r"(\w+://)[^/\s@]+:[^/\s@]*@"),
    re.compile(r"(\w+://[^\s?'\"]*)\?[^\s'\"]*"),
)


def extra(module: str, door: str, name: str) -> Any:
    """The module; PlanError where it is not installed, which the extra ``name`` would change."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PlanError(
            f"{door} needs the library {module}", why=str(error), try_=f'pip install "dml[{name}]"'
        ) from None


def located(path: object) -> str:
    """Where a table is, also for other processes: a URL, or a whole path; SourceError if neither.

    What the URL of a store carries stays in it, and is not to be shown: see ``spoken``.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise SourceError(
            f"{path!r} is not a path",
            why=f"it is of type {type(path).__name__}",
            try_="a folder, or a URL such as 's3://bucket/folder'",
        )
    here = str(plain(name))
    return here if "://" in here else os.path.abspath(here)


def spoken(text: object, options: Mapping[str, Any] | None = None) -> str:
    """What a library says, or a URL, in one line, without what opens the store."""
    words = FRAMES.split(COLOURS.sub("", str(text)), maxsplit=1)[0]
    return scrubbed(QUERY.sub(r"\1", USER.sub(r"\1", words)), secrets_in(options or {}))
