"""Writes the `--help` of every command into docs/cli.md; `--check` only says whether that would change anything.

The page has a fence for each command, which begins with `$ incrowd COMMAND --help`. What stands between the fences is
written by hand and stays.
"""

import re
import sys
from collections.abc import Iterator

from click import Command, Context, Group
from typer.main import get_command
from typer.testing import CliRunner

from incrowd.cli import app
from scripts._common import ROOT, finish

PAGE = ROOT / "docs/cli.md"
FENCE = re.compile(r"```text\n\$ (?P<command>incrowd.*?) --help\n.*?```\n", re.DOTALL)
SECTION = "\n## `{command}`\n\n{fence}"


def updated(page: str, helps: dict[str, str]) -> str:
    """The page with the present help in each fence, none of a removed command, and a section for each new one."""
    known = {match["command"] for match in FENCE.finditer(page)}
    page = FENCE.sub(lambda match: _fence(match["command"], helps) if match["command"] in helps else "", page)
    new = (SECTION.format(command=command, fence=_fence(command, helps)) for command in helps if command not in known)
    return page + "".join(new)


def current_helps() -> dict[str, str]:
    """The help text of the program and of every command, by the words that call it."""
    return {" ".join(("incrowd", *words)): _help(words) for words in _commands(get_command(app), ())}


def _commands(command: Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, Group):
        context = Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _commands(child, (*words, name))


def _help(words: tuple[str, ...]) -> str:
    # A fixed width, whatever terminal this runs in.
    result = CliRunner().invoke(app, [*words, "--help"], prog_name="incrowd", env={"COLUMNS": "100", "NO_COLOR": "1"})
    return "\n".join(line.rstrip() for line in result.output.strip("\n").splitlines())


def _fence(command: str, helps: dict[str, str]) -> str:
    return f"```text\n$ {command} --help\n{helps[command]}\n```\n"


def main(*, check: bool) -> None:
    """Writes the page, or ends with status 1 when it is out of date."""
    before = PAGE.read_text(encoding="utf-8")
    after = updated(before, current_helps())
    if check:
        finish([] if before == after else [f"{PAGE.name} is out of date: run python -m scripts.cli_help"])
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main(check="--check" in sys.argv)
