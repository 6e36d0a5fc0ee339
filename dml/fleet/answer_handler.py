"""A handler of HTTP requests that answers with one text, and prints nothing."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler


class AnswerHandler(BaseHTTPRequestHandler):
    """Base of handlers: ``answer`` sends a whole answer."""

    timeout = 30.0  # seconds after which a connection that sends nothing is closed

    def answer(self, status: int, body: bytes, kind: str) -> None:
        """Send ``body``, of the media type ``kind``; browsers keep no copy of it."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print no line for each request."""
