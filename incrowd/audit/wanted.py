"""What is to be audited: the settings in a file, those of a run in a folder, or a draw-and-discard specification."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from incrowd.audit.audit import CONFIDENCE, Effort, audit_plan, audit_work
from incrowd.audit.finding import Audited
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.schedule import Schedule, Step
from incrowd.runs.build import NOTHING, Given
from incrowd.runs.client_work import assemble
from incrowd.runs.config import Config
from incrowd.runs.folder import settings_in
from incrowd.runs.results import first_state_in
from incrowd.runs.settings import read_back, settings_of, tables
from incrowd.runs.silo_config import SiloConfig


def audit(
    source: Path | None, *, overrides: Sequence[str] = (), data: Path | None = None, effort: Effort | None = None
) -> Audited:
    """Audit the settings in a file, the run in a folder, a specification, or without any of them the demonstration.

    Guarantee: no ledger is opened, nor looked for: what is paid for is paid for in memory, or in a folder that is
    removed.

    Edge cases: other values and another data folder are for settings; a run and a specification are as they are, and
    refuse them.
    """
    effort = Effort() if effort is None else effort
    of_run, specified = source is not None and source.is_dir(), source is not None and _is_specification(source)
    if (of_run or specified) and (overrides or data is not None):
        remedy = "it is audited as it was made: give a settings file to try other values"
        raise ConfigError(field="set", value=list(overrides) or str(data), remedy=remedy)
    if source is not None and specified:
        return _of_specification(source, effort)
    if source is not None and of_run:
        settings: Mapping[str, Any] = settings_in(source.resolve())
        return _of_settings(read_back(settings["config"]), effort, made_with=settings, folder=source.resolve())
    return _of_settings(settings_of(tables(source, overrides=overrides, data=data)), effort)


def _of_settings(
    config: Config | SiloConfig,
    effort: Effort,
    *,
    made_with: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Audited:
    if isinstance(config, SiloConfig):
        return _of_silos(config, effort)
    made = {} if made_with is None else made_with
    steps = made.get("schedule")
    work = assemble(
        config,
        given=NOTHING if folder is None else Given(start=first_state_in(folder)),
        schedule=None if steps is None else Schedule(tuple(Step(**step) for step in steps)),
        chunk=made.get("chunk"),
    )
    return audit_work(work, effort=effort)


def _of_silos(config: SiloConfig, effort: Effort) -> Audited:
    """Each silo's promise to its records; and to whole silos, where there is one."""
    from incrowd.audit.silos import audit_silos
    from incrowd.runs.silo_build import assemble_silos

    findings, checks, plans = audit_silos(config, trials=effort.trials, seed=effort.seed, confidence=CONFIDENCE)
    if config.privacy.clients is not None:
        wanted, clients = config.privacy.clients, assemble_silos(config).clients
        if clients is not None:
            found = audit_plan(clients, Budget(epsilon=wanted.epsilon, delta=wanted.delta), effort=effort)
            findings, checks = [*findings, *found.findings], [*checks, *found.checks]
    return Audited(
        claimed=max((each.claimed for each in findings if each.claimed is not None), default=None),
        delta=config.privacy.delta,
        findings=tuple(findings),
        checks=tuple(checks),
        settings={"unit": "record", "silos": [plan.name for plan in plans], "seed": effort.seed},
        notes=("of silos with equal plans, one was attacked",),
    )


def _of_specification(source: Path, effort: Effort) -> Audited:
    """One contribution of a device."""
    from incrowd.audit.devices import audit_specification
    from incrowd.drawdiscard.specification_file import read_specification

    asked = read_specification(source)
    findings, checks = audit_specification(asked, trials=effort.trials, seed=effort.seed, confidence=CONFIDENCE)
    return Audited(
        claimed=max((each.claimed for each in findings if each.claimed is not None), default=None),
        delta=findings[0].delta,
        findings=tuple(findings),
        checks=tuple(checks),
        settings={"unit": "contribution", "specification": source.name, "seed": effort.seed},
    )


def _is_specification(source: Path) -> bool:
    """Whether a file asks devices rather than clients: it is JSON, or states a formula or a response."""
    if source.suffix == ".json":
        return True
    try:
        keys = tomllib.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # whoever reads settings says what is wrong with it
    return "formula" in keys or "response" in keys
