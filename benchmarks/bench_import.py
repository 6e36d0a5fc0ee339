"""This file measures what `import dml` costs over `import numpy, pyarrow`.

    python benchmarks/bench_import.py

Processor milliseconds of fresh processes, the best of ten; the promise is 60.
"""

from __future__ import annotations

import subprocess
import sys

PROGRAM = (
    "import time; begin = time.process_time(); import numpy, pyarrow; "
    "middle = time.process_time(); import dml; "
    "print(middle - begin, time.process_time() - middle)"
)
PROMISED_MS = 60


def measured(times: int) -> tuple[float, float]:
    """Milliseconds for numpy and pyarrow, and for dml over them: the least of each."""
    runs = []
    for _ in range(times):
        ran = subprocess.run(  # noqa: S603 (this interpreter, on the program above)
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        )
        base, ours = map(float, ran.stdout.split())
        runs.append((base * 1e3, ours * 1e3))
    return min(base for base, _ in runs), min(ours for _, ours in runs)


def test_the_measurement_runs() -> None:
    base, ours = measured(1)
    assert base > 0 < ours


def main() -> None:
    base, ours = measured(10)
    print(f"numpy and pyarrow {base:.0f} ms, dml {ours:.0f} ms more (promised: {PROMISED_MS})")


if __name__ == "__main__":
    main()
