"""This file checks what the documents and tools say about each other: map, links, commands."""

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


def files_of_dml() -> set[str]:
    every = {path.relative_to(ROOT / "dml").as_posix() for path in (ROOT / "dml").rglob("*.py")}
    return {path for path in every if not path.endswith("__init__.py")}


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def test_the_map_names_every_file() -> None:
    """Each file of dml/ stands in docs/architecture.md by its path or by its folder's `*.py`."""
    page = text_of("docs/architecture.md")
    named = {path for path in files_of_dml() if f"`{path}`" in page}
    covered = {path for path in files_of_dml() if f"`{folder_of(path)}/*.py`" in page}
    assert sorted(files_of_dml() - named - covered) == []


def test_the_map_names_each_file_once() -> None:
    rows = re.findall(r"^\|([^|]+)\|", text_of("docs/architecture.md"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+\.py)`", row)]
    assert sorted({name for name in named if named.count(name) > 1}) == []


def test_the_map_names_only_what_exists() -> None:
    page = text_of("docs/architecture.md")
    words = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", page)) - {"source.py"}
    places = (ROOT / "dml", ROOT)
    assert [w for w in sorted(words) if not any((p / w).is_file() for p in places)] == []


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
