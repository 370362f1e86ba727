"""Commands that other packages bring, made up for the test; and those of this repository."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.check_imports import HEAVY
from tests.command import Command

ROOT = Path(__file__).parent.parent
GREET = """
import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def greet(name: str = "nobody") -> None:
    \"\"\"Say hello.\"\"\"
    print(f"hello {name}")
"""

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Install a package that plugs in commands by these entry points, and has these modules."""

    def put(entry_points: str, **modules: str) -> None:
        about = tmp_path / "greetings-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[incrowd.commands]\n{entry_points}\n")
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.syspath_prepend(tmp_path)

    return put


def test_a_plugged_in_command_is_listed_and_answers(incrowd: Command, install: Install) -> None:
    install("greet = greetings:app", greetings=GREET)
    assert re.search(r"^  greet +Say hello\.$", incrowd("--help").out, re.MULTILINE)
    assert incrowd("greet", "--name", "you").out == "hello you\n"
    assert incrowd("greet", "--nme", "you").status == 2


def test_nobody_replaces_a_command_of_ours(incrowd: Command, install: Install) -> None:
    install("plan = greetings:app", greetings=GREET)
    assert incrowd("--help").out.count("  plan ") == 1
    assert "--epsilon" in incrowd("plan", "--help").out


def test_an_entry_point_names_a_typer(incrowd: Command, install: Install) -> None:
    install("greet = greetings:app", greetings="app = 1")
    assert "an entry point names a typer.Typer" in incrowd("greet").err


@pytest.mark.slow
def test_the_commands_of_this_repository_are_plugged_in(incrowd: Command) -> None:
    listed = incrowd("--help").out
    for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["incrowd.commands"]:
        assert f"\n  {name} " in listed, "run make install: it plugs them in"
        assert f"incrowd {name} [OPTIONS]" in incrowd(name, "--help").out


def test_listing_all_commands_loads_nothing_heavy() -> None:
    script = "import sys\nfrom incrowd.cli import app\napp(['--help'], standalone_mode=False)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "reproduce" in done.stdout
    assert HEAVY & set(done.stdout.splitlines()[-1].split()) == set()
