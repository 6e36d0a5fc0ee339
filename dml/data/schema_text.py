"""Schemas are serialized as text for checkpoints and cache stores."""

from __future__ import annotations

import base64
import functools
import zlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dml.data.list_marks import Mark, noted, of_note
from dml.data.schema import Schema


def schema_text(schema: Schema) -> str:
    """Serialize a known schema as text: Arrow's own serialized form, compressed, in base64."""
    fields = pa.schema([noted(name, kind) for name, kind in schema.items()])
    packed = zlib.compress(fields.serialize().to_pybytes(), 9)
    return base64.b64encode(packed).decode()


@functools.lru_cache(maxsize=256)  # all parts of a cache entry have the same text
def schema_of(stored: str) -> Schema:
    """Parse the schema of a text made by ``schema_text``."""
    whole = zlib.decompress(base64.b64decode(stored))
    fields = pa.ipc.read_schema(pa.py_buffer(whole))
    return Schema((field.name, of_note(field)) for field in fields)


def marks_text(schema: Schema) -> str:
    """Return ``schema_text`` of a schema with marks (``list_marks``), or "" for one without.

    Record batches do not contain marks, so this text is stored in addition.
    """
    return schema_text(schema) if any(isinstance(kind, Mark) for kind in schema.values()) else ""


def marked(about: Mapping[str, Any]) -> Schema | None:
    """Return the schema under "marks" in a part's description ``about``; None without marks."""
    text = about.get("marks")
    return schema_of(text) if text else None
