"""This file says whether a store can be used, and says once if it cannot."""

from __future__ import annotations

import threading
import warnings

from dml.exec.store.primitives import UnusableError, UnwritableError


class StoreWarning(UserWarning):
    """The store cannot be used, and the run goes on without it."""


class Standing:
    """What a process knows of a store that failed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.unusable: UnusableError | None = None
        """Why nothing is asked of the place any more."""
        self.unwritable: UnusableError | None = None
        """Why nothing is written there any more; what is there is still read."""

    @property
    def whole(self) -> bool:
        """Whether nothing has failed."""
        return self.unusable is None and self.unwritable is None

    def give_up(self, error: UnusableError) -> None:
        """Ask nothing of the place any more, and say so once."""
        with self._lock:
            first = self.whole
            if isinstance(error, UnwritableError):
                self.unwritable = self.unwritable or error
            else:
                self.unusable = self.unusable or error
        if first:
            warnings.warn(f"the run goes on without the store: {error}", StoreWarning, stacklevel=4)
