"""Runs of either unit, whole clients or single records, as the command line meets them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from incrowd.errors import ConfigError
from incrowd.runs.folder import settings_in
from incrowd.runs.run import Run
from incrowd.runs.settings import parse
from incrowd.runs.silo_config import SiloConfig
from incrowd.runs.silo_run import SiloRun

UNITS = ("client", "record")


def create(tables: Mapping[str, Any], folder: Path) -> Run | SiloRun:
    """A new run of what TOML tables spell: `privacy.unit` says who is protected, "client" unless it is given."""
    return (
        SiloRun.create(parse(tables, SiloConfig), folder) if of_records(tables) else Run.create(parse(tables), folder)
    )


def reopen(folder: Path) -> Run | SiloRun:
    """The run in a folder, of whichever unit it is. Edge cases: no run there, or one that was never begun: refused."""
    return SiloRun.open(folder) if of_records(settings_in(folder)["config"]) else Run.open(folder)


def of_records(tables: Mapping[str, Any]) -> bool:
    """Whether single records are protected. Edge cases: no known unit: `ConfigError`."""
    privacy = tables.get("privacy")
    unit = privacy.get("unit", "client") if isinstance(privacy, Mapping) else "client"
    if unit not in UNITS:
        raise ConfigError(field="privacy.unit", value=unit, remedy=f"choose from {' or '.join(UNITS)}")
    return bool(unit == "record")
