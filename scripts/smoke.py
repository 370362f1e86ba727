"""Builds the wheel and installs it as a stranger would: in fresh environments, without our constraints, with the newest
versions that pyproject.toml allows, on this Python and on 3.13.

Torch alone is installed at the version of constraints.txt first: a range would fetch gigabytes of GPU libraries. Its
file for another Python is as large, so training is tried on this Python only.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts._common import ROOT

PLAN = "plan --clients 1000 --epsilon 8 --delta 1e-5 --rounds 54 --cohort 220 --json"
OTHER = "python3.13"
SPECIFICATION = """\
import json, random, incrowd
fields = {"opened": {"type": "boolean"}, "words": {"type": "integer", "low": 0, "high": 500}}
asked = incrowd.Specification.from_formula("opened ~ words", name="mail", fields=fields, gamma=4.0, clip=1.0, epsilon=8)
open("mail.json", "w").write(asked.to_json())
draw = random.Random(0)
rows = [(draw.randrange(500), draw.randrange(2)) for _ in range(400)]
open("mail.csv", "w").write("words,opened\\n" + "".join(f"{words},{opened}\\n" for words, opened in rows))
"""


def main() -> None:
    """Raises when any of it fails."""
    for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "PYTHONPATH"):  # the Makefile's: here pip chooses
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="incrowd-smoke-") as made:
        folder = Path(made)
        os.environ["INCROWD_STATE"] = str(folder / "state")
        wheel = built(folder)
        try_commands(folder, installed(folder, wheel, python=sys.executable))
        try_training(folder, installed(folder, wheel, python=sys.executable, extras="train", torch=True))
        other = found(OTHER)
        if other is None:
            print(f"{OTHER} is not on this machine: the wheel was not tried there")
            return
        try_commands(folder, installed(folder, wheel, python=other))
        try_devices(folder, installed(folder, wheel, python=other, extras="drawdiscard"))


def built(folder: Path) -> Path:
    """The wheel."""
    run(sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", str(folder), ".")
    (wheel,) = folder.glob("incrowd-*.whl")
    return wheel


def found(name: str) -> str | None:
    """A Python that starts: one on the PATH, or one of pyenv's."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}*/bin/{name}"))
    for each in filter(None, (shutil.which(name), *map(str, kept))):
        if subprocess.run([each, "--version"], check=False, capture_output=True).returncode == 0:
            return each
    return None


def installed(folder: Path, wheel: Path, *, python: str, extras: str = "", torch: bool = False) -> Path:
    """The folder of commands of a new environment that holds the wheel and the newest of what it needs."""
    place = Path(tempfile.mkdtemp(dir=folder))
    run(python, "-m", "venv", str(place))
    pip = [str(place / "bin/python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    if torch:
        run(*pip, *re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    run(*pip, f"incrowd[{extras}] @ {wheel.as_uri()}" if extras else str(wheel))
    return place / "bin"


def try_commands(folder: Path, commands: Path) -> None:
    """The command answers outside of the checkout, says what is wrong in a line, and needs no tool of a developer."""
    versions = run(str(commands / "python"), "-m", "pip", "list", "--format", "freeze")
    for tool in ("matplotlib", "pytest", "sphinx", "torch"):
        if f"\n{tool}==" in f"\n{versions}":
            raise SystemExit(f"{tool} came along without being asked for")
    incrowd = str(commands / "incrowd")
    for arguments in ("--version", "--help"):
        print(run(incrowd, arguments, folder=folder).strip().splitlines()[0])
    print(json.loads(run(incrowd, *PLAN.split(), folder=folder))["plans"][0])
    wrong = (
        "no-such-command",
        "train --no-such-option",
        "report",
        "plan --clients many",
        "train",
        "bench",
        "reproduce",
    )
    for words in wrong:
        print(refused(incrowd, *words.split(), folder=folder))


def try_training(folder: Path, commands: Path) -> None:
    """The demonstration, and the first example of the README."""
    summary = json.loads(run(str(commands / "incrowd"), "train", "--json", folder=folder))
    if not summary["accuracy"] > 0.9 or not summary["epsilon"] <= 8:
        raise SystemExit(f"the demonstration reached {summary['accuracy']} at epsilon {summary['epsilon']}")
    print(f"train: accuracy {summary['accuracy']:.4f} at epsilon {summary['epsilon']:.4f}")
    print(run(str(commands / "python"), "-c", first_example(), folder=folder).strip().splitlines()[0])


def first_example() -> str:
    """The first lines of Python of the README."""
    shown = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    if shown is None:
        raise SystemExit("README.md shows no Python")
    return shown[1]


def try_devices(folder: Path, commands: Path) -> None:
    """Draw and discard needs no torch."""
    run(str(commands / "python"), "-c", SPECIFICATION, folder=folder)
    simulate = ("ddml", "simulate", "mail.json", "--csv", "mail.csv", "--json")
    shown = run(str(commands / "incrowd"), *simulate, folder=folder)
    print(f"ddml simulate: {json.loads(shown)['metrics']}")


def run(*command: str, folder: Path = ROOT) -> str:
    """The standard output of a command that has to succeed."""
    done = subprocess.run(command, check=False, cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}")
    return done.stdout


def refused(*command: str, folder: Path) -> str:
    """The one line with which a command says that it is used wrongly."""
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    if done.returncode != 2 or done.stdout or len(done.stderr.splitlines()) != 1:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}, {done.stdout}{done.stderr}")
    return done.stderr.strip()


if __name__ == "__main__":
    main()
