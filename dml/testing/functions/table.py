"""This file is the oracle's table of functions, by name."""

from __future__ import annotations

from dml.testing.functions import (
    encoders,
    evaluated,
    formats,
    lists,
    moments,
    python,
    strings,
    structs,
    tensors,
    tokens,
)
from dml.testing.functions.meaning import Meaning

MEANINGS: dict[str, Meaning] = {
    meaning.name: meaning
    for family in (
        *(strings, lists, moments, structs, encoders, tokens, tensors, evaluated, formats),
        python,
    )
    for meaning in family.MEANINGS
}
