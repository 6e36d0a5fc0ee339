"""This file adds up what texts of a dictionary take, before any of them is made."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dml.errors import MemoryContractError
from dml.expr.amounts import bytes_text

# Of what a task may gather, the texts of an atom: they are held twice while they are decoded.
ATOM_SHARE = 2
# Texts that take no more than this, all as long as the longest, need not be added up.
SMALL_BYTES = 4 << 20


def text_bytes(values: pa.DictionaryArray) -> int:
    """Bytes of all texts that ``values`` stand for, or, of little, no less."""
    lengths = pc.binary_length(values.dictionary)
    longest = pc.max(lengths).as_py() or 0
    if longest * len(values) <= SMALL_BYTES:
        return int(longest * len(values))
    return int(pc.sum(lengths.cast(pa.int64()).take(values.indices)).as_py() or 0)


def check_texts(batch: pa.RecordBatch, most_bytes: int, place: str) -> None:
    """MemoryContractError for an atom whose encoded texts do not fit into ``most_bytes``."""
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if not (pa.types.is_dictionary(values.type) and _of_text(values.type.value_type)):
            continue
        if (nbytes := text_bytes(values)) > most_bytes // ATOM_SHARE:
            raise MemoryContractError(
                f"the texts of column {name!r} do not fit into the memory number",
                at=place,
                why=f"they are stored as a dictionary, and {len(values)} rows of them take"
                f" {bytes_text(nbytes)}; an atom may have {bytes_text(most_bytes // ATOM_SHARE)}",
                try_="a smaller atom_rows= of the source, or a larger memory_limit=",
            )


def _of_text(kind: pa.DataType) -> bool:
    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind)
    return bool(text or types.is_binary(kind) or types.is_large_binary(kind))
