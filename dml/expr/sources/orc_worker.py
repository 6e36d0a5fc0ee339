"""This file is the process that decodes ORC: a damaged file ends nothing else.

python -m dml.expr.sources.orc_worker

A request is a line of JSON on its standard input; an answer is a line of JSON on its standard
output, and an Arrow stream unless the line says what is wrong. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import sys
import threading
from typing import IO, Any

import pyarrow as pa
from pyarrow import orc

from dml.expr.sources.orc_tail import tail_of

READY = b"ready\n"
# What a damaged file may say of itself: more memory is an error, more processor time the end.
MOST_BYTES, MOST_S = 8 << 30, 600


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
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
    """Hand on requests; end this process when its owner is gone, whatever it is at."""
    for line in lines:
        requests.put(line)
    os._exit(0)


def answer(request: dict[str, Any], answers: IO[bytes]) -> None:
    """Do what is asked, and say what came of it."""
    signal.setitimer(signal.ITIMER_PROF, MOST_S)  # whose signal ends the process
    try:
        said, rows = done(**request)
    except Exception as error:  # noqa: BLE001 - the owner is told, and decides
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
    """Some columns of a stripe; without one what the file's tail says, and no rows."""
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
    rows.validate(full=True)  # before it is sent: what is sent is copied from where it says
    return {}, pa.Table.from_batches([rows.replace_schema_metadata(None)])


def check_names(kind: pa.DataType) -> None:
    """UnicodeDecodeError for a name that is no text, at any depth."""
    for number in range(kind.num_fields):
        field = kind.field(number)
        if field.name is not None:
            check_names(field.type)


if __name__ == "__main__":
    main()
