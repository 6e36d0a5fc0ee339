"""Find whether processes are neighbours: on one host, and able to open each other's files.

Only opening a file shows this for certain. ``here`` returns a text that is equal in neighbours, and
``near`` judges by addresses whether an attempt to open a file is worthwhile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CROSSES = ("tcp", "tls")  # protocols between processes; inproc passes objects as they are


@lru_cache(1)
def here() -> str:
    """Return boot id and pid namespace, or "" if processes cannot open each other's files."""
    if not hasattr(os, "memfd_create"):
        return ""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{started} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def near(context: Mapping[str, Any] | None) -> bool:
    """Return whether data that Dask sends in ``context`` seems to stay on this host.

    That is so if both ends share a host name or address. Without a context, data goes to disk.
    """
    if not context or not here():
        return False
    ends = (context.get(end) for end in ("sender", "recipient"))
    return _alike(*(str((end or {}).get("address", "")) for end in ends))


@lru_cache(4096)
def _alike(sender: str, recipient: str) -> bool:
    one, other = urlsplit(sender), urlsplit(recipient)
    return one.scheme in CROSSES and one.hostname is not None and one.hostname == other.hostname
