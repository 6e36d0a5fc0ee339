"""This file is a worker process: ``python -m dml.exec.worker FD`` takes orders from its parent.

It is started afresh, never forked, and never imports the main module of whoever started it:
functions come by value. It ends when the other end of its connection goes away, whatever it does.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from typing import Any

from dml.exec.channel import Channel
from dml.exec.desk import Desk, Order


def serve(channel: Channel) -> None:
    """Answer every order until the parent hangs up."""
    desk = Desk()
    while True:
        try:
            message: Any = channel.receive()
        except (EOFError, OSError):
            return
        if isinstance(message, Order):
            channel.send(desk.do(message))
        elif message[0] == "job":
            desk.open(*message[1:])
        else:
            desk.close(message[1])


def _leave_with_parent(end: socket.socket) -> None:
    """End this process in the middle of a slice if nobody is there to take its result."""
    poll = select.poll()
    poll.register(end, select.POLLHUP)
    poll.poll()
    os._exit(1)


def main() -> None:
    """Serve the connection whose descriptor is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    end = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_leave_with_parent, args=(end,), daemon=True).start()
    serve(Channel(end))


if __name__ == "__main__":
    main()
