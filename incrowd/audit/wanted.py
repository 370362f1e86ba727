"""What is to be audited: the settings in a file, or those of a run in a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from incrowd.audit.audit import Effort, audit_work
from incrowd.audit.finding import Audited
from incrowd.errors import ConfigError
from incrowd.privacy.plan.schedule import Schedule, Step
from incrowd.runs.build import Given
from incrowd.runs.client_work import ClientWork, assemble
from incrowd.runs.config import Config
from incrowd.runs.folder import settings_in
from incrowd.runs.results import first_state_in
from incrowd.runs.settings import read_back, settings_of, tables
from incrowd.runs.silo_config import SiloConfig


def audit(
    source: Path | None, *, overrides: Sequence[str] = (), data: Path | None = None, effort: Effort | None = None
) -> Audited:
    """Audit the settings in a file, the run in a folder, or without either the demonstration.

    Guarantee: no ledger is opened, nor looked for: what is paid for is paid for in memory.

    Edge cases: other values and another data folder are for settings, not for a run, which is as it was: refused.
    """
    effort = Effort() if effort is None else effort
    if source is not None and source.is_dir():
        if overrides or data is not None:
            remedy = "a run is audited as it was made: give its settings file to try others"
            raise ConfigError(field="set", value=list(overrides) or str(data), remedy=remedy)
        return audit_work(_of_run(source.resolve()), effort=effort)
    return audit_work(_of_settings(settings_of(tables(source, overrides=overrides, data=data))), effort=effort)


def _of_settings(config: Config | SiloConfig) -> ClientWork:
    return assemble(_of_clients(config))


def _of_run(folder: Path) -> ClientWork:
    settings: Mapping[str, Any] = settings_in(folder)
    steps = settings.get("schedule")
    return assemble(
        _of_clients(read_back(settings["config"])),
        given=Given(start=first_state_in(folder)),
        schedule=None if steps is None else Schedule(tuple(Step(**step) for step in steps)),
        chunk=settings.get("chunk"),
    )


def _of_clients(config: Config | SiloConfig) -> Config:
    if isinstance(config, Config):
        return config
    remedy = "this audit is of whole clients: leave unit out"
    raise ConfigError(field="privacy.unit", value="record", remedy=remedy)
