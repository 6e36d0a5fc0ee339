"""The number of cases that tests draw or count: a sample, or all of them.

    @settings(max_examples=amount(60, 150))

Use ``amount`` where a file is imported, or where no fixture is available; elsewhere use the fixture
`whole`.
"""

from __future__ import annotations

import pytest
from hypothesis import settings


def is_whole() -> bool:
    """True under `make test-all`."""
    return settings.get_current_profile_name() == "whole"


def amount(sample: int, every: int) -> int:
    """How many cases to try."""
    return every if is_whole() else sample


def halved(*places: int, parts: int = 2) -> None:
    """Skip half of a matrix, whose other half still has every value of every side.

    With three ``parts``, two thirds are skipped, and so on.
    """
    if sum(places) % parts and not is_whole():
        pytest.skip("a sample: the others run with --whole")
