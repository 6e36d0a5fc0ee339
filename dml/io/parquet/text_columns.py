"""Parquet text columns whose decoded size is unknown are decoded in two steps to bound memory.

A dictionary of few long texts is stored once but decoded for every occurrence: a thousand times the
size in the footer if the writer recorded none (SizeStatistics of parquet.thrift). Such columns are
read as dictionary indices, which are small; the size of the texts of an atom is computed from the
indices before any text is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from dml.data.layouts import TEXTS, usual_type
from dml.io.parquet.chunk_metadata import ColumnChunk
from dml.io.parquet.dictionary_sizes import SMALL_BYTES, check_texts
from dml.io.parquet.footer import RowGroup

# A chunk that stores more than this, plus three bytes a value, contains more than a dictionary and
# indices: most writers stop a dictionary at 1 MiB, and write plain text after it.
DICTIONARY_BYTES, NUMBER_BYTES = 4 << 20, 3
# Types of a top-level text column in a file.
SINGLE = (*TEXTS, pa.large_string(), pa.large_binary())


def unknown(group: RowGroup, columns: Iterable[str]) -> dict[str, pa.DataType]:
    """Return the text columns of ``group`` that may far exceed their footer sizes, with types.

    Text columns inside lists and structs are not included.
    """
    kinds = {name: usual_type(group.file.arrow_schema.field(name).type) for name in columns}
    texts = {name: kind for name, kind in kinds.items() if kind in SINGLE}
    return {name: kind for name, kind in texts.items() if hides(group.chunks((name,))[0])}


def hides(chunk: ColumnChunk) -> bool:
    """True if a chunk of texts may be a dictionary only, with no decoded size recorded."""
    most = DICTIONARY_BYTES + NUMBER_BYTES * chunk.values
    large = chunk.values * chunk.uncompressed > SMALL_BYTES
    return chunk.has_dictionary and not chunk.text and large and chunk.uncompressed <= most


def decoded(
    batches: Iterable[pa.RecordBatch],
    columns: Mapping[str, pa.DataType],
    most_bytes: int,
    place: str,
) -> Iterator[pa.RecordBatch]:
    """Decode the dictionary columns ``columns`` to texts of the given types; rows stay unchanged.

    MemoryContractError for an atom at ``place`` whose texts do not fit into ``most_bytes``.
    """
    for batch in batches:
        check_texts(batch, most_bytes, place)
        for name, kind in columns.items():
            number = batch.schema.get_field_index(name)
            values = batch.column(number).cast(kind)
            batch = batch.set_column(number, name, values)  # noqa: PLW2901
        yield batch
