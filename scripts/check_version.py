"""The version and the changelog agree: its first entry is this version, dated unless it is still being worked on."""

import re
from pathlib import Path

from scripts._common import ROOT, finish

VERSION = re.compile(r'^__version__ = "(?P<release>\d+\.\d+\.\d+)(?P<development>\.dev\d+)?"$', re.MULTILINE)
ENTRY = re.compile(r"^## \[(?P<release>[\d.]+)\] - (?P<date>.+)$", re.MULTILINE)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def problems(root: Path) -> list[str]:
    """Where the package below `root` and its changelog disagree."""
    version = VERSION.search((root / "incrowd/__init__.py").read_text(encoding="utf-8"))
    entry = ENTRY.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if version is None:
        return ["incrowd/__init__.py: no __version__ such as 1.2.3 or 1.2.3.dev0"]
    if entry is None:
        return ["CHANGELOG.md: no entry such as '## [1.2.3] - 2026-01-31'"]
    found = []
    if entry["release"] != version["release"]:
        found.append(f"CHANGELOG.md begins with {entry['release']}, incrowd is {version['release']}")
    if version["development"] and entry["date"] != "unreleased":
        found.append("CHANGELOG.md: a development version is '- unreleased'")
    if not version["development"] and not DATE.fullmatch(entry["date"]):
        found.append("CHANGELOG.md: a released version has a date such as 2026-01-31")
    return found


if __name__ == "__main__":
    finish(problems(ROOT))
