"""This file writes schemas as text that checkpoints and stores can hold."""

from __future__ import annotations

import base64
import functools
import zlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dml.expr.marks import Mark, noted, of_note
from dml.expr.schema import Schema


def schema_text(schema: Schema) -> str:
    """A settled schema as text: Arrow's own serialized form, packed."""
    fields = pa.schema([noted(name, kind) for name, kind in schema.items()])
    packed = zlib.compress(fields.serialize().to_pybytes(), 9)
    return base64.b64encode(packed).decode()


@functools.lru_cache(maxsize=256)  # every part of an entry says the same ones
def schema_of(stored: str) -> Schema:
    """The schema of a text."""
    whole = zlib.decompress(base64.b64decode(stored))
    fields = pa.ipc.read_schema(pa.py_buffer(whole))
    return Schema((field.name, of_note(field)) for field in fields)


def marks_text(schema: Schema) -> str:
    """The text of a schema that batches do not tell, as some columns are marked; else ""."""
    return schema_text(schema) if any(isinstance(kind, Mark) for kind in schema.values()) else ""


def marked(about: Mapping[str, Any]) -> Schema | None:
    """The schema of such a text, as what is said of a part has it."""
    text = about.get("marks")
    return schema_of(text) if text else None
