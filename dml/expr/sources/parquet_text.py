"""This file decodes Parquet columns of text whose size nobody knows before they are decoded.

A dictionary of few long texts is stored once, and decoded as often as they come: a thousand times
what the footer says where the writer did not count (SizeStatistics of parquet.thrift). Such columns
are read as what they are, numbers of dictionary entries, which take little; the texts that an atom
would have are added up by these, before any is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from dml.expr.layouts import TEXTS, usual_type
from dml.expr.sources.encoded import SMALL_BYTES, check_texts
from dml.expr.sources.parquet_chunks import Chunk
from dml.expr.sources.parquet_footer import Group

# A chunk that stores more than this, and three bytes a value, has more in it than a dictionary and
# numbers of its entries: most writers end a dictionary with 1 MiB, and write text as it is then.
DICTIONARY_BYTES, NUMBER_BYTES = 4 << 20, 3
# What is one column of texts in a file.
SINGLE = (*TEXTS, pa.large_string(), pa.large_binary())


def unknown(group: Group, columns: Iterable[str]) -> dict[str, pa.DataType]:
    """Columns of text in ``group`` that may be far larger than its footer tells, with their types.

    Those inside of lists and structs are not among them.
    """
    kinds = {name: usual_type(group.file.arrow_schema.field(name).type) for name in columns}
    texts = {name: kind for name, kind in kinds.items() if kind in SINGLE}
    return {name: kind for name, kind in texts.items() if hides(group.chunks((name,))[0])}


def hides(chunk: Chunk) -> bool:
    """True if a chunk of texts may be a dictionary alone, and nobody counted what it stands for."""
    most = DICTIONARY_BYTES + NUMBER_BYTES * chunk.values
    large = chunk.values * chunk.uncompressed > SMALL_BYTES
    return chunk.has_dictionary and not chunk.text and large and chunk.uncompressed <= most


def decoded(
    batches: Iterable[pa.RecordBatch],
    columns: Mapping[str, pa.DataType],
    most_bytes: int,
    place: str,
) -> Iterator[pa.RecordBatch]:
    """The same rows with ``columns``, which are dictionaries, as texts of the types given.

    MemoryContractError for an atom at ``place`` whose texts do not fit into ``most_bytes``.
    """
    for batch in batches:
        check_texts(batch, most_bytes, place)
        for name, kind in columns.items():
            number = batch.schema.get_field_index(name)
            values = batch.column(number).cast(kind)
            batch = batch.set_column(number, name, values)  # noqa: PLW2901
        yield batch
