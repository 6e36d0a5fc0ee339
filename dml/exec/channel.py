"""This file carries messages between a process and its workers on one host.

Small things go through a Unix socket; the large buffers of a message lie in one nameless file in
memory, whose descriptor travels with it, and which the receiver maps. Nothing has a name on disk,
so nothing is left behind by whoever is killed (docs/decisions/006-nameless-files.md).
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

HEAD = struct.Struct("<QQ")  # bytes of the pickle, bytes in the file
SMALL = 1 << 15  # buffers that together are no larger stay in the pickle
ALIGNED = 64


class Message:
    """An object ready to be sent, any number of times; ``close`` lets go of its file."""

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        self.file, self.size, places = -1, 0, list[tuple[int, int]]()
        if sum(view.nbytes for view in views) <= SMALL:
            body = pickle.dumps(value, protocol=5)
        else:
            self.file, self.size, places = _filled(views)
        self.body = pickle.dumps((places, body))

    def close(self) -> None:
        """Let go of the file; who received it still has it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _filled(views: Sequence[memoryview]) -> tuple[int, int, list[tuple[int, int]]]:
    """A nameless file with all ``views``, its size, and where each one lies."""
    file, at, places = _nameless(), 0, []
    try:
        for view in views:
            places.append((at, view.nbytes))
            _write(file, view, at)
            at += -(-view.nbytes // ALIGNED) * ALIGNED
        os.ftruncate(file, at)
    except BaseException:
        os.close(file)
        raise
    return file, at, places


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dml", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(file: int, view: memoryview, at: int) -> None:
    while view.nbytes:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done


class Channel:
    """One end of a connection: one sender and one receiver at a time."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, value: Any) -> None:
        """Send one object; OSError if nobody is there any more."""
        message = Message(value)
        try:
            self.post(message)
        finally:
            message.close()

    def post(self, message: Message) -> None:
        """Send what is ready to be sent."""
        head = HEAD.pack(len(message.body), message.size)
        socket.send_fds(self.socket, [head], [message.file] if message.size else [])
        self.socket.sendall(message.body)

    def receive(self) -> Any:
        """The next object, its large buffers mapped; EOFError when the other end is gone."""
        head, files, _, _ = socket.recv_fds(self.socket, HEAD.size, 1)
        try:
            head += self._exactly(HEAD.size - len(head)) if head else b""
            if not head:
                raise EOFError
            length, size = HEAD.unpack(head)
            places, body = pickle.loads(self._exactly(length))  # noqa: S301 (one's own worker)
            return pickle.loads(body, buffers=_mapped(files, size, places))  # noqa: S301
        finally:
            for file in files:
                os.close(file)

    def _exactly(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        found = bytearray(count)
        view = memoryview(found)
        while view.nbytes:
            done = self.socket.recv_into(view)
            if not done:
                raise EOFError
            view = view[done:]
        return bytes(found)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def _mapped(
    files: Sequence[int], size: int, places: Sequence[tuple[int, int]]
) -> list[pa.Buffer] | None:
    if not size:
        return None
    whole = pa.py_buffer(mmap.mmap(files[0], size, prot=mmap.PROT_READ))
    return [whole.slice(at, length) for at, length in places]
