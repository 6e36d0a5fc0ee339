"""Connect the processes of a split: authenticate them, and transfer batches.

Both ends prove that they know the job's secret (the HMAC challenge of ``multiprocessing``) before
anything is unpickled. The traffic is not encrypted.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from dml.exec.process.channel import exactly

# Smaller buffers are part of the message; larger ones are received in place.
SMALL = 1 << 13
HANDSHAKE_S = 10.0
# A host that vanished is noticed within about IDLE + COUNT * EVERY seconds.
KEEPALIVE = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}

LOST = (EOFError, OSError)
# Python 3.11 raises an assertion for a peer that speaks another protocol.
REFUSED = (AuthenticationError, AssertionError, *LOST)


class Wire:
    """One authenticated connection: one sender and one receiver at a time."""

    def __init__(self, end: socket.socket, secret: bytes, *, serving: bool) -> None:
        _attentive(end)
        with _patient(end):
            self._end = end.dup()
            self._through = Connection(end.detach())
            try:
                steps = (deliver_challenge, answer_challenge)
                for step in steps if serving else reversed(steps):
                    step(self._through, secret)
            except BaseException:
                self.close()
                raise

    def send(self, value: Any) -> None:
        """Send one object. Raise OSError if the peer is gone."""
        views: list[memoryview] = []

        def apart(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes >= SMALL:
                views.append(view)
            return view.nbytes < SMALL

        body = pickle.dumps(value, protocol=5, buffer_callback=apart)
        self._through.send_bytes(struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views)))
        self._through.send_bytes(body)
        for view in views:
            self._end.sendall(view)  # not through ``multiprocessing``, whose receiver copies bytes

    def receive(self) -> Any:
        """Receive one object into new memory; raise EOFError or OSError if the peer is gone.

        The message is unpickled, which is safe only after authentication.
        """
        sizes = self._through.recv_bytes()
        body = self._through.recv_bytes()
        buffers = [exactly(self._end, size) for (size,) in struct.iter_unpack("<Q", sizes)]
        return pickle.loads(body, buffers=buffers)  # noqa: S301 - both ends know the job's secret

    def ready(self, patience_s: float) -> bool:
        """Return True if data arrives or the connection ends within ``patience_s`` seconds."""
        return self._through.poll(patience_s)

    def hang_up(self) -> None:
        """Shut the connection down, which wakes threads that send or receive on it."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, which no other thread may use any more."""
        self._end.close()
        self._through.close()


@contextmanager
def _patient(end: socket.socket) -> Iterator[None]:
    """Limit the wait for a silent peer to HANDSHAKE_S during the ``with`` block."""
    option = socket.SO_RCVTIMEO
    with end.dup() as same:
        same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(HANDSHAKE_S), 0))
        yield
        same.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 0))


def _attentive(end: socket.socket) -> None:
    """Send small messages at once (no Nagle delay), and detect a lost host by keep-alive probes."""
    end.settimeout(None)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections at ``host`` only; port 0 takes any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=64)


def called(host: str, port: int, secret: bytes, patience_s: float) -> Wire:
    """Connect to a listener within ``patience_s`` seconds, and check that it knows ``secret``."""
    return Wire(socket.create_connection((host, port), patience_s), secret, serving=False)
