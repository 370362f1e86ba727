import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.plan.plan import SAMPLING, Plan, PlanConfig
from incrowd.privacy.plan.sampling import Schedule, constant, growing
from incrowd.runs.build import schedule_of, spent_after
from incrowd.runs.config import Config, parse
from incrowd.runs.sources import federated_data
from incrowd.runs.work import assemble
from tests.runs.small import planned, seeded, small

SHOP = "user,age,spent,bought\nbob,31,2.5,yes\nann,44,0,no\nbob,20,1,no\ncat,51,7,yes\n"


def shop(folder: Path, *, run: dict[str, Any] | None = None, rounds: int = 2, **data: Any) -> Config:
    """A table of three clients."""
    (folder / "shop.csv").write_text(SHOP)
    table = {"name": "table", "folder": str(folder), "file": "shop.csv", "client": "user", "clients": 3}
    learned = {"label": "bought", "classes": ["no", "yes"]}
    privacy = {"epsilon": 1.0, "delta": 1e-3, "rounds": rounds}
    return parse({"data": {**table, **learned, **data}, "privacy": privacy, "run": run or {}})


def test_the_partition_does_not_depend_on_the_seed_of_the_noise() -> None:
    one, other = federated_data(seeded()), federated_data(seeded("run.seed=8"))
    assert np.array_equal(one.partition.indices, other.partition.indices)


def test_a_table_brings_its_clients(tmp_path: Path) -> None:
    federation = assemble(shop(tmp_path))
    assert federation.data.clients == planned(federation).config.members == 3
    assert federation.engine.model.size == 2 * 2 + 2
    (tmp_path / "held.csv").write_text("note," + re.sub(r"^(bob|ann|cat),", r"x,not \1,", SHOP, flags=re.MULTILINE))
    held = federated_data(shop(tmp_path, test_file="held.csv")).test
    assert held is not None
    assert len(held) == 4


def test_the_engine_knows_the_length_of_the_run_the_same_again_and_again(tmp_path: Path) -> None:
    config = shop(tmp_path, rounds=7, run={"compile": "never"})
    first = assemble(config)
    again = assemble(config, schedule=planned(first).config.schedule)
    expected = sum(first.plan.round(number).sampler.expected_cohort for number in range(7))
    assert first.engine.execution.contributions == again.engine.execution.contributions == expected > 0
    assert first.engine.execution.compile == "never"


def test_a_table_of_numbers_is_a_regression(tmp_path: Path) -> None:
    federation = assemble(shop(tmp_path, label="spent", classes=None, features=["age"]))
    assert federation.engine.loss.name == "squared"
    assert federation.engine.model.size == 2


@pytest.mark.slow
def test_a_schedule_may_grow() -> None:
    config = small("privacy.sampling=poisson", "privacy.cohort=8", "privacy.grow_from=2", "privacy.accountant=rdp")
    cohorts = [step.cohort for step in planned(assemble(config)).config.schedule.steps]
    assert (cohorts[0], cohorts[-1]) == (2.0, 8.0)


def test_the_round_for_label_distribution_has_its_share_of_what_all_rounds_are_told() -> None:
    found = schedule_of(seeded("privacy.rounds=9", "local.label_distribution=0.05"), 12)
    said = [1 / found.at(number).noise_multiplier ** 2 for number in range(found.rounds)]
    assert found.rounds == 9
    assert said[0] / sum(said) == pytest.approx(0.05)
    assert len(set(said[1:])) == 1
    with pytest.raises(ConfigError, match=r"plan at least 2: the first is for local\.label_distribution"):
        schedule_of(seeded("privacy.rounds=1", "local.label_distribution=0.1"), 12)


def test_a_part_of_the_training_examples_is_held_out_for_whoever_compares_settings() -> None:
    whole, part, divided_anew = (
        federated_data(small(*words))
        for words in ((), ("data.validation=0.1",), ("data.validation=0.1", "data.seed=3", "data.clients=5"))
    )
    assert len(whole.examples) == 1500
    assert part.test is not None
    assert divided_anew.test is not None
    assert (len(part.examples), len(part.test)) == (1350, 150)
    assert np.array_equal(part.test.features, divided_anew.test.features)  # the same, however the others are divided
    everyone = {image.tobytes() for image in whole.examples.features}
    assert {image.tobytes() for image in part.test.features} <= everyone


BUDGET = Budget(epsilon=2.0, delta=1e-5)


PLANS: dict[str, tuple[str, Schedule]] = {
    "everyone": ("everyone", constant(rounds=9, cohort=100)),
    "poisson": ("poisson", constant(rounds=9, cohort=20)),
    "fixed": ("fixed", constant(rounds=4, cohort=20)),
    "growing": ("poisson", growing(rounds=9, first_cohort=5, last_cohort=40, steps=3)),
}


@cache
def plan(name: str) -> Plan:
    sampling, schedule = PLANS[name]
    return PlanConfig(members=100, schedule=schedule, sampling=SAMPLING[sampling]).calibrate(BUDGET)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_the_epsilon_so_far_is_a_bound_that_rises_to_the_price_of_the_plan(name: str) -> None:
    one = plan(name)
    shown = [spent_after(one, rounds) for rounds in range(one.rounds + 1)]
    assert shown[0] == 0.0
    assert shown == sorted(shown)
    assert shown[-1] == one.price.epsilon
    for rounds in (1, one.rounds // 2, one.rounds - 1):
        events = compose([(one.round(number).event, 1) for number in range(rounds)])
        tight = price(events, delta=one.budget.delta, relation=one.relation).epsilon
        most = tight * (1 + 1e-9) if name == "everyone" else 1.5 * tight + 0.1  # there it is exact
        assert tight * (1 - 1e-9) <= shown[rounds] <= most
    turns = PlanConfig.in_turns(clients=100, rounds=6, groups=4).calibrate(BUDGET)  # paid in the first round
    assert [spent_after(turns, rounds) for rounds in range(7)] == [0.0] + [pytest.approx(turns.price.epsilon)] * 6


def test_after_the_last_round_it_is_the_plans_price_though_it_could_be_less() -> None:
    config = PlanConfig(
        members=100, schedule=constant(rounds=3, cohort=100), sampling=SAMPLING["everyone"], accountants=("RDP",)
    )
    one = config.calibrate(BUDGET)
    assert spent_after(one, 3) == one.price.epsilon
    assert spent_after(one, 2) < 0.9 * one.price.epsilon
