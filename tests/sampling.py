"""The number of cases that tests draw or count: a sample, or all of them.

    @settings(max_examples=amount(60, 150))

Use ``amount`` where a file is imported, or where no fixture is available; elsewhere use the fixture
`whole`. Cases that a parameter makes are drawn by ``@pytest.mark.sample(n)``.
"""

from __future__ import annotations

from hypothesis import settings


def is_whole() -> bool:
    """True under `make test-all`."""
    return settings.get_current_profile_name() == "whole"


def amount(sample: int, every: int) -> int:
    """How many cases to try."""
    return every if is_whole() else sample
