"""Find and run a command; an error becomes one line on standard error and an exit status.

Other packages plug in commands by entry points of the group `incrowd.commands`; each names a `typer.Typer`. A wheel
names this repository's other commands, and says how to get them.
"""

import difflib
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from incrowd._lazy import check_platform
from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError

DONE, FAILED, WRONG_USE, NO_BUDGET = 0, 1, 2, 3
_STATUS = {ConfigError: WRONG_USE, DataError: WRONG_USE, BudgetExceeded: NO_BUDGET}

# The parser's errors are click's, or those of the copy that newer releases of typer hold: a public one names the base.
_ParserError: type[Exception] = typer.BadParameter.__mro__[2]


def finished(app: typer.Typer) -> int:
    """Run the command line, and return its exit status; an error is one line with its remedy."""
    try:
        check_platform()
        status = app(standalone_mode=False, prog_name="incrowd")
    except _ParserError as error:
        return _parser_error(error)
    except typer.Abort:
        return _say("stopped", FAILED)
    except IncrowdError as error:
        return _say(str(error), next((status for kind, status in _STATUS.items() if isinstance(error, kind)), FAILED))
    except OSError as error:
        file = "" if error.filename is None else f"{error.filename}: "
        remedy = "nothing that was paid for is lost: mend it, then do the same again"
        return _say(f"{file}{error.strerror or error}; {remedy}", FAILED)
    except sqlite3.OperationalError as error:
        return _say(f"a database cannot be written: {error}; see to the disk, then do the same again", FAILED)
    return status if isinstance(status, int) else DONE


def _say(line: str, status: int) -> int:
    typer.echo("incrowd: " + " ".join(line.splitlines()), err=True)
    return status


def _parser_error(error: Any) -> int:
    """Say in a line which option or argument is wrong, and where to look."""
    kind, context, parameter = type(error).__name__, getattr(error, "ctx", None), getattr(error, "param", None)
    command = "incrowd" if context is None else context.command_path
    help_, message = f"see {command} --help", error.message.rstrip(".")
    if kind == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    if kind == "NoSuchOption":
        message = f"{error.option_name}: {command} has no such option; {_similar(error, context) or help_}"
    elif kind == "MissingParameter":
        message = f"{_named(parameter)} is missing: state it; {help_}"
    else:
        message = f"{message if parameter is None else f'{_named(parameter)}: {message}'}; {help_}"
    return _say(message, int(error.exit_code))


def _named(parameter: Any) -> str:
    if parameter is None:
        return "an argument"
    is_option = parameter.param_type_name == "option"
    return str(parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper())


def _similar(error: Any, context: Any) -> str | None:
    """Suggest a setting of this name, those of privacy first, or an option like it."""
    name = error.option_name.lstrip("-").replace("-", "_")
    if context is not None and any("--set" in each.opts for each in context.command.params):
        from incrowd.runs.config import Config
        from incrowd.settings import known_keys

        keys = [key for key in known_keys(Config) if "." in key and name in (key, key.rpartition(".")[2])]
        if keys:
            return f"it is a setting: --set {min(keys, key=lambda key: (not key.startswith('privacy.'), key))}=VALUE"
    near = difflib.get_close_matches(name, [each.lstrip("-") for each in error.possibilities or ()], n=1)
    return f"did you mean --{near[0]}?" if near else None


@contextmanager
def again_where_dropped() -> Iterator[None]:
    """Interrupt once more, a moment later, after Python dropped an interruption that a finalizer raised."""
    before = sys.unraisablehook

    def dropped(error: "sys.UnraisableHookArgs") -> None:
        if issubclass(error.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(error)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = before


# Typer 0.29 holds its own copy of click, and the typer that flwr requires imports click: neither is imported here.
Command = Any
Context = Any

GROUP = "incrowd.commands"


class Commands(TyperGroup):
    """Our own commands, and after them the plugged-in ones, which cannot replace ours."""

    def list_commands(self, ctx: Context) -> list[str]:
        """The names of all commands, ours first."""
        own = super().list_commands(ctx)
        return [*own, *sorted({point.name for point in entry_points(group=GROUP)} - set(own))]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """The command of this name, or None."""
        own = super().get_command(ctx, cmd_name)
        plugged = [] if own is not None else entry_points(group=GROUP, name=cmd_name)
        return next(map(loaded, plugged), own)


def loaded(point: EntryPoint) -> Command:
    """Load the command of an entry point; a missing package gives a command that says how to get it."""
    try:
        app = point.load()
    except ModuleNotFoundError as error:
        if error.name is None or not f"{point.module}.".startswith(f"{error.name}."):
            raise
        return _missing(point)
    if not isinstance(app, typer.Typer):
        raise ConfigError(field=GROUP, value=point.value, remedy="an entry point names a typer.Typer")
    return get_command(app)


def _missing(point: EntryPoint) -> Command:
    def say() -> None:
        remedy = "it comes with the repository: clone it and run make install there"
        raise ConfigError(field="command", value=point.name, remedy=remedy)

    return TyperCommand(
        point.name,
        callback=say,
        hidden=True,
        help="Comes with the repository, not with the wheel.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        add_help_option=False,
    )
