"""Every silo and every device that is broken on purpose is caught, and the right ones pass."""

import pytest

from incrowd import Specification
from incrowd.audit.devices import audit_specification
from incrowd.audit.finding import Check, Finding
from incrowd.audit.silo_plays import SiloGame, SumsGame
from incrowd.audit.silos import audit_silo
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import constant
from tests.audit.broken_units import DEVICES, RECORDS, SUMS
from tests.drawdiscard.mail import KEYS

SPECIFICATIONS: dict[str, dict[str, object]] = {
    "whole": {},
    "numbers": {"bound": "element"},
    "feature": {"bound": "element", "privacy": "feature"},
    "gaussian": {"noise": "gaussian", "delta": 1e-6},
}


def silo() -> list[Finding | Check]:
    config = PlanConfig.of_records(records=100, rounds=2, batch_size=25, epochs=1, clip_norm=0.7, report_std=20.0)
    game = SiloGame(name="ward", plan=config.calibrate(Budget(epsilon=2.0, delta=1e-4)))
    findings, checks = audit_silo(game, trials=1_500, seed=3)
    return [*findings, *checks]


def sums() -> list[Finding | Check]:
    config = PlanConfig(
        members=100,
        schedule=constant(rounds=8, cohort=25.0),
        unit="record",
        noise_by="server",
        clip=FixedClip(clip_norm=0.7),
    )
    game = SumsGame(name="all silos", plan=config.calibrate(Budget(epsilon=2.0, delta=1e-4)))
    findings, checks = audit_silo(game, trials=1_500, seed=3)
    return [*findings, *checks]


def device(kind: str) -> list[Finding | Check]:
    given = Specification.from_formula("opened ~ sender * words", **{**KEYS, **SPECIFICATIONS[kind]})
    findings, checks = audit_specification(given, trials=1_500, seed=3)
    return [*findings, *checks]


def broken(found: list[Finding | Check]) -> list[str]:
    return [one.name if isinstance(one, Check) else one.attack for one in found if not one.holds]


@pytest.mark.slow
def test_a_right_silo_passes() -> None:
    assert broken(silo()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_a_broken_silo_is_caught(name: str) -> None:
    breakage, witness = RECORDS[name]
    with breakage():
        found = broken(silo())
    assert any(witness in one for one in found), found


@pytest.mark.slow
def test_right_sums_of_records_pass() -> None:
    assert broken(sums()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_broken_sums_of_records_are_caught(name: str) -> None:
    breakage, witness = SUMS[name]
    with breakage():
        found = broken(sums())
    assert any(witness in one for one in found), found


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECIFICATIONS)
def test_a_right_device_passes(kind: str) -> None:
    assert broken(device(kind)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DEVICES)
def test_a_broken_device_is_caught(name: str) -> None:
    kind, breakage, witness = DEVICES[name]
    with breakage():
        found = broken(device(kind))
    assert any(witness in one for one in found), found
