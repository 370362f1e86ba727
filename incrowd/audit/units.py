"""The audits of settings whose unit is not a client: silos, which protect records, and devices of draw and discard."""

from incrowd.audit.audit import Effort
from incrowd.audit.devices import audit_specification
from incrowd.audit.finding import Audited
from incrowd.audit.membership import FEW_MODELS, MODELS
from incrowd.audit.record_membership import record_membership
from incrowd.audit.silos import audit_silos
from incrowd.drawdiscard.specification import Specification
from incrowd.runs.silo_build import assemble_silos
from incrowd.runs.silo_config import SiloConfig

_RECORDS, _FEW_RECORDS = 5_000, 1_000
_CONTRIBUTIONS, _FEW_CONTRIBUTIONS = 20_000, 4_000


def audit_records(config: SiloConfig, *, effort: Effort) -> Audited:
    """Attack each silo of some settings on canary records; with `membership` also their released model.

    Guarantee: records are trained on only if they are public and `membership` is set; no ledger is opened.
    """
    trials = effort.canaries or (_FEW_RECORDS if effort.quick else _RECORDS)
    tried = []
    if effort.membership:
        models = FEW_MODELS if effort.quick else MODELS
        tried = record_membership(assemble_silos(config), models=models, seed=effort.seed)
    findings, checks, plans = audit_silos(config, trials=trials, seed=effort.seed)
    names = ", ".join(plan.name for plan in plans)
    return Audited(
        claimed=max([0.0, *(finding.claimed or 0.0 for finding in findings)]),
        delta=config.privacy.delta,
        findings=(*findings, *tried),
        checks=tuple(checks),
        settings={
            "unit": "record",
            "engine": config.local.engine,
            "rounds": config.privacy.rounds,
            "seed": effort.seed,
        },
        notes=(f"attacked: {names}; silos whose plans are equal are attacked once",),
    )


def audit_devices(asked: Specification, *, effort: Effort) -> Audited:
    """Attack one contribution to a specification, and a device's memory and limits."""
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
