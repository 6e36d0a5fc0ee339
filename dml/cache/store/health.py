"""Track the health of a store: whether it is usable, with one warning if it is not."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from dml.base.user_line import warn
from dml.cache.store.primitives import (
    TMP,
    OvertakenError,
    StorePlace,
    UnusableError,
    UnwritableError,
)
from dml.errors import CacheError

T = TypeVar("T")


class StoreHealth(Protocol):
    """The attributes of a store from which its health is reported."""

    place: StorePlace
    standing: Standing
    quota: Any


class StoreWarning(UserWarning):
    """Warns that the store cannot be used, and that the run continues without it."""


class Standing:
    """The failures of a store that a process has seen."""

    def __init__(self, what: str = "the store") -> None:
        self._lock, self._failed_at, self._what = threading.Lock(), 0.0, what
        self.unusable: UnusableError | None = None
        """Why the place is no longer used at all."""
        self.unwritable: UnusableError | None = None
        """Why the place is no longer written to; it is still read."""

    @property
    def whole(self) -> bool:
        """True if nothing has failed."""
        return self.unusable is None and self.unwritable is None

    @property
    def failed_s(self) -> float:
        """Seconds since the first failure; 0 if there was none."""
        return 0.0 if self.whole else time.monotonic() - self._failed_at

    def give_up(self, error: UnusableError) -> None:
        """Stop using the place, or only writing to it for an UnwritableError; warn once."""
        with self._lock:
            first = self.whole
            self._failed_at = time.monotonic() if first else self._failed_at
            if isinstance(error, UnwritableError):
                self.unwritable = self.unwritable or error
            else:
                self.unusable = self.unusable or error
        if first:
            text = f"the run goes on without {self._what}: {error}"
            warn(text, StoreWarning)

    def answer(self, request: Callable[[], T]) -> T | None:
        """Return the result of ``request``; None if the place is, or becomes, unusable."""
        if self.unusable is None:
            with self.failing():
                return request()
        return None

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Suppress an UnusableError of the ``with`` block, and stop using the place.

        After an OvertakenError, the place is still used.
        """
        try:
            yield
        except OvertakenError:
            return
        except UnusableError as error:
            self.give_up(error)


def failure(store: StoreHealth) -> UnusableError | None:
    """Return why a store cannot be written to, after a trial write; None if it can."""
    known = store.standing.unusable or store.standing.unwritable
    if known is None:
        probe = f"{TMP}/{uuid.uuid4().hex}"
        try:
            store.place.put(probe, b"")
            store.place.delete(probe)
        except UnusableError as error:
            return error
    return known


def unkept(
    store: StoreHealth,
    what: str,
    *,
    unnamed: tuple[str, str, str] | None = None,
    lost: int = 0,
    quarantined: str = "",
) -> CacheError:
    """Return error ``what`` for rows that a store did not keep; errors have cost ``lost`` rows.

    ``unnamed`` is a reason, its detail and a remedy, if the rows have no name to be stored by.
    """
    if unnamed is not None:
        return CacheError(what, why=f"{unnamed[0]}: {unnamed[1]}", try_=unnamed[2])
    rows = f"{lost:,} rows" if lost else ""
    why, try_ = reason(store, failure(store), lost=rows, quarantined=quarantined)
    return CacheError(what, why=why, try_=try_)


def reason(
    store: StoreHealth, failed: UnusableError | None, *, lost: str = "", quarantined: str = ""
) -> tuple[str, str]:
    """Return why a store did not keep rows, and a remedy; ``lost`` names rows lost to errors."""
    if failed is not None:
        why, try_ = f"{failed.what} ({failed.at}): {failed.why}", failed.try_
    elif quarantined:
        why = f"its rows were found to be wrong: {quarantined}"
        try_ = '.cache(tier="disk").clear_cache(), once its functions are of their rows alone'
    elif lost:
        why = f"errors have cost {lost}, and a part that lost some is not kept"
        try_ = "once more, when the function does not raise for these rows"
    elif store.quota is not None:
        why = f"cache_quota={store.quota.most_bytes:,} is for all of the namespace, and has no room"
        try_ = "a larger cache_quota=, or none"
    else:
        why = "files were changed while they were read, or others have removed what was kept"
        try_ = "once more"
    return why, try_
