"""Send a request to a new process, with another hash seed or without newer CPU features."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def asked(what: str, environment: dict[str, str] | None = None, **request: Any) -> Any:
    """The answer of a new process to a request."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.laws.elsewhere"],
        input=json.dumps({"what": what, **request}),
        env={**os.environ, "PYTHONHASHSEED": "4242", **(environment or {})},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])
