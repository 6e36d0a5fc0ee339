"""This file lets readers in other processes of this host ask for what one process alone can make.

The one that can answers whoever shows that it knows the key, each in a thread.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import struct
import tempfile
import threading
import weakref
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    answer_challenge,
    deliver_challenge,
)
from typing import Any, Protocol

from dml.errors import worded
from dml.ownership import FILE

BROKEN = (EOFError, OSError, ValueError, AuthenticationError)
HANDSHAKE_S = 5
PAUSE_S = 0.05
# A socket's path has some hundred bytes at most.
LONGEST, SHORT = 90, "/tmp"  # noqa: S108 - a folder in it, private as all that mkdtemp makes


class UnansweredError(Exception):
    """Who should answer is gone, or on another host."""


class Answering(Protocol):
    """What is asked: a number is a question."""

    def answer(self, number: int) -> object:
        """What the reader gets; an exception is raised there."""


class Desk:
    """Answers for as long as the one who is asked lives; its address and key are for readers.

    The address is a socket in ``folder``, which must be private: no other user can connect. Each
    reader has a thread; one that says nothing is waited for ``HANDSHAKE_S``, and holds up nobody.
    """

    def __init__(self, asked: Answering, folder: str) -> None:
        self.key = os.urandom(32)
        if len(os.fsencode(folder)) > LONGEST:
            folder = tempfile.mkdtemp(prefix="dml-spool-", dir=SHORT)
            weakref.finalize(self, _removed, folder, os.getpid())
        self.address = os.path.join(folder, "ask")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        os.chmod(self.address, FILE)
        self._socket.listen(64)
        self._over = threading.Event()
        self._asked = weakref.ref(asked, lambda _: self.close())
        threading.Thread(target=self._work, name="dml-spool", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more. The thread learns it from a connection that says nothing."""
        self._over.set()
        with suppress(OSError), socket.socket(socket.AF_UNIX) as end:
            end.connect(self.address)

    def _work(self) -> None:
        with self._socket:
            while not self._over.is_set():
                try:
                    end, _ = self._socket.accept()
                except OSError:  # too many open files, for now
                    self._over.wait(PAUSE_S)
                    continue
                serving = threading.Thread(target=self._serve, args=(end,), daemon=True)
                try:
                    serving.start()
                except RuntimeError:  # too many threads, for now
                    end.close()

    def _serve(self, end: socket.socket) -> None:
        """One reader: its proof, its question, and the answer."""
        patience = struct.pack("ll", HANDSHAKE_S, 0)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        with suppress(*BROKEN), Connection(end.detach()) as reader:
            deliver_challenge(reader, self.key)
            answer_challenge(reader, self.key)
            number, asked = int(reader.recv_bytes()), self._asked()
            if asked is not None:
                try:
                    found: object = asked.answer(number)
                except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
                    found = error
                reader.send_bytes(_packed(found))


def _removed(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _packed(found: object) -> bytes:
    """What a reader can unpack: an exception that cannot travel is told in words."""
    try:
        data = pickle.dumps(found)
        pickle.loads(data)  # noqa: S301 - what was packed just now
    except BaseException as error:  # noqa: BLE001 - whatever a user's exception does when it is packed
        told = found if isinstance(found, BaseException) else error
        return pickle.dumps(RuntimeError(worded(told)))
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
