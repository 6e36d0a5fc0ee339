"""Random numbers are a function of (seed, operator, epoch, row id) and nothing else.

Expressions draw in vectors (``row_key``, then ``uniform``). Python functions get one NumPy
generator whose bit generator is re-keyed in place before every row (``RowGenerator``). NumPy loads
``np.random`` when it is first used, so that importing ``dml.kernels.rows.random`` does not.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, overload

import numpy as np
import pyarrow as pa

from dml.kernels.rows.ids import GOLDEN, U64, Key, mix64, mix64_int, mixed, xor

_ORDINAL = 0xD1B54A32D192ED03
_EPOCH = 0x8CB92BA72F3D8DD7
_MODULUS = 1 << 64


def stream_key(seed: int, ordinal: int, epoch: int) -> int:
    """Return the key, a u8, of all draws of one random operator in one epoch.

    ``ordinal`` counts the random operators of the written pipeline. Integers are taken modulo
    2**64.
    """
    return mix64_int(seed * GOLDEN + ordinal * _ORDINAL + epoch * _EPOCH + 1)


@overload
def row_key(hi: U64, lo: Key, seed: int, ordinal: int, epoch: int) -> U64: ...
@overload
def row_key(hi: int, lo: U64, seed: int, ordinal: int, epoch: int) -> U64: ...
@overload
def row_key(hi: int, lo: int, seed: int, ordinal: int, epoch: int) -> int: ...
def row_key(hi: Key, lo: Key, seed: int, ordinal: int, epoch: int) -> Key:
    """Return the key of each row's draws: ``mix64(lo ^ mix64(hi ^ stream_key))``.

    Integers or (n,) u8 arrays; the result is an integer only if both halves are.
    """
    return mixed(xor(lo, mixed(xor(hi, stream_key(seed, ordinal, epoch)))))


def uniform(keys: U64, draw: int = 0) -> np.ndarray:
    """Return draw number ``draw`` for each row key: (n,) f8 in [0, 1), multiples of 2**-53."""
    bits = mix64(np.add(keys, np.array((draw + 1) * GOLDEN % _MODULUS, dtype=np.uint64)))
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53)


def row_name(hi: U64, lo: U64) -> U64:
    """Return a 64-bit hash of each row's id: ``mix64(lo ^ mix64(hi))``, (n,) u8."""
    return mix64(np.bitwise_xor(lo, mix64(hi)))


def exact_name(hi: U64, lo: U64) -> pa.Array:
    """Return the 128 bits of each row's id as 16 bytes, big endian."""
    words = np.stack([hi, lo], axis=1).astype(">u8")
    return pa.Array.from_buffers(pa.binary(16), len(hi), [None, pa.py_buffer(words)])


# NumPy's philox_state (numpy/random/src/philox/philox.h) and the memory after it, in 64-bit words:
# pointers to counter and key, buffer_pos, buffer[4], has_uint32 with uinteger, key[2], counter[4].
_POINTERS = 2
_AFTER_POINTERS = struct.Struct("<12Q")
_KEY_AT, _COUNTER_AT = 8, 10
_BUFFER_EMPTY = 4


def _official_state(first: int, second: int) -> Any:
    """Return the state that a new ``Philox(key=[first, second], counter=0)`` reports."""
    return {
        "bit_generator": "Philox",
        "state": {
            "counter": np.zeros(4, dtype=np.uint64),
            "key": np.array([first, second], dtype=np.uint64),
        },
        "buffer": np.zeros(4, dtype=np.uint64),
        "buffer_pos": _BUFFER_EMPTY,
        "has_uint32": 0,
        "uinteger": 0,
    }


class RowGenerator:
    """A NumPy generator that is re-keyed for every row; for one thread and one loop at a time.

    A ``RowGenerator`` is constructed once per block, in about 20 us.

    For a row with the key k it draws the numbers of ``Generator(Philox(key=[k, mix64(k ^ GOLDEN)],
    counter=0))``, whatever was drawn before.
    """

    def __init__(self) -> None:
        self.philox = np.random.Philox(key=0)
        self.generator = np.random.Generator(self.philox)
        # A view of memory that belongs to self.philox, and is freed with it.
        self._memory = _memory_of(self.philox) if layout_is_known() else None

    def each(self, keys: U64) -> Iterator[np.random.Generator]:
        """Yield ``generator`` once per key, re-keyed for it; use it before taking the next one.

        About 0.3 us a row, 15 times less than a new generator.
        """
        seconds = mix64(np.bitwise_xor(keys, np.array(GOLDEN, dtype=np.uint64)))
        return map(self._start, keys.tolist(), seconds.tolist())

    def _start(self, first: int, second: int) -> np.random.Generator:
        """Give ``philox`` the state of a new Philox with the key [``first``, ``second``]."""
        if self._memory is None:
            self.philox.state = _official_state(first, second)
        else:
            _write(self._memory, first, second)
        return self.generator


def _write(memory: ctypes.Array[ctypes.c_uint64], first: int, second: int) -> None:
    """Write the state of a new Philox after the two pointers in ``memory``, and nothing else."""
    _AFTER_POINTERS.pack_into(
        memory, 8 * _POINTERS, _BUFFER_EMPTY, 0, 0, 0, 0, 0, first, second, 0, 0, 0, 0
    )


def _memory_of(philox: np.random.Philox) -> ctypes.Array[ctypes.c_uint64]:
    """Return the generator's own state as 14 words; valid as long as the generator lives."""
    return (ctypes.c_uint64 * 14).from_address(int(philox.ctypes.state_address))


@cache
def layout_is_known() -> bool:
    """Return True if NumPy's Philox state has the memory layout assumed here; checked once.

    The memory is compared with the official state before it is written, and the written state is
    tested through the official interface. If False, the slower official setter is used.
    """
    philox = np.random.Philox(key=[0x0123456789ABCDEF, 0xFEDCBA9876543210], counter=[1, 2, 3, 4])
    philox.random_raw(3)
    np.random.Generator(philox).random(dtype=np.float32)
    return sys.byteorder == "little" and _reads_right(philox) and _writes_right(philox)


def _reads_right(philox: np.random.Philox) -> bool:
    """Return True if the memory of a used generator equals its official state."""
    official: Any = philox.state
    base = int(philox.ctypes.state_address)
    words = list(_memory_of(philox))
    expected = [
        base + 8 * _COUNTER_AT,
        base + 8 * _KEY_AT,
        official["buffer_pos"],
        *official["buffer"].tolist(),
        official["has_uint32"] + (official["uinteger"] << 32),
        *official["state"]["key"].tolist(),
        *official["state"]["counter"].tolist(),
    ]
    # Beside buffer_pos lie four bytes of padding, with any content.
    words[_POINTERS] &= 0xFFFFFFFF
    return words == expected


def _writes_right(philox: np.random.Philox) -> bool:
    """Return True if ``philox``, re-keyed through memory, draws as if keyed by its constructor."""
    _write(_memory_of(philox), 5, 7)
    expected = np.random.Philox(key=[5, 7], counter=0).random_raw(9)
    return bool(np.array_equal(philox.random_raw(9), expected))
