"""The command line: each command parses, calls one function, and prints.

With `--json` a command prints one JSON object on standard output and nothing else there. Exit status: 0 done, 1 failed,
2 wrong use, 3 stopped because the budget does not allow it.
"""

import sys
import warnings
from typing import Annotated

import typer
import typer.core

from incrowd import __version__
from incrowd.cli import devices, ledger, parties, plan, results, train
from incrowd.cli._main import Commands, finished
from incrowd.cli._options import Json, need_training, numbers, whole_numbers, words
from incrowd.cli._output import print_facts, print_json, print_table, short

__all__ = [
    "Json",
    "app",
    "main",
    "need_training",
    "numbers",
    "print_facts",
    "print_json",
    "print_table",
    "short",
    "whole_numbers",
    "words",
]
"""The command line, and the helpers for plugged-in commands."""

typer.core.HAS_RICH = False  # typer escapes brackets in help for markup, although this help has none
app = typer.Typer(
    name="incrowd",
    help="Differentially private federated learning: plan it, run it, check what was spent.\n\nExample: incrowd train",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for commands in (plan.app, train.app, results.app, devices.app):
    app.add_typer(commands)
_GROUPS = {"ledger": ledger.app, "privacy": plan.privacy, "ddml": devices.ddml}
for name, group in (_GROUPS | {"flower": parties.flower, "party": parties.party}).items():
    app.add_typer(group, name=name)


def main() -> None:
    """Run the command line; errors become one line and an exit status."""
    warnings.showwarning = _show_warning  # a line, where the default shows code
    sys.exit(finished(app))


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Print the version, or run a command."""
    if version:
        typer.echo(f"incrowd {__version__}")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"warning: {message}", err=True)
