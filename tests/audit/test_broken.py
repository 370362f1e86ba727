"""Every pipeline that is broken on purpose is caught, and the right ones pass."""

import numpy as np
import pytest

from incrowd.audit.audit import Effort, audit_plan
from incrowd.audit.canaries import CanaryGame
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import ElementwiseClip, FixedClip, PerLayerClip, QuantileClip
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Schedule, constant, growing
from tests.audit.broken import BROKEN, LAYERS, ledger_believes

BUDGET = Budget(epsilon=2.0, delta=1e-3)
EFFORT = Effort(repeats=12, seed=1)


def a_plan(kind: str) -> Plan:
    """Small plans of every kind, made anew each time: a broken one may calibrate otherwise."""
    if kind == "correlated":
        return PlanConfig.in_turns(clients=60, rounds=8, groups=4).calibrate(BUDGET)
    schedule: Schedule = constant(
        rounds=6, cohort=60 if kind in ("everyone", "local", "fixed clip", "layers", "elementwise") else 20
    )
    given: dict[str, object] = {}
    if kind == "growing":
        schedule = growing(rounds=6, first_cohort=5, last_cohort=20, steps=2)
    if kind == "layers":
        given["clip"] = PerLayerClip(clip_norms=(0.5, 0.2), parts=LAYERS)
    if kind == "elementwise":
        given["clip"] = ElementwiseClip(limit=0.1, size=2_000)
    if kind == "fixed clip":
        given["clip"] = FixedClip(clip_norm=0.7)
    if kind == "quantile":
        given["clip"] = QuantileClip(clip_norm=0.5, bit_noise=4.0)
    sampling = {"fixed": FixedSize, "poisson": Poisson, "growing": Poisson, "quantile": Poisson}.get(kind, Everyone)
    noise_by = "party" if kind == "local" else "server"
    config = PlanConfig(members=60, schedule=schedule, sampling=sampling, noise_by=noise_by, **given)  # type: ignore[arg-type]  # by name
    return config.calibrate(BUDGET)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in BROKEN.values()}))
def test_a_right_pipeline_passes(kind: str) -> None:
    found = audit_plan(a_plan(kind), BUDGET, effort=EFFORT)
    assert found.violations == ()
    assert found.holds


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_pipeline_is_caught(name: str) -> None:
    kind, breakage, witness = BROKEN[name]
    with ledger_believes(), breakage():
        found = audit_plan(a_plan(kind), BUDGET, effort=EFFORT)
    assert not found.holds
    assert any(witness in violation for violation in found.violations), found.violations


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
    assert found.best.lower_bound is not None
    assert 2.0 / 2 < found.best.lower_bound <= 2.0
