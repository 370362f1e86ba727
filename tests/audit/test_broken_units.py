"""Every silo and every device that is broken on purpose is caught, and the right ones pass."""

import pytest

from incrowd import Specification
from incrowd.audit.audit import Effort, audit_plan
from incrowd.audit.bounds import Check, Finding
from incrowd.audit.devices import audit_specification
from incrowd.audit.shares import share_checks
from incrowd.audit.silos import SiloGame, SumsGame, audit_silo
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import NoiseBy, Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from tests.audit.broken_units import DEVICES, RECORDS, SHARES, SUMS, share_is
from tests.drawdiscard.mail import KEYS

SPECIFICATIONS: dict[str, dict[str, object]] = {
    "whole": {},
    "numbers": {"bound": "element"},
    "feature": {"bound": "element", "privacy": "feature"},
    "gaussian": {"noise": "gaussian", "delta": 1e-6},
}


def silo() -> list[Finding | Check]:
    config = PlanConfig.of_records(records=100, rounds=2, batch_size=25, epochs=1, clip_norm=0.7)
    game = SiloGame(name="ward", plan=config.calibrate(Budget(epsilon=2.0, delta=1e-4)))
    findings, checks = audit_silo(game, trials=1_500, seed=3)
    return [*findings, *checks]


def sums(*, noise_by: NoiseBy = "server", colluding: bool = False) -> list[Finding | Check]:
    sharing = (5, 2) if noise_by == "parties" else (None, None)
    config = PlanConfig(
        members=100,
        schedule=constant(rounds=8, cohort=25.0),
        unit="record",
        noise_by=noise_by,
        clip=FixedClip(clip_norm=0.7),
        parties=sharing[0],
        colluders=sharing[1],
    )
    plan = config.calibrate(Budget(epsilon=2.0, delta=1e-4))
    game = SumsGame(name="all silos", plan=plan, colluding=colluding)
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


def shared_plan(parties: int) -> Plan:
    config = PlanConfig(
        members=parties,
        schedule=constant(rounds=3, cohort=parties),
        sampling=Everyone,
        noise_by="parties",
        colluders=2,
        clip=FixedClip(clip_norm=0.7),
    )
    return config.calibrate(Budget(epsilon=2.0, delta=1e-3))


@pytest.mark.parametrize("parties", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_right_shares_of_noise_pass(parties: int) -> None:
    plan = shared_plan(parties)
    found = audit_plan(plan, plan.budget, effort=Effort(repeats=3, seed=1))
    assert found.violations == ()
    assert len(found.findings) == 2  # a server's view, and that with colluders


@pytest.mark.parametrize("name", [*SHARES][:6] + [pytest.param(name, marks=pytest.mark.slow) for name in [*SHARES][6:]])
def test_broken_shares_and_masks_are_caught_by_name(name: str) -> None:
    breakage, witness = SHARES[name]
    with breakage():
        found = broken([*share_checks(shared_plan(5), seed=1)])
    assert any(witness in one for one in found), found


@pytest.mark.slow
@pytest.mark.parametrize("colluding", [False, True])
def test_right_sums_of_silos_that_share_the_noise_pass(colluding: bool) -> None:
    assert broken(sums(noise_by="parties", colluding=colluding)) == []
    with share_is(0.8)():
        assert any("noise of the steps" in one for one in broken(sums(noise_by="parties", colluding=colluding)))
