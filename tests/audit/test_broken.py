"""Every pipeline, silo and device that is broken on purpose is caught, and the right ones pass."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from incrowd import Specification
from incrowd.audit.audit import Effort, audit_plan
from incrowd.audit.bounds import Check, Finding
from incrowd.audit.canaries import CanaryGame
from incrowd.audit.devices import audit_specification
from incrowd.audit.records import RecordGame, audit_silo
from incrowd.audit.shares import share_checks
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import ElementwiseClip, FixedClip, PerLayerClip, QuantileClip
from incrowd.privacy.plan.plan import NoiseBy, Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Schedule, constant, growing
from tests.audit.broken import LAYERS, PLANS, Breakage, ledger_believes
from tests.audit.broken_units import OTHERS
from tests.drawdiscard.mail import KEYS

BUDGET = Budget(epsilon=2.0, delta=1e-3)
EFFORT = Effort(repeats=12, seed=1)


def a_plan(kind: str) -> Plan:
    """Small plans of every kind, made anew each time: a broken one may calibrate otherwise."""
    if kind == "correlated":
        return PlanConfig.in_turns(clients=60, rounds=8, groups=4).calibrate(BUDGET)
    clips = {
        "layers": PerLayerClip(clip_norms=(0.5, 0.2), parts=LAYERS),
        "elementwise": ElementwiseClip(limit=0.1, size=2_000),
        "fixed clip": FixedClip(clip_norm=0.7),
        "quantile": QuantileClip(clip_norm=0.5, bit_noise=4.0),
    }
    given = {"clip": clips[kind]} if kind in clips else {}
    schedule: Schedule = constant(rounds=6, cohort=20 if kind in ("fixed", "poisson", "quantile") else 60)
    if kind == "growing":
        schedule = growing(rounds=6, first_cohort=5, last_cohort=20, steps=2)
    sampling = {"fixed": FixedSize, "poisson": Poisson, "growing": Poisson, "quantile": Poisson}.get(kind, Everyone)
    noise_by = "party" if kind == "local" else "server"
    config = PlanConfig(members=60, schedule=schedule, sampling=sampling, noise_by=noise_by, **given)  # type: ignore[arg-type]  # by name
    return config.calibrate(BUDGET)


def shared_plan(parties: int) -> Plan:
    config = PlanConfig(
        members=parties,
        schedule=constant(rounds=3, cohort=parties),
        sampling=Everyone,
        noise_by="parties",
        colluders=2,
        clip=FixedClip(clip_norm=0.7),
    )
    return config.calibrate(BUDGET)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in PLANS.values()}))
def test_a_right_pipeline_passes(kind: str) -> None:
    found = audit_plan(a_plan(kind), BUDGET, effort=EFFORT)
    assert found.violations == ()
    assert found.holds


@pytest.mark.parametrize("parties", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_right_shares_of_noise_pass(parties: int) -> None:
    found = audit_plan(shared_plan(parties), BUDGET, effort=Effort(repeats=3, seed=1))
    assert found.violations == ()
    assert len(found.findings) == 2  # a server's view, and that with colluders


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_broken_pipeline_is_caught(name: str) -> None:
    kind, breakage, witness = PLANS[name]
    with ledger_believes(), breakage():
        found = audit_plan(a_plan(kind), BUDGET, effort=EFFORT)
    assert not found.holds
    assert any(witness in violation for violation in found.violations), found.violations


Found = tuple[Sequence[Finding], Sequence[Check]]


def silo() -> Found:
    config = PlanConfig.of_records(records=100, rounds=2, batch_size=25, epochs=1, clip_norm=0.7)
    game = RecordGame(name="ward", plan=config.calibrate(Budget(epsilon=2.0, delta=1e-4)))
    return audit_silo(game, trials=1_500, seed=3)


def sums(*, noise_by: NoiseBy = "server", colluding: bool = False) -> Found:
    parties, colluders = (5, 2) if noise_by == "parties" else (None, None)
    config = PlanConfig(
        members=100,
        schedule=constant(rounds=8, cohort=25.0),
        unit="record",
        noise_by=noise_by,
        clip=FixedClip(clip_norm=0.7),
        parties=parties,
        colluders=colluders,
    )
    plan = config.calibrate(Budget(epsilon=2.0, delta=1e-4))
    return audit_silo(RecordGame(name="all silos", plan=plan, colluding=colluding), trials=1_500, seed=3)


def device(**keys: object) -> Found:
    asked = Specification.from_formula("opened ~ sender * words", **{**KEYS, **keys})
    return audit_specification(asked, trials=1_500, seed=3)


ATTACKED: dict[str, Callable[[], Found]] = {
    "silo": silo,
    "sums": sums,
    "shared sums": partial(sums, noise_by="parties"),
    "sums seen by colluders": partial(sums, noise_by="parties", colluding=True),
    "whole": device,
    "numbers": partial(device, bound="element"),
    "feature": partial(device, bound="element", privacy="feature"),
    "gaussian": partial(device, noise="gaussian", delta=1e-6),
    "direction": partial(device, noise="direction", bound="norm", largest=None),
    "shares": lambda: ((), share_checks(shared_plan(5), seed=1)),
}


def broken(attacked: str) -> list[str]:
    findings, checks = ATTACKED[attacked]()
    return [one.attack for one in findings if not one.holds] + [one.name for one in checks if not one.holds]


@pytest.mark.slow
@pytest.mark.parametrize("attacked", ATTACKED)
def test_right_silos_and_devices_pass(attacked: str) -> None:
    assert broken(attacked) == []


@pytest.mark.parametrize(
    ("attacked", "breakage", "witness"),
    [
        pytest.param(attacked, *rest, id=f"{attacked}: {name}", marks=[] if attacked == "shares" else pytest.mark.slow)
        for attacked, name, *rest in OTHERS
    ],
)
def test_broken_silos_devices_and_shares_are_caught_by_name(attacked: str, breakage: Breakage, witness: str) -> None:
    with breakage():
        found = broken(attacked)
    assert any(witness in one for one in found), found


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "at_least"), [(0.5, -1.0), (2.0, 1.2), (4.0, 2.0)])
def test_most_of_what_a_named_direction_may_tell_is_found(epsilon: float, at_least: float) -> None:
    (finding,), _ = device(epsilon=epsilon, noise="direction", bound="norm", largest=None)
    assert at_least < finding.lower_bound <= epsilon


@pytest.mark.parametrize("kind", ["elementwise", "layers"])
def test_canaries_are_at_right_angles_where_each_number_or_layer_has_a_bound(kind: str) -> None:
    game = CanaryGame(plan=a_plan(kind))
    clipped = np.array([game.clip.clip(row[None])[0] for row in game.directions])  # type: ignore[union-attr]  # no median
    apart = clipped @ clipped.T / np.linalg.norm(clipped, axis=1) ** 2
    assert np.allclose(apart, np.eye(game.canaries), atol=1e-9)
    assert np.linalg.norm(clipped[0]) == pytest.approx(game.clip.clip_norm * game.reach, rel=1e-6)  # type: ignore[union-attr]  # as above


@pytest.mark.slow
def test_where_every_number_has_a_limit_canaries_are_many_and_as_good_as_one() -> None:
    """Signs at right angles: what each finds is what one alone would, and 32 are found at a time."""
    game = CanaryGame(plan=a_plan("elementwise"))
    assert game.canaries == 32
    found = audit_plan(game.plan, BUDGET, effort=Effort(canaries=4_000, seed=1))
    assert found.violations == ()
    assert found.best is not None
    assert found.best.trials == 4_000
    assert 2.0 / 2 < found.best.lower_bound <= 2.0
