"""This file loads a library that only one source needs, or says how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from dml.errors import PlanError


def extra(module: str, door: str, name: str) -> Any:
    """The module; PlanError where it is not installed, which the extra ``name`` would change."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise PlanError(
            f"{door} needs the library {module}", why=str(error), try_=f'pip install "dml[{name}]"'
        ) from None
