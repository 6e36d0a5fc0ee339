"""Counts, bytes and seconds are formatted for people here, with their significant digits."""

from __future__ import annotations

from typing import Final

UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
ABSENT: Final = "-"


def count_text(figure: float | None) -> str:
    """Format a count with thousands separators: ``12,345``."""
    return ABSENT if figure is None else f"{figure:,.0f}"


def counted(count: int, one: str, several: str) -> str:
    """Format a count with its noun, singular or plural: ``1 part``, ``2 parts``."""
    return f"{count_text(count)} {one if count == 1 else several}"


def bytes_text(size: float | None) -> str:
    """Format bytes in powers of 1000: ``1.5 MB``."""
    if size is None:
        return ABSENT
    for unit in UNITS[:-1]:
        if abs(size) < 999.95 or (unit == "B" and abs(size) < 1000):
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} {UNITS[-1]}"


def seconds_text(seconds: float | None) -> str:
    """Format seconds with three significant digits: ``1.23 s``, ``45.6 ms``."""
    if seconds is None:
        return ABSENT
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return f"{_three_digits(seconds * scale)} {unit}"
    return f"{_three_digits(seconds * 1e6)} us" if seconds else "0 s"


def duration_text(seconds: float | None) -> str:
    """Format seconds as ``seconds_text`` does, and as hours from two hours on: ``12.5 h``."""
    if seconds is None or seconds < 7_200:
        return seconds_text(seconds)
    return f"{_three_digits(seconds / 3_600)} h"


def _three_digits(figure: float) -> str:
    places = 2 if figure < 9.995 else 1 if figure < 99.95 else 0
    return f"{figure:,.{places}f}"


def cut(text: str, letters: int) -> str:
    """Cut a text to at most ``letters`` characters, with " ..." at its end if it is cut."""
    return text if len(text) <= letters else f"{text[: letters - 4]} ..."
