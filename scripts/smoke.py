"""Builds the wheel, installs it in a fresh environment without any extra, and runs the commands as a user would."""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from scripts._common import ROOT

PLAN = "plan --clients 1000 --epsilon 8 --delta 1e-5 --rounds 54 --cohort 220 --json"


def main() -> None:
    """Raises when any of it fails."""
    with tempfile.TemporaryDirectory(prefix="incrowd-smoke-") as folder:
        try_wheel(Path(folder))


def try_wheel(folder: Path) -> None:
    """The installed command answers, outside of the checkout, and development tools are not among its needs."""
    run(sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", str(folder), ".")
    (wheel,) = folder.glob("incrowd-*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv/bin/python")
    run(python, "-m", "pip", "install", "-qq", "-c", "constraints.txt", str(wheel))
    installed = run(python, "-m", "pip", "list", "--format", "freeze")
    for tool in ("matplotlib", "pytest", "sphinx", "torch"):
        if f"\n{tool}==" in f"\n{installed}":
            raise SystemExit(f"{tool} came along without being asked for")
    incrowd = str(folder / "venv/bin/incrowd")
    for arguments in ("--version", "--help"):
        print(run(incrowd, arguments, folder=folder).strip().splitlines()[0])
    print(json.loads(run(incrowd, *PLAN.split(), folder=folder))["plans"][0])
    for command in ("bench", "reproduce"):
        print(refused(incrowd, command, "--help", folder=folder))


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
