"""Run a test in a process of its own, whose memory no other test affects."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SKIPPED = 77
PROGRAM = """
import sys
import pytest
from {module} import {name} as test
try:
    test.__wrapped__()
except pytest.skip.Exception:
    sys.exit({skipped})
"""


def alone(test: Callable[[], None]) -> Callable[[], None]:
    """The test, which looks at the memory of its process."""
    path = Path(test.__code__.co_filename).relative_to(ROOT)
    module = ".".join(path.with_suffix("").parts)
    program = PROGRAM.format(module=module, name=test.__name__, skipped=SKIPPED)

    @functools.wraps(test)
    def run() -> None:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode == SKIPPED:
            pytest.skip("as it says in a process of its own")
        assert done.returncode == 0, done.stderr

    return run
