"""This file lets readers in other processes of this host ask for what one process alone can make.

The one that can answers in a thread, a question at a time, whoever shows that it knows the key.
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
import weakref
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Protocol

HOST = "127.0.0.1"
BROKEN = (EOFError, OSError, AuthenticationError)


class UnansweredError(Exception):
    """Who should answer is gone, or on another host."""


class Answering(Protocol):
    """What is asked: a number is a question."""

    def answer(self, number: int) -> object:
        """What the reader gets; an exception is raised there."""


class Desk:
    """Answers for as long as the one who is asked lives; its address and key are for readers."""

    def __init__(self, asked: Answering) -> None:
        self.key = os.urandom(32)
        self._listener = Listener((HOST, 0), authkey=self.key)
        self.address: Any = self._listener.address
        self._over = threading.Event()
        self._asked = weakref.ref(asked, lambda _: self.close())
        threading.Thread(target=self._work, name="dml-spool", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more. The thread learns it from a connection that says nothing."""
        self._over.set()
        with suppress(OSError):
            socket.create_connection(self.address, timeout=1).close()

    def _work(self) -> None:
        with self._listener as listener:
            while not self._over.is_set():
                with suppress(*BROKEN), listener.accept() as reader:
                    self._serve(reader)

    def _serve(self, reader: Connection) -> None:
        """One question, and its answer."""
        number, asked = int(reader.recv_bytes()), self._asked()
        if asked is not None:
            try:
                found: object = asked.answer(number)
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
                found = error
            reader.send_bytes(_packed(found))


def _packed(found: object) -> bytes:
    """What a reader can unpack: an exception that cannot travel is told in words."""
    try:
        data = pickle.dumps(found)
        pickle.loads(data)  # noqa: S301 - what was packed just now
    except Exception:  # noqa: BLE001 - whatever a user's exception does when it is packed
        return pickle.dumps(RuntimeError(f"{type(found).__name__}: {found}"))
    return data


def ask(address: Any, key: bytes, number: int) -> Any:
    """The answer to ``number``; what was raised there is raised here, or UnansweredError."""
    try:
        with Client(address, authkey=key) as desk:
            desk.send_bytes(b"%d" % number)
            found = pickle.loads(desk.recv_bytes())  # noqa: S301 - of who knows the key
    except BROKEN as error:
        why = f"the process that has the iterator does not answer: {error!r}"
        raise UnansweredError(why) from error
    if isinstance(found, Exception):
        raise found
    return found
