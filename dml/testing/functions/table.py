"""The oracle looks up functions of columns by name in ``MEANINGS``."""

from __future__ import annotations

from dml.testing.functions import (
    audio,
    boxes,
    element_expressions,
    encoders,
    formats,
    images,
    lists,
    moments,
    python,
    strings,
    structs,
    tensors,
    tokens,
    video,
)
from dml.testing.functions.meaning import FunctionMeaning

MEANINGS: dict[str, FunctionMeaning] = {
    meaning.name: meaning
    for family in (
        *(
            strings,
            lists,
            moments,
            structs,
            encoders,
            tokens,
            tensors,
            element_expressions,
            formats,
        ),
        python,
        images,
        boxes,
        audio,
        video,
    )
    for meaning in family.MEANINGS
}
