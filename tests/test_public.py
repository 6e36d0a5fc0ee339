"""Compare the public names and signatures with tests/public.txt, so that changes are seen.

After an intended change: ``pytest tests/test_public.py --update-plans``, then read the diff.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dml

TEXT = Path(__file__).with_name("public.txt")


def signature(thing: Any) -> str:
    """Parameters without annotations, which may be made more precise without a change of use."""
    found = inspect.signature(thing)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def members(name: str, kind: type) -> Iterator[str]:
    yield f"{name}{signature(kind)}"
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith("dml.")]
    for inner, value in sorted({k: v for base in ours for k, v in vars(base).items()}.items()):
        if inner.startswith("_") and inner != "__iter__":
            continue
        if isinstance(value, property):
            yield f"{name}.{inner}"
        elif callable(value):
            yield f"{name}.{inner}{signature(value)}"


def public() -> Iterator[str]:
    for name in sorted(dml.__all__):
        thing = getattr(dml, name)
        if inspect.isclass(thing):
            yield from members(f"dml.{name}", thing)
        elif callable(thing):
            yield f"dml.{name}{signature(thing)}"
        else:
            yield f"dml.{name}"
    for name, kind in sorted(vars(dml.errors).items()):
        if inspect.isclass(kind) and issubclass(kind, Exception):
            yield f"dml.errors.{name}({', '.join(base.__name__ for base in kind.__bases__)})"


def test_public_names_and_signatures(request: pytest.FixtureRequest) -> None:
    text = "\n".join(public()) + "\n"
    if request.config.getoption("--update-plans"):
        TEXT.write_text(text, encoding="utf-8")
    assert text == TEXT.read_text(encoding="utf-8")


def test_iterators_have_the_names_that_checkpoints_need() -> None:
    it = iter(dml.range(3))
    names = ("__next__", "state_dict", "load_state_dict", "close", "__enter__", "__exit__")
    assert all(callable(getattr(it, name)) for name in names)
