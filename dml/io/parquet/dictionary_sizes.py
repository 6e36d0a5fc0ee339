"""The decoded size of dictionary-encoded text is computed before the text is decoded."""

from __future__ import annotations

import pyarrow as pa

from dml.base.amounts import bytes_text
from dml.data.layouts import is_text_or_bytes
from dml.errors import MemoryContractError
from dml.kernels.arrow_ops import compute

# The divisor of a task's memory for the texts of an atom: decoding needs two copies.
ATOM_SHARE = 2
# Texts that take no more than this, if all were as long as the longest, are not summed exactly.
SMALL_BYTES = 4 << 20


def text_bytes(values: pa.DictionaryArray) -> int:
    """Return the decoded bytes of all texts in ``values``; up to 4 MiB, this is an upper bound."""
    lengths = compute().binary_length(values.dictionary)
    longest = compute().max(lengths).as_py() or 0
    if longest * len(values) <= SMALL_BYTES:
        return int(longest * len(values))
    return int(compute().sum(lengths.cast(pa.int64()).take(values.indices)).as_py() or 0)


def check_texts(batch: pa.RecordBatch, most_bytes: int, place: str) -> None:
    """Raise MemoryContractError if a column's decoded texts exceed half of ``most_bytes``."""
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if not (pa.types.is_dictionary(values.type) and is_text_or_bytes(values.type.value_type)):
            continue
        if (nbytes := text_bytes(values)) > most_bytes // ATOM_SHARE:
            raise MemoryContractError(
                f"the texts of column {name!r} do not fit into the memory number",
                at=place,
                why=f"they are stored as a dictionary, and {len(values)} rows of them take"
                f" {bytes_text(nbytes)}; an atom may have {bytes_text(most_bytes // ATOM_SHARE)}",
                try_="a smaller atom_rows= of the source, or a larger memory_limit=",
            )
