"""Copy the environment of users' functions to a worker process: paths, folder, variables."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import warnings

import numpy as np

# One thread for each of these libraries: a worker is one slot.
SINGLE = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"),
    "VECLIB_MAXIMUM_THREADS",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """Module path, working folder and environment variables, as they were when the run began."""

    path: tuple[str, ...]
    folder: str
    environment: dict[str, str]

    @staticmethod
    def now() -> Surroundings:
        """Return the surroundings of this process for a worker; libraries get one thread each."""
        folder = _folder()
        path = tuple(str(entry) or folder for entry in sys.path)
        return Surroundings(path, folder, {**os.environ, **dict.fromkeys(SINGLE, "1")})

    def enter(self) -> None:
        """Set module path, working folder and variables of this process to the stored ones."""
        sys.path[:] = self.path
        if self.folder and self.folder != _folder():
            os.chdir(self.folder)
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        _as_begun()
        importlib.invalidate_caches()


_FILTERS, _FLOATING, _DEEPEST = list(warnings.filters), np.geterr(), sys.getrecursionlimit()


def _as_begun() -> None:
    """Reset process-wide settings that functions of another run may have changed."""
    if warnings.filters != _FILTERS:
        warnings.resetwarnings()
        warnings.filters[:] = _FILTERS  # type: ignore[index]
    np.seterr(**_FLOATING)
    if sys.getrecursionlimit() != _DEEPEST:
        sys.setrecursionlimit(_DEEPEST)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return ""
