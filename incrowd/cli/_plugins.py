"""Commands that other packages bring: entry points of the group `incrowd.commands`, looked up when they are asked for.

Each names a `typer.Typer`. Those of this project come with its repository: a wheel carries their names, so that it can
say where they are, but not the packages.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from incrowd.errors import ConfigError

# Typer 0.29 holds its own copy of click, and the typer that flwr asks for imports click: neither is imported here.
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
