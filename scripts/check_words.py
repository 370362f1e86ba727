"""Words that must not be in the code, each with its reason. There is no way to exempt a line."""

import re
from dataclasses import dataclass
from pathlib import Path

from scripts._common import FOLDERS, ROOT, finish, python_files


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A pattern, the folders it is forbidden in, and why."""

    pattern: re.Pattern[str]
    folders: tuple[str, ...]
    reason: str


# The brackets inside some words keep the patterns from finding themselves.
RULES = (
    Rule(
        pattern=re.compile(r"\b(TO[D]O|FIX[M]E|XX[X])\b"),
        folders=FOLDERS,
        reason="do it or leave it out: nobody comes back",
    ),
    Rule(
        pattern=re.compile(r"#\s*(no[q]a|type:\s*ign[o]re|pragma:\s*n[o])(?!.*(#|\s-)\s*\w+ \w+)"),
        folders=FOLDERS,
        reason="a suppression says why, after a # or a -",
    ),
    Rule(
        pattern=re.compile(r"^\s*except\b(\s*:|.*\b(Base)?Exception\b)"),
        folders=("incrowd",),
        reason="catch what you can handle: a swallowed error may be a lost promise",
    ),
    Rule(
        pattern=re.compile(r"\b(pickle|dill|cloudpickle|joblib|torch)\.loads?\(|allow_pickle\s*=\s*True"),
        folders=("incrowd",),
        reason="nothing is unpickled: it would run code from a file",
    ),
    Rule(
        pattern=re.compile(r"\b(np|numpy)\.random\.[a-z]|\btorch\.((cuda|random)\.)?(manual_)?seed\b|^import random$"),
        folders=("incrowd",),
        reason="randomness is a parameter: use incrowd._random",
    ),
    Rule(pattern=re.compile(r"^\s*(<{7}|>{7}) \w"), folders=FOLDERS, reason="a merge left it behind"),
)


def problems(root: Path) -> list[str]:
    """The forbidden words below `root`, one line each."""
    return [
        f"{path.relative_to(root)}:{number}: {line.strip()!r}: {rule.reason}"
        for rule in RULES
        for path in python_files(root, rule.folders)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if rule.pattern.search(line)
    ]


if __name__ == "__main__":
    finish(problems(ROOT))
