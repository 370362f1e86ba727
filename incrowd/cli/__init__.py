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
from incrowd.cli import (
    audit,
    contribute,
    ddml,
    evaluate,
    flower,
    folders,
    init,
    ledger,
    party,
    plan,
    predict,
    privacy,
    report,
    serve,
    sweep,
    train,
    watch,
)
from incrowd.cli._options import Json, need_training, numbers, whole_numbers, words
from incrowd.cli._plugins import Commands
from incrowd.cli._print import print_facts, print_json, print_table, short
from incrowd.cli._stopped import finished

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
"""The command line itself, and what a command that is plugged in needs to look like one of ours."""

typer.core.HAS_RICH = False  # typer escapes brackets in help for markup, although this help has none
app = typer.Typer(
    name="incrowd",
    help="Differentially private federated learning: plan it, run it, check what was spent.\n\nExample: incrowd train",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_TOP = (
    plan.app,
    init.app,
    train.app,
    folders.app,
    predict.app,
    evaluate.app,
    report.app,
    watch.app,
    sweep.app,
    serve.app,
    contribute.app,
    audit.app,
)
for commands in _TOP:
    app.add_typer(commands)
_GROUPS = {
    "ledger": ledger.app,
    "privacy": privacy.app,
    "ddml": ddml.app,
    "flower": flower.app,
    "party": party.app,
}
for name, group in _GROUPS.items():
    app.add_typer(group, name=name)


def main() -> None:
    """Run the command line; errors become one line and an exit status."""
    warnings.showwarning = _show_warning  # a line, where the default shows code
    sys.exit(finished(app))


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Differentially private federated learning: plan it, run it, check what was spent.

    Example: incrowd train
    """
    if version:
        typer.echo(f"incrowd {__version__}")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"warning: {message}", err=True)
