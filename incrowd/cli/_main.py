"""Find the command, run it, and turn errors into one line on standard error and an exit status.

Other packages plug in commands by entry points of the group `incrowd.commands`; each names a `typer.Typer`. A wheel
carries the names of this repository's commands without their packages, to say where they are.
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
    """Run the command line; the exit status. Whatever a user can mend is one line, which says how."""
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
        return _say(_of_system(error), FAILED)
    except sqlite3.OperationalError as error:
        return _say(f"a database cannot be written: {error}; see to the disk, then do the same again", FAILED)
    return status if isinstance(status, int) else DONE


def _say(line: str, status: int) -> int:
    typer.echo("incrowd: " + " ".join(line.splitlines()), err=True)
    return status


def _of_system(error: OSError) -> str:
    """What the operating system refused, of which file."""
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{error.strerror or error}; nothing that was paid for is lost: mend it, then do the same again"


def _parser_error(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        _say(_usage(error), error.exit_code)
    return int(error.exit_code)


def _usage(error: Any) -> str:
    """What is wrong with the words of a command, and where to look."""
    context = getattr(error, "ctx", None)
    command = "incrowd" if context is None else context.command_path
    help_ = f"see {command} --help"
    kind, parameter = type(error).__name__, getattr(error, "param", None)
    if kind == "NoSuchOption":
        return f"{error.option_name}: {command} has no such option; {_other(error, context) or help_}"
    if kind == "MissingParameter":
        return f"{_named(parameter)} is missing: state it; {help_}"
    if parameter is not None:
        return f"{_named(parameter)}: {error.message.rstrip('.')}; {help_}"
    return f"{error.message.rstrip('.')}; {help_}"


def _named(parameter: Any) -> str:
    if parameter is None:
        return "an argument"
    return str(
        parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name.upper()
    )


def _other(error: Any, context: Any) -> str | None:
    """What may have been meant: a setting of this name, or an option like it."""
    name = error.option_name.lstrip("-").replace("-", "_")
    takes_settings = context is not None and any("--set" in each.opts for each in context.command.params)
    keys = _keys_like(name) if takes_settings else []
    if keys:
        return f"it is a setting: --set {keys[0]}=VALUE"
    near = difflib.get_close_matches(name, [each.lstrip("-") for each in error.possibilities or ()], n=1)
    return f"did you mean --{near[0]}?" if near else None


def _keys_like(name: str) -> list[str]:
    """The settings of this name; those of the promise come first."""
    from incrowd.runs.config import Config
    from incrowd.settings import known_keys

    keys = {key for key in known_keys(Config) if key == name or key.rpartition(".")[2] == name}
    return sorted((key for key in keys if "." in key), key=lambda key: (not key.startswith("privacy."), key))


_A_MOMENT = 0.01  # seconds


@contextmanager
def again_where_dropped() -> Iterator[None]:
    """Python drops an interruption that is raised in a finalizer: it comes once more a moment later, without a word.

    Edge cases: Python prints other errors in finalizers, as ever.
    """
    told = sys.unraisablehook

    def dropped(what: "sys.UnraisableHookArgs") -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            threading.Timer(_A_MOMENT, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            told(what)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = told


# Typer 0.29 holds its own copy of click, and the typer that flwr requires imports click: neither is imported here.
Command = Any
Context = Any

GROUP = "incrowd.commands"


class Commands(TyperGroup):
    """Our own commands, and after them those that were plugged in. Nobody can replace one of ours."""

    def list_commands(self, ctx: Context) -> list[str]:
        """The names of all commands, ours first."""
        own = super().list_commands(ctx)
        return [*own, *sorted({point.name for point in entry_points(group=GROUP)} - set(own))]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """The command of this name; None where there is none."""
        own = super().get_command(ctx, cmd_name)
        plugged = [] if own is not None else entry_points(group=GROUP, name=cmd_name)
        return next(map(loaded, plugged), own)


def loaded(point: EntryPoint) -> Command:
    """The command that an entry point names; where its package is missing, one that says how to get it."""
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
    """A hidden command, whatever follows it."""

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
