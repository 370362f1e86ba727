"""What pip, make and the constraints say about each other."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
PINS = re.compile(r"^([\w.-]+)==([\w.+]+)$", re.MULTILINE)


def plain(requirement: str) -> str:
    """The name of a requirement, as indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=! ]", requirement)[0]).lower()


def pins() -> dict[str, str]:
    return {plain(name): version for name, version in PINS.findall((ROOT / "constraints.txt").read_text())}


LEFT_OUT = {"huggingface", "mlflow", "tensorboard", "wandb"}
"""Large packages that a page or a tracker of a user's needs; no test installs them."""


def test_make_installs_every_extra_but_large_ones() -> None:
    listed = re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    assert sorted(listed[1].split(",")) == sorted(EXTRAS.keys() - LEFT_OUT)


def test_every_dependency_is_pinned() -> None:
    trackers = LEFT_OUT - {"huggingface"}
    extras = [requirement for name, extra in EXTRAS.items() if name not in trackers for requirement in extra]
    wanted = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["build-system"]["requires"], *extras]
    assert {plain(requirement) for requirement in wanted} - pins().keys() == set()


def test_every_constraint_is_one_exact_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) == len(pins())
