"""Test connections between ranks: unauthenticated peers are refused, and arrays arrive whole."""

from __future__ import annotations

import pickle
import socket
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml.ranks.connection import REFUSED, Wire, called, listening


class Trap:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_stranger_is_neither_heard_nor_served(tmp_path: Path) -> None:
    ours, trap = b"ours", tmp_path / "trap"
    with listening("127.0.0.1", 0) as server:
        stranger = socket.create_connection(server.getsockname())
        end, _ = server.accept()
        stranger.sendall(b"\x00\x00\x00\x40" + pickle.dumps(Trap(trap)).ljust(64))
        with pytest.raises(REFUSED):
            Wire(end, ours, serving=True)
        stranger.close()
    assert not trap.exists()


@pytest.mark.parametrize("said", [b"\x00\x00\x00\x05hello", b"HTTP/1.1 400", b"\xff" * 40, b""])
def test_a_stranger_in_the_place_of_rank_0_is_refused(said: bytes) -> None:
    """As after a crash, when the port that is still announced is another program's."""
    with listening("127.0.0.1", 0) as server, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(called, "127.0.0.1", server.getsockname()[1], b"ours", 5.0)
        end, _ = server.accept()
        end.sendall(said)
        end.close()
        with pytest.raises(REFUSED):
            coming.result()


def test_the_wrong_secret_is_refused_on_both_ends() -> None:
    with listening("127.0.0.1", 0) as server, ThreadPoolExecutor(1) as pool:
        host, port = server.getsockname()
        theirs = pool.submit(called, host, port, b"theirs", 5.0)
        with pytest.raises(AuthenticationError):
            Wire(server.accept()[0], b"ours", serving=True)
        with pytest.raises(AuthenticationError):
            theirs.result()


def test_arrays_cross_writable_whatever_their_size() -> None:
    sent = {
        "small": np.arange(3), "large": np.arange(1e5), "none": np.zeros(0),
        "matrix": np.zeros((300, 200), order="F"), "text": np.array(["a", None], object),
    }  # fmt: skip
    with listening("127.0.0.1", 0) as server, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(called, "127.0.0.1", server.getsockname()[1], b"ours", 5.0)
        here = Wire(server.accept()[0], b"ours", serving=True)
        there = coming.result()
        done = pool.submit(here.send, sent)
        got = there.receive()
        done.result()
        assert not there.ready(0)
        here.close()
        with pytest.raises(EOFError):
            there.receive()
        there.close()
    for name, array in sent.items():
        np.testing.assert_array_equal(got[name], array)
        got[name][...] = 1
