"""Optional libraries are imported here on demand, and their error texts are stripped of secrets."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from typing import Any

from dml.errors import PlanError, SourceError
from dml.io.files.paths import plain
from dml.io.stores.store_errors import scrubbed, secrets_in

# Additions of Rust libraries to error texts: colours, and stack frames.
COLOURS, FRAMES = re.compile(r"\x1b\[[0-9;]*m"), re.compile(r"\n\s*0: ")
# User and password of a URL, and its query.
USER = re.compile(r"(\w+://)[^/\s@]+:[^/\s@]*@")
QUERY = re.compile(r"(\w+://[^\s?'\"]*)\?[^\s'\"]*")


def extra(module: str, door: str, name: str) -> Any:
    """Import and return the optional module ``module``, required by the public function ``door``.

    If the module is not installed, raise PlanError with the command that installs dml[``name``].
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PlanError(
            f"{door} needs the library {module}", why=str(error), try_=f'pip install "dml[{name}]"'
        ) from None


def located(path: object) -> str:
    """Return the location of a table as a URL or an absolute path, valid in every process.

    Raise SourceError unless ``path`` is a path. The result may contain secrets, as part of a URL,
    and must not be displayed: see ``spoken``.
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
    """Return an error text or a URL as one line without credentials or secrets of ``options``."""
    words = FRAMES.split(COLOURS.sub("", str(text)), maxsplit=1)[0]
    return scrubbed(QUERY.sub(r"\1", USER.sub(r"\1", words)), secrets_in(options or {}))
