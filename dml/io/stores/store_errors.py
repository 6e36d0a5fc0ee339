"""Errors of object stores are classified as transient or permanent, and stripped of secrets.

Error texts of libraries may contain secrets: keys, tokens, signed URLs. Every text passes through
``scrubbed`` before it leaves this file.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dml.errors import SourceError

# HTTP status codes of transient server errors; all other codes are permanent.
PASSING_STATUS = (408, 425, 429, 500, 502, 503, 504)
PASSING_CODES = (
    *(errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET),
    *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPIPE, errno.EREMOTEIO, errno.ETIMEDOUT),
)
# Class names of library errors for broken connections that are no ConnectionError of Python's.
PASSING_NAMES = {
    *("ClientConnectionError", "ClientPayloadError", "ConnectionError", "HTTPClientError"),
    *("IncompleteRead", "IncompleteReadError", "ResponseStreamingError", "Timeout"),
}
LASTING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# Options that are not secret, and that help if an error quotes them.
PLAIN = {"endpoint_url", "region_name", "project", "account_name", "consistency", "host", "port"}
LEAST = 4  # characters of a secret: shorter ones occur in every text
HIDDEN = "***"


class StoreError(SourceError):
    """A request to a store failed; the content of the file may be intact."""


class AbsentError(StoreError):
    """The file, folder or bucket does not exist."""


class ForbiddenError(StoreError):
    """The store denies access, to a known user or without credentials."""


def passing(error: BaseException) -> bool:
    """Return True for errors that may be transient: no response, or a retryable status."""
    status = _status(error)
    if status is not None:
        return status in PASSING_STATUS
    if isinstance(error, LASTING):
        # some libraries report a missing response as an absent file
        return error.__cause__ is not None and passing(error.__cause__)
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if isinstance(error, OSError) and error.errno in PASSING_CODES:
        return True
    return any(kind.__name__ in PASSING_NAMES for kind in type(error).__mro__)


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status of an error, or of the error that caused it."""
    if error is None:
        return None
    answer = getattr(error, "response", None)
    if isinstance(answer, Mapping):
        return _number(answer.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    for found in (error, answer):
        for name in ("status", "status_code", "code"):
            if (number := _number(getattr(found, name, None))) is not None:
                return number
    return _status(error.__cause__)


def _number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdigit() and 100 <= int(text) < 600 else None


def error_text(error: BaseException) -> str:
    """Return the text of a library's error, or of its cause if that may be transient."""
    if isinstance(error, LASTING) and passing(error) and error.__cause__ is not None:
        return error_text(error.__cause__)
    return str(error) or type(error).__name__


def refused(error: BaseException, url: str, why: str, done: str = "read") -> StoreError:
    """Build the error for a failed request, after all retries; ``why`` is a text without secrets.

    ``done`` completes the message "... cannot be": "read", "written" or "removed".
    """
    if passing(error):
        return StoreError(
            f"{url} cannot be {done} now",
            why=f"it was tried several times; at last: {why}",
            try_="the same again later; endpoint and network, if that never works",
        )
    if isinstance(error, FileNotFoundError) or _status(error) in (404, 410):
        return AbsentError(
            f"{url} does not exist",
            why=f"the store says: {why}",
            try_="the names of the bucket and of the folders in it, letter by letter",
        )
    keyless = "Credential" in type(error).__name__  # the library found no credentials
    if isinstance(error, PermissionError) or _status(error) in (401, 403) or keyless:
        return ForbiddenError(
            f"{url} may not be {done}",
            why=f"the store says: {why}",
            try_="storage_options={...} with a key that may, or the keys of the environment",
        )
    return StoreError(f"{url} cannot be {done}", why=why)


def absent(error: ImportError, scheme: str) -> SourceError:
    """Build the error for a store whose library is not installed."""
    extra = EXTRAS.get(scheme)
    return SourceError(
        f"{scheme}:// needs a library that is not installed",
        why=str(error),
        try_=f"pip install 'dml[{extra}]'" if extra else "pip install of what it names",
    )


def unknown(scheme: str, known: Iterable[str]) -> SourceError:
    """Build the error for a URL scheme that fsspec does not support."""
    near = difflib.get_close_matches(scheme, known, n=1, cutoff=0.75)
    return SourceError(
        f"{scheme}:// leads to no store",
        why=f"fsspec knows no {scheme!r}",
        try_=f"{near[0]}://" if near else "s3://, gs://, https://, or a plain path",
    )


def secrets_in(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield every text in the options that may be a secret, at any depth."""
    for name, value in options.items():
        if name in PLAIN:
            continue
        if isinstance(value, Mapping):
            yield from secrets_in(value)
        elif isinstance(value, list | tuple):
            yield from secrets_in({str(i): each for i, each in enumerate(value)})
        elif isinstance(value, bytes):
            yield value.decode(errors="ignore")
        elif isinstance(value, str):
            yield value


def scrubbed(text: str, secrets: Iterator[str]) -> str:
    """Return ``text`` in one line, without secrets and without queries and user parts of URLs."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= LEAST:
            text = text.replace(secret, HIDDEN)
    return " ".join(shown_url(text).split())


def shown_url(text: str) -> str:
    """Return ``text`` with web URLs without query, and all URLs without user and password."""
    text = re.sub(r"(https?://[^\s?'\"]*)\?[^\s'\"]*", r"\1", text)
    return re.sub(r"\b((?:https?|ftp|sftp|ssh|smb|webdav)s?://)[^/\s@'\"]+@", r"\1", text)
