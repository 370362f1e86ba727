from pathlib import Path

import pytest

from scripts.check_version import problems


def problems_of(version: str, entries: str, root: Path) -> list[str]:
    (root / "incrowd").mkdir()
    (root / "incrowd/__init__.py").write_text(f'__version__ = "{version}"\n')
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n{entries}\n")
    return problems(root)


@pytest.mark.parametrize(
    ("version", "entries"),
    [
        ("1.2.0.dev0", "## [1.2.0] - unreleased"),
        ("1.2.0", "## [1.2.0] - 2026-01-31"),
        ("1.2.0", "## [1.2.0] - 2026-01-31\n\n## [1.1.0] - 2025-12-24"),
    ],
)
def test_version_and_changelog_agree(version: str, entries: str, tmp_path: Path) -> None:
    assert problems_of(version, entries, tmp_path) == []


@pytest.mark.parametrize(
    ("version", "entries", "problem"),
    [
        ("1.2.0", "## [1.1.0] - 2026-01-31", "CHANGELOG.md begins with 1.1.0, incrowd is 1.2.0"),
        ("1.2.0", "## [1.2.0] - unreleased", "CHANGELOG.md: a released version has a date such as 2026-01-31"),
        ("1.2.0.dev0", "## [1.2.0] - 2026-01-31", "CHANGELOG.md: a development version is '- unreleased'"),
        ("1.2.0", "", "CHANGELOG.md: no entry such as '## [1.2.3] - 2026-01-31'"),
        ("new", "## [1.2.0] - unreleased", "incrowd/__init__.py: no __version__ such as 1.2.3 or 1.2.3.dev0"),
    ],
)
def test_each_disagreement_is_named(version: str, entries: str, problem: str, tmp_path: Path) -> None:
    assert problems_of(version, entries, tmp_path) == [problem]
