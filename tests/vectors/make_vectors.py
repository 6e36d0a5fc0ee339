"""Write the vectors that pin arithmetic, ids, random draws and permutations.

`python -m tests.vectors.make_vectors` rewrites the JSON files beside it, from the oracle alone.
They change only with a version bump and a page in docs/decisions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dml.kernels.math import ARITHMETIC_VERSION, MATH_CODES, MATH_OPS
from dml.kernels.math.functions import step_table
from dml.testing.scalars import ids
from dml.testing.scalars.floats import from_bits, rounded, to_bits
from dml.testing.scalars.steps import evaluate

HERE = Path(__file__).parent
GOLDEN = 0x9E3779B97F4A7C15
PLAIN = (0.0, 1e-30, 1e-8, 0.1, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, math.e, math.pi, 10.0, 20.5, 88.0)
EDGES = (90.0, 104.5, 300.0, 709.5, 710.0, 745.5, 750.0, 1e6, 1.7e6, 1.7e9, 1e22, 1e38, 1e300)
TINY = {"f4": 1.4e-45, "f8": 5e-324}
SIZES = (0, 1, 2, 3, 5, 8, 13)
COUNTS = (1, 2, 5, 4096, 4097, 10_000, 65_536, 65_537, 10**9 + 7, 1 << 40, (1 << 62) - 57, 1 << 62)
KEYS = (0, 1, 0xDEADBEEF, (1 << 64) - 1)


def math_inputs(code: str, stray: int = 40) -> list[float]:
    """Both signs of plain, extreme and special values, and floats of stray bits."""
    sizes = [rounded(x, code) for x in (*PLAIN, *EDGES, TINY[code], 1e-310, math.inf)]
    width = 8 * int(code[1])
    mixed = [ids.mix64(i * GOLDEN) >> (64 - width) for i in range(1, stray + 1)]
    strays = [from_bits(bits, code) for bits in mixed]
    return [*sizes, *(-x for x in sizes), math.nan, *(x for x in strays if not math.isnan(x))]


def math_vectors() -> dict[str, Any]:
    """Per function and type: "bits of x, bits of f(x)" in hexadecimal."""
    found: dict[str, Any] = {"version": ARITHMETIC_VERSION}
    for name in MATH_OPS:
        for code in MATH_CODES:
            table = step_table(name, code)
            pairs = ((x, evaluate(table, x)) for x in math_inputs(code))
            found[f"{name} {code}"] = [
                f"{to_bits(x, code):x} {to_bits(y, code):x}" for x, y in pairs
            ]
    return found


def ids_vectors() -> dict[str, Any]:
    """Keys of names, mixed integers, derived ids."""
    names = ("", "a", "train/part-0.parquet", "größe/Ω")
    rows = [(ids.source_key(name), row) for name in names for row in (0, 1, 1 << 40)]
    return {
        "mix64": [[value, ids.mix64(value)] for value in (*KEYS, GOLDEN)],
        "source_key": [[name, ids.source_key(name)] for name in names],
        "derive": [
            [hi, lo, a, b, *ids.derive(hi, lo, a, b)]
            for hi, lo in rows
            for a, b in ((0, 0), (3, 7), ((1 << 64) - 1, 1 << 63))
        ],
    }


def random_vectors() -> dict[str, Any]:
    """Keys of rows and their first draws; the draws are multiples of 2**-53."""
    keyed = [(0, 0, 0, 0, 0), (1, 2, 3, 4, 5), (KEYS[3], KEYS[3], KEYS[3], 9, 1 << 40)]
    keys = [ids.row_key(*row) for row in keyed]
    return {
        "row_key": [[*row, key] for row, key in zip(keyed, keys, strict=True)],
        "uniform": [[key, draw, ids.uniform(key, draw)] for key in keys for draw in range(4)],
        "philox_key": [[key, key, ids.mix64(key ^ GOLDEN)] for key in keys],
    }


def permutation_vectors() -> dict[str, Any]:
    """Small windows whole, and full shuffles at a few places."""
    return {
        "window": [[key, n, ids.window_permutation(key, n)] for key in KEYS for n in SIZES],
        "index": [
            [n, key, [[place, ids.index_permutation(n, key, place)] for place in _places(n)]]
            for n in COUNTS
            for key in KEYS[:3]
        ],
    }


def _places(n: int) -> Iterable[int]:
    return sorted({0, n - 1, n // 2, n // 3, min(12_345, n - 1)})


FILES = {
    "math": math_vectors,
    "ids": ids_vectors,
    "random": random_vectors,
    "permutation": permutation_vectors,
}


def read(name: str) -> dict[str, Any]:
    """The committed vectors of one file."""
    found: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    return found


def text(vectors: dict[str, Any]) -> str:
    """One case a line, so that a change shows as the lines it touches."""
    parts = []
    for key, cases in vectors.items():
        rows = cases if isinstance(cases, list) else None
        shown = json.dumps(cases) if rows is None else ",\n  ".join(map(json.dumps, rows))
        parts.append(f" {json.dumps(key)}: " + (shown if rows is None else f"[\n  {shown}\n ]"))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    for name, make in FILES.items():
        (HERE / f"{name}.json").write_text(text(make()), encoding="utf-8")


if __name__ == "__main__":
    main()
