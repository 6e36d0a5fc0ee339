"""The corpus of row functions: all families, in one list."""

from __future__ import annotations

from tests.corpus import numbers, shapes, texts, traps
from tests.corpus.case import Case

CASES: list[Case] = [*numbers.CASES, *texts.CASES, *shapes.CASES, *traps.CASES]
