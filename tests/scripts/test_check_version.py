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
