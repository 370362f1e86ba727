"""Deliberate privacy bugs as data: the text that a mutant replaces, and the tests that have to notice.

They lie in `scripts/mutants`, a TOML file for each topic: a `title`, and a table `[[mutant]]` for each of them. A
mutant breaks a property rather than a line, and says which. Its old text occurs exactly once in its file: once the code
has moved, the mutant has to be adapted.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts._common import ROOT

MUTANTS = Path("scripts/mutants")


class Unfit(Exception):
    """A mutant, or what was asked for, does not fit today's code."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One deliberate bug. One that `hangs` is killed by its time limit, too."""

    topic: str
    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    hangs: bool = False

    def applied(self, root: Path) -> str:
        """The text of its file with the bug in it. Edge cases: `Unfit` where the old text is not there once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(self.old) != 1:
            raise Unfit(
                f"{self.name}: {self.file} has its old text {text.count(self.old)} times, not once: the code moved, "
                "so adapt the mutant"
            )
        return text.replace(self.old, self.new)


def load(folder: Path = ROOT / MUTANTS) -> list[Mutant]:
    """All mutants, topic after topic."""
    contents = (tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml")))
    return [
        Mutant(topic=content["title"], **each | {"tests": tuple(each["tests"])})
        for content in contents
        for each in content["mutant"]
    ]


def chosen(mutants: Sequence[Mutant], words: Sequence[str]) -> list[Mutant]:
    """The mutants of these names or topics; all of them without a word.

    Edge cases: a word that is neither is an `Unfit`.
    """
    for word in words:
        if not any(word in (mutant.name, mutant.topic) for mutant in mutants):
            raise Unfit(f"{word!r} is neither a mutant nor a topic: see --list")
    return [mutant for mutant in mutants if not words or mutant.name in words or mutant.topic in words]
