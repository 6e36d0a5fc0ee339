"""This file says whether a store can be used, and says once if it cannot."""

from __future__ import annotations

import threading
import time
import warnings

from dml.exec.store.primitives import UnusableError, UnwritableError


class StoreWarning(UserWarning):
    """The store cannot be used, and the run goes on without it."""


class Standing:
    """What a process knows of a store that failed."""

    def __init__(self, what: str = "the store") -> None:
        self._lock, self._failed_at, self._what = threading.Lock(), 0.0, what
        self.unusable: UnusableError | None = None
        """Why nothing is asked of the place any more."""
        self.unwritable: UnusableError | None = None
        """Why nothing is written there any more; what is there is still read."""

    @property
    def whole(self) -> bool:
        """Whether nothing has failed."""
        return self.unusable is None and self.unwritable is None

    @property
    def failed_s(self) -> float:
        """Seconds since something failed; 0 while nothing has."""
        return 0.0 if self.whole else time.monotonic() - self._failed_at

    def give_up(self, error: UnusableError) -> None:
        """Ask nothing of the place any more, and say so once."""
        with self._lock:
            first = self.whole
            self._failed_at = time.monotonic() if first else self._failed_at
            if isinstance(error, UnwritableError):
                self.unwritable = self.unwritable or error
            else:
                self.unusable = self.unusable or error
        if first:
            text = f"the run goes on without {self._what}: {error}"
            warnings.warn(text, StoreWarning, stacklevel=4)
