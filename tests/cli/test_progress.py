"""Test when the progress display prints, with a simulated clock."""

from __future__ import annotations

import sys

import pytest

from dml.cli.run import Bar, DeliveryProgress, Lines, progress


def test_a_line_every_ten_seconds() -> None:
    told: list[str] = []
    with Lines(told.append, begin=0.0) as lines:
        for tenth in range(1, 351):
            lines.update(tenth, tenth * 4, tenth * 32, tenth / 10)
    assert [each.split()[0] for each in told] == ["10", "20", "30"]
    assert told[0] == "10 s  100 batches  400 rows  3.2 kB"


def test_a_line_every_tenth_where_the_end_is_known() -> None:
    told: list[str] = []
    with Lines(told.append, begin=0.0, total=100) as lines:
        for batch in range(1, 101):
            lines.update(batch, batch, batch, batch / 5)
    assert [each.split()[2] for each in told] == [f"({n}0%)" for n in range(1, 11)]


def test_short_runs_say_nothing() -> None:
    told: list[str] = []
    with Lines(told.append, begin=0.0, total=10) as lines:
        for batch in range(1, 11):
            lines.update(batch, batch, batch, batch / 100)
    assert told == []


@pytest.mark.law
def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress(lambda _: None, 0.0, 10, quiet=False) as shown:
        assert isinstance(shown, Bar)
        shown.update(5, 20, 160, 1.0)
    caught = capsys.readouterr()
    assert "5 batches  20 rows  160 B" in caught.err
    assert caught.out == ""


def test_quiet_is_silent_and_a_file_gets_lines() -> None:
    assert type(progress(lambda _: None, 0.0, None, quiet=True)) is DeliveryProgress
    assert isinstance(progress(lambda _: None, 0.0, None, quiet=False), Lines)
