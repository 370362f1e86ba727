"""Who would like an audit to pass knows what it looks at, and does right by that alone."""

from collections.abc import Callable
from typing import Any

import pytest

from incrowd.audit.audit import Effort, audit_plan
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Poisson, constant
from tests.audit.broken import less_noise_in_earnest, one_client_each_round

BUDGET = Budget(epsilon=2.0, delta=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "clients", "witness"),
    [
        (less_noise_in_earnest, 60, "noise in earnest"),
        (one_client_each_round, 300, "draws of the client that is furthest off"),
    ],
    ids=["less noise where no seed repeats it", "a client beyond the canaries in every cohort"],
)
def test_doing_right_by_canaries_alone_is_seen(attack: Callable[[], Any], clients: int, witness: str) -> None:
    """All that canaries show is as it should be: the look beyond them is the only one that speaks."""
    config = PlanConfig(members=clients, schedule=constant(rounds=4, cohort=clients / 3), sampling=Poisson)
    with attack():
        found = audit_plan(config.calibrate(BUDGET), BUDGET, effort=Effort(repeats=8))
    assert [violation.partition(":")[0] for violation in found.violations] == [witness]
    control = audit_plan(config.calibrate(BUDGET), BUDGET, effort=Effort(repeats=8))
    assert control.violations == ()
