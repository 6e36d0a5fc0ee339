"""Test hashes, draws, buckets and membership against plain Python."""

from __future__ import annotations

import pyarrow as pa
import xxhash

from tests.kernels.registers import INF, NAN, answer, vec

MASK = 2**64 - 1


def mix64(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


GOLDEN = 0x9E3779B97F4A7C15


def test_hashes() -> None:
    def expected(bits: int, seed: int) -> int:
        return mix64((bits + (seed + 1) * GOLDEN) & MASK)

    assert answer("hash", [vec([-1, 5, None], "i4")], "u8", 7) == [
        expected(MASK, 7),
        expected(5, 7),
        None,
    ]
    one, nan = 0x3FF0000000000000, 0x7FF8000000000000
    floats = vec([1.0, -0.0, NAN], "f4")
    assert answer("hash", [floats], "u8", 0) == [expected(one, 0), expected(0, 0), expected(nan, 0)]
    text = pa.array(["a", None, "é", "a"])
    codes = [xxhash.xxh64_intdigest(s.encode(), 3) for s in ("a", "é")]
    assert answer("hash", [text], "u8", 3) == [codes[0], None, codes[1], codes[0]]
    moments = pa.array([1, None], pa.timestamp("us"))
    assert answer("hash", [moments], "u8", 0) == [expected(1, 0), None]


def test_uniform_is_keyed_by_row() -> None:
    high, low = vec([1, 1, 2], "u8"), vec([5, 6, 5], "u8")
    row_keys = [mix64(lo ^ mix64(hi ^ 99)) for hi, lo in ((1, 5), (1, 6), (2, 5))]
    expected = [(mix64((key + GOLDEN) & MASK) >> 11) * 2.0**-53 for key in row_keys]
    assert answer("uniform", [high, low], "f8", 99) == expected


def test_buckets() -> None:
    x = vec([-1.0, 0.0, 0.5, NAN, None, INF], "f8")
    assert answer("bucketize", [x], "i8", (0.0, 1.0)) == [0, 1, 1, 2, None, 2]
    edges = (-INF, -0.5, 2.5, 1e9)
    assert answer("bucketize", [vec([-1, 0, 2, 3], "i4")], "i8", edges) == [1, 2, 2, 3]


def test_membership() -> None:
    x = vec([1, 2, None, 300], "i4")
    assert answer("is_in", [x], "b1", (2, 300, None, 2.5)) == [False, True, None, True]
    assert answer("is_in", [x], "b1", tuple(range(50))) == [True, True, None, False]
    assert answer("is_in", [vec([NAN, 1.0], "f8")], "b1", (NAN, 1.0)) == [False, True]
    assert answer("is_in", [pa.array(["a", None, "b"])], "b1", ("b", None)) == [False, None, True]
