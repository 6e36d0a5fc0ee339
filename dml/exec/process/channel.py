"""A channel carries messages between a process and its workers on one host.

Small data goes through a Unix socket. The large buffers of a message lie in one nameless file in
memory, whose descriptor travels with the message; the receiver maps the file. Nothing has a name on
disk, so a killed process leaves nothing behind (docs/decisions/007-nameless-files.md).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pickle
import select
import socket
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from dml.data.buffer_ownership import lent
from dml.errors import MemoryContractError
from dml.exec.process.memory_map import mapping

HEAD = struct.Struct("<QQQ")  # bytes of the pickle, number of buffers, bytes in the file
# Errors of a file that must not grow: a limit of the process or of the system.
FULL = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT)
PLACE = struct.Struct("<QQ")  # where a buffer begins in the file, and its bytes
NUMBER = struct.Struct("<q")
SMALL = 1 << 15  # buffers that together are no larger stay in the pickle
ALIGNED = 64
LARGE = 1 << 20  # buffers of at least so many bytes begin at a page, to be mapped alone

Fill = Callable[[Any], None]
"""Writes data into an open Arrow stream."""


class Sheet:
    """A nameless file in memory, written from start to end; the first write creates it.

    The file is released by ``close`` or with this object; a receiver keeps the data. ``make``
    creates the file and returns its descriptor; None creates one that cannot be sealed.
    """

    def __init__(self, make: Callable[[], int] | None = None) -> None:
        self.file, self.size = -1, 0
        self._make = make or _nameless
        self._kept: dict[int, tuple[Any, int]] = {}  # by address, unique while the buffers live
        self._close: Callable[[], object] = lambda: None  # until a file is opened

    def keep(self, fill: Fill) -> Any:
        """Let ``fill`` write into the file, and return the data as a buffer over the file."""
        file = self._opened()
        with _roomy(), pa.OSFile(_path(file), "ab") as sink:
            fill(sink)
            length = sink.tell() - self.size
            sink.write(bytes(-length % ALIGNED))
            start, self.size = self.size, sink.tell()
        buffer = mapped(file, lends=False).slice(start, length)  # the file grows
        self._kept[buffer.address] = buffer, start
        return buffer

    def place(self, view: memoryview) -> tuple[int, int]:
        """Return offset and size of ``view`` in the file; copy it there unless it is there."""
        if self._kept and view.nbytes:
            buffer, start = self._kept.get(pa.py_buffer(view).address, (b"", 0))
            if len(buffer) == view.nbytes:
                return start, view.nbytes
        file = self._opened()
        if view.nbytes >= LARGE:
            self.size = -(-self.size // mmap.PAGESIZE) * mmap.PAGESIZE
        start = self.size
        rest = view
        with _roomy():
            while rest.nbytes:
                done = os.pwrite(file, rest, start + view.nbytes - rest.nbytes)
                rest = rest[done:]
            self.size += -(-view.nbytes // ALIGNED) * ALIGNED
            os.ftruncate(file, self.size)
        return start, view.nbytes

    def close(self) -> None:
        """Release the file; receivers of its descriptor keep the data."""
        self._close()

    def _opened(self) -> int:
        if self.file < 0:
            self.file = self._make()
            self._close = weakref.finalize(self, os.close, self.file)
        return self.file


@contextmanager
def _roomy() -> Iterator[None]:
    """Raise MemoryContractError if a write in the ``with`` block finds the file or system full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise MemoryContractError(
            "there is no room for what another process is to read",
            why=f"it lies in a file without a name: {error}",
            try_="a higher limit on the size of files (ulimit -f), or executor='threads'",
        ) from error


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dml", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _path(file: int) -> str:
    return f"/dev/fd/{file}"


def mapped(file: int, *, lends: bool = True) -> Any:
    """Return all of ``file`` as a read-only buffer; the descriptor may be closed afterwards.

    With ``lends``, a second, private mapping of a large file is registered (``buffer_ownership``),
    from which each byte may be given once to a user who writes in it.
    """
    size = os.fstat(file).st_size
    if size < LARGE or not lends:
        with pa.memory_map(_path(file)) as whole:
            return whole.read_buffer()
    memory = mapping(file, 0, size, writable=False)  # a shared one would hinder seals of the file
    with suppress(OSError):  # no more mappings are left to this process
        lent(ctypes.addressof(memory), own(file, 0, size))
    return pa.py_buffer(memoryview(memory).cast("B").toreadonly())


def own(file: int, start: int, size: int) -> memoryview:
    """Return ``size`` bytes of ``file`` from ``start`` on as a private writable buffer.

    Large buffers are mapped: a page is copied when it is first written to. Unlike a map of Python's
    ``mmap``, the buffer keeps no descriptor open. Small buffers are copied, so that keeping them
    costs little.
    """
    if size < LARGE or start % mmap.PAGESIZE:
        return _copied(file, start, size)
    return memoryview(mapping(file, start, size)).cast("B")


def _copied(file: int, start: int, size: int) -> memoryview:
    found = memoryview(bytearray(size))
    rest = found
    while rest.nbytes:
        done = os.preadv(file, [rest], start + size - rest.nbytes)
        if not done:
            raise OSError("a message is shorter than it says")
        rest = rest[done:]
    return found


class Message:
    """An object ready to be sent, any number of times; ``close`` releases its large buffers.

    Some buffers may already lie in ``sheet``. Creation raises the errors of pickling ``value``.
    """

    def __init__(self, value: Any, sheet: Sheet | None = None) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self.body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        self.sheet = sheet or Sheet()
        self.places = b""
        views = [buffer.raw() for buffer in buffers]
        if sum(view.nbytes for view in views) > SMALL:
            self.places = b"".join(PLACE.pack(*self.sheet.place(view)) for view in views)
        elif views:
            self.body = pickle.dumps(value, protocol=5)

    def close(self) -> None:
        """Release the file of the large buffers; receivers keep the data."""
        self.sheet.close()


class Channel:
    """One end of a connection, for one sender and one receiver at a time.

    With ``writable``, the receiver may write in received buffers, which are private to it.
    """

    def __init__(self, end: socket.socket, *, writable: bool = False) -> None:
        self.socket, self.writable = end, writable
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, value: Any, sheet: Sheet | None = None) -> None:
        """Send one object; raise OSError if the other end is gone.

        Some of its buffers may already lie in the file ``sheet``, which is closed afterwards.
        """
        message = Message(value, sheet)
        try:
            self.post(message)
        finally:
            message.close()

    def post(self, message: Message) -> None:
        """Send a prepared message; raise OSError if the other end is gone."""
        count = len(message.places) // PLACE.size
        head = HEAD.pack(len(message.body), count, message.sheet.size if count else 0)
        socket.send_fds(self.socket, [head], [message.sheet.file] if count else [])
        if count:
            self.socket.sendall(message.places)
        self.socket.sendall(message.body)

    def heard(self, seconds: float) -> bool:
        """Return whether data has arrived or the other end is gone; wait up to ``seconds`` for it.

        A negative number waits without limit. Raise OSError if this end is closed.
        """
        if self.socket.fileno() < 0:
            raise OSError(errno.EBADF, "the connection is closed")
        return bool(self._poll.poll(seconds * 1000))

    def receive(self, wait: Callable[[], object] | None = None) -> Any:
        """Return the next object, large buffers mapped; raise EOFError if the peer has closed.

        Call ``wait`` before each further part: a peer may be suspended after it has sent a part.
        """
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        head, files, _, _ = socket.recv_fds(self.socket, HEAD.size, 1, flags)
        try:
            if not head:
                raise EOFError
            head += exactly(self.socket, HEAD.size - len(head), wait)
            length, count, size = HEAD.unpack(head)
            places = exactly(self.socket, count * PLACE.size, wait)
            body = exactly(self.socket, length, wait)
            buffers = _buffers(files, size, places, self.writable) if count else None
        finally:
            for file in files:
                os.close(file)
        return pickle.loads(body, buffers=buffers)  # noqa: S301 (one's own worker, or parent)

    def close(self) -> None:
        """Close the connection."""
        with suppress(KeyError, ValueError):  # the descriptor's number may be reused from now on
            self._poll.unregister(self.socket)
        self.socket.close()


def exactly(end: socket.socket, count: int, wait: Callable[[], object] | None = None) -> bytearray:
    """Receive the next ``count`` bytes, each part after ``wait``; raise EOFError at the end."""
    found = bytearray(count)
    view = memoryview(found)
    while view.nbytes:
        if wait is not None:
            wait()
        done = end.recv_into(view)
        if not done:
            raise EOFError
        view = view[done:]
    return found


def _buffers(files: Sequence[int], size: int, places: bytearray, writable: bool) -> list[Any]:  # noqa: FBT001
    """Return the buffers at ``places`` in the message's file, which must have ``size`` bytes."""
    if not files:
        raise OSError("a message came without its file: this process has too many files open")
    there = os.fstat(files[0]).st_size
    if there < size:
        raise OSError(f"a message came with {there} of its {size} bytes")
    if writable:
        return [own(files[0], start, length) for start, length in PLACE.iter_unpack(places)]
    whole = mapped(files[0])
    return [whole[start : start + length] for start, length in PLACE.iter_unpack(places)]


class MemoryNote:
    """A number in shared memory that a process leaves for another one, even if it is killed.

    ``file`` is the descriptor of an existing note; None creates a note with the number -1.
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = _nameless() if file is None else file
        if file is None:
            os.ftruncate(self.file, NUMBER.size)
        self._memory = mmap.mmap(self.file, NUMBER.size)
        if file is None:
            self.write(-1)

    def write(self, number: int) -> None:
        """Write ``number``, which takes 0.2 microseconds."""
        NUMBER.pack_into(self._memory, 0, number)

    def read(self) -> int:
        """Return the number written last."""
        return int(NUMBER.unpack_from(self._memory)[0])

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        if not self._memory.closed:
            self._memory.close()
            os.close(self.file)
