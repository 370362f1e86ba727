"""What is to be audited: the settings in a file, a specification, or the settings of a run in a folder."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

from incrowd.audit.audit import Effort, audit_work
from incrowd.audit.devices import audit_specification
from incrowd.audit.finding import Audited
from incrowd.audit.silos import audit_silos
from incrowd.drawdiscard.specification import Specification, read_specification
from incrowd.errors import ConfigError
from incrowd.runs.config import Config, read_back, tables
from incrowd.runs.folder import settings_in
from incrowd.runs.recipes import config_of
from incrowd.runs.run import reopened
from incrowd.runs.work import ClientWork, assemble

_RECORDS, _FEW_RECORDS = 5_000, 1_000
_CONTRIBUTIONS, _FEW_CONTRIBUTIONS = 20_000, 4_000


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
        return _devices(read_specification(source), effort=effort)
    config = config_of(tables(source, overrides=overrides, data=data))
    return _of_config(config, effort)


def _of_config(config: Config, effort: Effort) -> Audited:
    if config.of_records:
        return _records(config, effort=effort)
    return audit_work(assemble(config), effort=effort)


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
    settings = settings_in(folder)
    config = read_back(settings["config"])
    if config.of_records:
        return _of_config(config, effort)
    work = reopened(settings, config, folder)
    assert isinstance(work, ClientWork)  # noqa: S101 - whole clients have no other
    return audit_work(work, effort=effort)


def _records(config: Config, *, effort: Effort) -> Audited:
    """Attack each silo of some settings on canary records; no record is read, and no ledger opened."""
    trials = effort.canaries or (_FEW_RECORDS if effort.quick else _RECORDS)
    findings, checks, games = audit_silos(config, trials=trials, seed=effort.seed)
    names = ", ".join(game.name for game in games)
    return Audited(
        claimed=max([0.0, *(finding.claimed or 0.0 for finding in findings)]),
        delta=config.privacy.delta,
        findings=tuple(findings),
        checks=tuple(checks),
        settings={
            "unit": "record",
            "rounds": config.privacy.rounds,
            "seed": effort.seed,
        },
        notes=(f"attacked: {names}; silos whose plans are equal are attacked once",),
    )


def _devices(asked: Specification, *, effort: Effort) -> Audited:
    """Attack one contribution to a specification."""
    trials = effort.canaries or (_FEW_CONTRIBUTIONS if effort.quick else _CONTRIBUTIONS)
    findings, checks = audit_specification(asked, trials=trials, seed=effort.seed)
    return Audited(
        claimed=asked.epsilon,
        delta=asked.delta or 0.0,
        findings=tuple(findings),
        checks=tuple(checks),
        settings={
            "unit": "contribution",
            "weights": asked.size,
            "privacy": asked.privacy,
            "bound": asked.bound,
            "noise": asked.noise,
            "seed": effort.seed,
        },
        notes=("epsilon is that of one contribution; a device's budget limits how many it makes",),
    )
