"""Test that documents and tools agree with each other: map, links, commands."""

from __future__ import annotations

import re
import stat
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
DECISION_LINES = 60  # a page


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def folders_of_dml() -> set[str]:
    """Rooms and the folders in them, `__pycache__` and data aside."""
    return {
        path.parent.relative_to(ROOT / "dml").as_posix() for path in (ROOT / "dml").rglob("*.py")
    }


FORMATS = {f"io/{path.name}" for path in (ROOT / "dml/io").iterdir() if path.is_dir()}


def test_the_page_of_the_architecture_names_every_room_and_folder() -> None:
    page = text_of("docs/architecture.md")
    rows = [row.split("|")[1:3] for row in page.splitlines() if row.startswith("| `")]
    named = {
        name
        for rooms, folders in rows
        for room in re.findall(r"`(\w+)`", rooms)
        for name in [room, *(f"{room}/{each}" for each in re.findall(r"`(\w+)`", folders))]
    }
    deeper = {path for path in folders_of_dml() if path.count("/") > 1}
    assert sorted(folders_of_dml() - named - FORMATS - deeper - {"."}) == []


def test_the_page_of_the_architecture_names_no_file_and_is_a_page() -> None:
    page = text_of("docs/architecture.md")
    assert re.findall(r"[a-z_]+\.py\b", page) == ["house.py", "test_architecture.py"]
    assert len(page.split()) <= 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    inside = [target for target in targets if not target.startswith(("http:", "https:"))]
    assert [target for target in inside if not (page.parent / target).exists()] == []


def test_decisions_fit_on_a_page_and_answer_four_questions() -> None:
    for page in sorted((ROOT / "docs/decisions").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= DECISION_LINES, page.name
        for part in ("**Question.**", "**Choice.**", "**Refused.**", "**Would change our mind.**"):
            assert part in text, f"{page.name} lacks {part}"


def test_the_hooks_are_the_steps_of_make_check() -> None:
    steps = re.search(r"^check: (.*)$", text_of("Makefile"), re.MULTILINE)
    assert steps is not None
    hooks = re.findall(r"entry: make (\w+)", text_of(".pre-commit-config.yaml"))
    assert hooks == steps.group(1).split()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert re.search(r"^    make test\b", text_of("README.md"), re.MULTILINE)
    assert re.search(r"^make test\b", text_of(".ci/run"), re.MULTILINE)
    assert (ROOT / ".ci/run").stat().st_mode & stat.S_IXUSR


def test_each_ignored_lint_rule_carries_a_reason() -> None:
    text = text_of("pyproject.toml")
    rules = tomllib.loads(text)["tool"]["ruff"]["lint"]["ignore"]
    block = text[text.index("\nignore = [") :]
    silent = [rule for rule in rules if not re.search(rf'"{rule}",\s*# \w+', block)]
    assert silent == []


def test_each_core_dependency_carries_a_reason() -> None:
    text = text_of("pyproject.toml")
    names = tomllib.loads(text)["project"]["dependencies"]
    assert [name for name in names if not re.search(rf'"{re.escape(name)}",\s*# \w+', text)] == []
