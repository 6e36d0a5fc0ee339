"""Simulate separate hosts: network namespaces on one bridge, whose links can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import IO, Any

NETWORK = "10.213.71"  # as on no other network of this machine


def missing() -> str:
    """What there must be for hosts apart and is not."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "needs ip, of iproute2"
    name = f"dml-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return "namespaces cannot be made here"
    _ip("netns", "del", name)
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Hosts:
    """So many hosts, each with an address of its own; gone with all that runs there on exit."""

    def __init__(self, count: int) -> None:
        self.count, self.bridge = count, f"dml{os.getpid()}"
        self.running: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Hosts:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("link", "set", self.bridge, "up")
        for host in range(self.count):
            space, link = self.space(host), self._link(host)
            _ip("netns", "add", space)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", link, "master", self.bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for each in ("eth0", "lo"):
                _ip("-n", space, "link", "set", each, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.kill()
            process.communicate()
        for host in range(self.count):
            subprocess.run(["ip", "netns", "del", self.space(host)], check=False)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)

    def space(self, host: int) -> str:
        return f"{self.bridge}-{host}"

    def address(self, host: int) -> str:
        return f"{NETWORK}.{host + 1}"

    def _link(self, host: int) -> str:
        return f"{self.bridge}-{host}"

    def cut(self, host: int) -> None:
        """Nothing reaches ``host``, and nothing comes from there: packets are lost in silence."""
        _ip("link", "set", self._link(host), "down")

    def heal(self, host: int) -> None:
        """The network is as it was."""
        _ip("link", "set", self._link(host), "up")

    def start(
        self, host: int, command: Sequence[str], stdout: int | IO[Any] = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Run ``command`` there."""
        inside = ["ip", "netns", "exec", self.space(host), *command]
        process = subprocess.Popen(
            inside, stdout=stdout, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
        )
        self.running.append(process)
        return process
