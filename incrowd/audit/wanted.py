"""What is to be audited: the settings in a file, a specification, or the settings of a run in a folder."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from incrowd.audit.audit import Effort, audit_work
from incrowd.audit.finding import Audited
from incrowd.audit.units import audit_devices, audit_records
from incrowd.drawdiscard.specification_file import read_specification
from incrowd.errors import ConfigError
from incrowd.privacy.plan.schedule import Schedule, Step
from incrowd.runs.build import Given
from incrowd.runs.client_work import ClientWork, assemble
from incrowd.runs.config import Config
from incrowd.runs.folder import settings_in
from incrowd.runs.recipes import config_of
from incrowd.runs.results import first_state_in
from incrowd.runs.settings import read_back, tables
from incrowd.runs.silo_config import SiloConfig


def audit(
    source: Path | None, *, overrides: Sequence[str] = (), data: Path | None = None, effort: Effort | None = None
) -> Audited:
    """Audit the settings in a file, the run in a folder, or without either the demonstration.

    Guarantee: no ledger is opened, nor looked for: what is paid for is paid for in memory.

    A specification of draw and discard is known by its fields.

    Edge cases: other values and another data folder are for settings, not for a run, which is as it was: refused.
    """
    effort = Effort() if effort is None else effort
    if source is not None and source.is_dir():
        if overrides or data is not None:
            remedy = "a run is audited as it was made: give its settings file to try others"
            raise ConfigError(field="set", value=list(overrides) or str(data), remedy=remedy)
        return _of_run(source.resolve(), effort)
    if source is not None and _is_specification(source):
        if overrides or data is not None:
            remedy = "a specification is audited as it is: these are for settings of runs"
            raise ConfigError(field="set", value=list(overrides) or str(data), remedy=remedy)
        if effort.membership:
            remedy = "devices are told apart by what they send, not by what a model says of them: leave it out"
            raise ConfigError(field="membership", value="contribution", remedy=remedy)
        _only_clients(effort)
        return audit_devices(read_specification(source), effort=effort)
    config = config_of(tables(source, overrides=overrides, data=data))
    return _of_config(config, effort)


def _of_config(config: Config | SiloConfig, effort: Effort) -> Audited:
    if isinstance(config, SiloConfig):
        _only_clients(effort)
        return audit_records(config, effort=effort)
    return audit_work(assemble(config), effort=effort)


def _only_clients(effort: Effort) -> None:
    if effort.among is not None:
        remedy = "canaries are hidden among whole clients alone: leave it out"
        raise ConfigError(field="among", value=effort.among, remedy=remedy)


def _is_specification(path: Path) -> bool:
    """Whether a file asks something of devices, rather than of clients: it has fields."""
    if not path.is_file():
        return False
    try:
        text = path.read_text(encoding="utf-8")
        keys = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(keys, dict) and "fields" in keys


def _of_run(folder: Path, effort: Effort) -> Audited:
    settings: Mapping[str, Any] = settings_in(folder)
    config = read_back(settings["config"])
    if isinstance(config, SiloConfig):
        return _of_config(config, effort)
    return audit_work(_work(settings, folder, config), effort=effort)


def _work(settings: Mapping[str, Any], folder: Path, config: Config) -> ClientWork:
    steps = settings.get("schedule")
    return assemble(
        config,
        given=Given(start=first_state_in(folder)),
        schedule=None if steps is None else Schedule(tuple(Step(**step) for step in steps)),
        chunk=settings.get("chunk"),
    )
