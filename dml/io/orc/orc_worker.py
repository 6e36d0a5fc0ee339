"""The worker process that decodes ORC, so that a damaged file terminates no other process.

python -m dml.io.orc.orc_worker

A request is a line of JSON on standard input; the answer is a line of JSON on standard output, then
an Arrow stream unless the line reports an error. The process ends at the end of its input.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import sys
import threading
from collections import defaultdict
from typing import IO, Any, NamedTuple

import pyarrow as pa
from pyarrow import orc

from dml.data.layouts import check_names
from dml.io.tfrecord.examples import NUMBER, fields, varint

# Numbers of fields in ORC's messages, and of its kinds of columns.
FOOTER, STRIPES, TYPES, COUNT, STATISTICS = 2, 3, 4, 6, 7
STRIPE_ROWS, KIND, VALUES, STRINGS, BYTES, LENGTH = 5, 1, 1, 4, 8, 3
TOTAL = 1  # bytes of a binary column; of a text column they are LENGTH
TEXTS, BINARY = (7, 16, 17), 8
# Bytes of a value by kind: boolean, whole numbers, floats, text, binary, moment, list, map, struct,
# union, decimal, date, two more kinds of text, moment of a time zone.
WIDTHS = (1, 1, 2, 4, 8, 4, 8, 4, 4, 8, 4, 4, 0, 5, 16, 4, 4, 4, 8)
# Estimated decoded bytes per stored byte of a file without statistics: usually fewer.
UNPACKED = 8


Message = defaultdict[int, list[int | bytes]]


class Tail(NamedTuple):
    """Row count of every stripe, and decoded bytes of all stripes together."""

    rows: list[int]
    nbytes: int


def tail_of(data: bytes, stored: int) -> Tail:
    """Parse the tail of a file of ``stored`` bytes; raise ValueError if it is invalid."""
    footer = message(_inner(message(data), FOOTER))
    rows = [_number(message(each), STRIPE_ROWS) for each in footer[STRIPES]]
    whole = _number(footer, COUNT)
    if sum(rows) != whole:
        raise ValueError(f"its stripes have {sum(rows)} rows, and it says that it has {whole}")
    kinds = [_number(message(each), KIND) for each in footer[TYPES]]
    known = [message(each) for each in footer[STATISTICS]]
    widths = [WIDTHS[kind] for kind in kinds if kind < len(WIDTHS)]
    if len(known) < len(kinds) or len(widths) < len(kinds):
        return Tail(rows, sum(widths) * whole + UNPACKED * stored)
    pairs = zip(kinds, widths, known, strict=False)
    return Tail(rows, sum(_column_bytes(*each, whole) for each in pairs))


def _column_bytes(kind: int, width: int, known: Message, rows: int) -> int:
    """Estimate the decoded bytes of a column from statistics ``known``; nulls occupy space too."""
    fixed = width * max(rows, _number(known, VALUES))
    if kind in TEXTS:
        return fixed + _signed(_number(message(_inner(known, STRINGS)), LENGTH))
    if kind == BINARY:
        return fixed + _signed(_number(message(_inner(known, BYTES)), TOTAL))
    return fixed


def _signed(number: int) -> int:
    """Decode a zigzag number; negative values, which cannot occur here, become 0."""
    return 0 if number & 1 else number >> 1


def message(data: int | bytes) -> Message:
    """Return the values of each field of a protobuf message; raise ValueError if it is invalid."""
    if isinstance(data, int):
        raise ValueError("a message is a number")
    found: Message = defaultdict(list)
    for number, wire, start, stop in fields(data, 0, len(data)):
        found[number].append(varint(data, start, stop)[0] if wire == NUMBER else data[start:stop])
    return found


def _inner(found: Message, number: int) -> int | bytes:
    """Return the message in the field with ``number``; empty if the field is absent."""
    return next(iter(found[number]), b"")


def _number(found: Message, number: int) -> int:
    """Return the integer in the field with ``number``; 0 if the field is absent."""
    return next((value for value in found[number] if isinstance(value, int)), 0)


READY = b"ready\n"
# Limits against damaged files: beyond these bytes allocation fails, beyond this CPU time the
# process ends.
MOST_BYTES, MOST_S = 8 << 30, 600


def main() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that output of libraries does not mix with answers
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = MOST_BYTES if most == resource.RLIM_INFINITY else min(most, MOST_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (soft, most))
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    answers.write(READY)
    answers.flush()
    while True:
        answer(json.loads(requests.get()), answers)


def listen(lines: IO[bytes], requests: queue.SimpleQueue[bytes]) -> None:
    """Queue requests; terminate this process as soon as its parent closes the input."""
    for line in lines:
        requests.put(line)
    os._exit(0)


def answer(request: dict[str, Any], answers: IO[bytes]) -> None:
    """Process a request, and write the result or the error to ``answers``."""
    signal.setitimer(signal.ITIMER_PROF, MOST_S)  # its signal ends the process
    try:
        said, rows = done(**request)
    except Exception as error:  # noqa: BLE001 - reported to the parent process, which decides
        text = " ".join(str(error).split()) or type(error).__name__
        answers.write(json.dumps({"error": text}).encode() + b"\n")
    else:
        answers.write(json.dumps(said).encode() + b"\n")
        with pa.ipc.new_stream(answers, rows.schema) as writer:
            writer.write_table(rows)
    answers.flush()
    signal.setitimer(signal.ITIMER_PROF, 0)
    pa.default_memory_pool().release_unused()


def done(
    path: str, stripe: int | None = None, columns: list[str] | None = None
) -> tuple[dict[str, Any], pa.Table]:
    """Read columns of a stripe; without a stripe, the metadata in the file's tail and no rows."""
    file = orc.ORCFile(path)
    if stripe is None or columns is None:
        tail = tail_of(file.reader.serialized_file_tail(), os.path.getsize(path))
        schema = file.schema.remove_metadata()
        check_names(pa.struct(list(schema)))
        # not as an empty table: to make that, pyarrow loads pandas
        return tail._asdict(), pa.Table.from_batches([], schema)
    # a dot in a name means a field of a struct to the library, so that all columns are read
    dotted = any("." in name for name in file.schema.names)
    rows = file.read_stripe(stripe, None if dotted else columns).select(columns)
    rows.validate(full=True)  # before sending, which copies from the offsets in the data
    return {}, pa.Table.from_batches([rows.replace_schema_metadata(None)])


if __name__ == "__main__":
    main()
