"""Records that a server's noise protects: silos send clipped sums, and one plan pays for all of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import constant
from incrowd.privacy.release import PrivateRound, PrivateRun
from incrowd.privacy.statement import SUMS_TRUST

SIZE, BOUND, RECORDS = 2000, 0.5, 400
BUDGET = Budget(epsilon=4.0, delta=1e-5)


def config(**changes: object) -> PlanConfig:
    its: dict[str, object] = {
        "members": RECORDS,
        "schedule": constant(rounds=5, cohort=100.0),
        "unit": "record",
        "noise_by": "server",
        "clip": FixedClip(clip_norm=BOUND),
    }
    return PlanConfig(**its | changes)  # type: ignore[arg-type]  # settings of several kinds in one place


PLAN: Plan = config().calibrate(BUDGET)
TRAINING = PLAN.training(SIZE)


def sent(norm: float, size: int = SIZE) -> Whole:
    """A silo's sum of this norm."""
    return TRAINING.whole(np.full(size, norm / np.sqrt(size)))


def opened(path: Path | None = None, randomness: Randomness | None = None) -> PrivateRun:
    terms: dict[str, Any] = {"budget": BUDGET, "relation": Relation.ADD_OR_REMOVE_ONE}
    ledger = Ledger.in_memory(**terms) if path is None else Ledger.open(path, data_identity="x", **terms)
    return PrivateRun(PLAN, ledger=ledger, randomness=randomness or SeededRandomness(3), size=SIZE)


@pytest.fixture
def first() -> PrivateRound:
    return opened().round(0)


def test_a_round_costs_what_one_trusted_server_over_all_records_pays() -> None:
    event = PoissonSampledDpEvent(0.25, GaussianDpEvent(PLAN.noise_multiplier))
    assert PLAN.round(3).event == event
    assert PLAN.relation is Relation.ADD_OR_REMOVE_ONE
    pooled = PlanConfig.of_records(records=RECORDS, rounds=5, clip_norm=BOUND, batch_size=100, epochs=0.25)
    assert PLAN.price.epsilon == pooled.calibrate(BUDGET).price.epsilon
    assert PLAN.noise_multiplier == pooled.calibrate(BUDGET).noise_multiplier


def test_the_mean_is_the_sum_over_the_expected_batch_with_the_noise_of_one_server(first: PrivateRound) -> None:
    for silo in range(4):
        first.add_records(sent(10.0), silo=silo, records=100)
    release = first.release()
    std = PLAN.noise_multiplier * TRAINING.sensitivity / 100
    assert release.noise_std == pytest.approx(100 * std)
    squares = np.sum(((release.mean - 0.4 / np.sqrt(SIZE)) / std) ** 2)
    assert abs(squares - SIZE) < 5 * np.sqrt(2 * SIZE)
    for factor in (2 / 3, 3 / 2):  # the control: other noise is seen
        assert abs(squares * factor - SIZE) > 5 * np.sqrt(2 * SIZE)


def test_no_silo_counts_twice_and_none_has_more_records_than_it_declared(first: PrivateRound) -> None:
    first.add_records(sent(10.0), silo=0, records=100)
    for part, silo, records in [
        (sent(10.0), 0, 100),  # its second sum
        (sent(10.0), 1, 301),  # more records than the plan has
        (sent(60.0), 1, 100),  # longer than 100 records can make it
        (replace(sent(1.0), step=TRAINING.grid_step(SIZE) / 2), 1, 100),  # on another grid
        (sent(1.0, size=SIZE + 1), 1, 100),
    ]:
        with pytest.raises(DataError):
            first.add_records(part, silo=silo, records=records)
    first.add_records(sent(10.0), silo=1, records=300)  # the control: the round is as it was
    mean = first.release().mean
    assert float(mean.sum() / np.sqrt(SIZE)) == pytest.approx(0.2, abs=5 * PLAN.noise_multiplier * BOUND / 100)
    with pytest.raises(ConfigError, match="released"):
        first.add_records(sent(1.0), silo=2, records=1)


def test_contributions_of_clients_and_sums_of_records_do_not_mix(first: PrivateRound) -> None:
    with pytest.raises(ConfigError, match="add_records"):
        first.add(np.ones((1, SIZE)), clients=[0])
    clients = PlanConfig(members=400, schedule=constant(rounds=1, cohort=100.0)).calibrate(BUDGET)
    ledger = Ledger.in_memory(budget=BUDGET, relation=clients.relation)
    run = PrivateRun(clients, ledger=ledger, randomness=SeededRandomness(0), size=SIZE)
    with pytest.raises(ConfigError, match="unit"):
        run.round(0).add_records(sent(1.0), silo=0, records=100)
    silos = PlanConfig.of_records(records=RECORDS, rounds=5, clip_norm=BOUND).calibrate(BUDGET)
    with pytest.raises(ConfigError, match="RecordRun"):
        PrivateRun(silos, ledger=opened().ledger, randomness=SeededRandomness(0), size=SIZE)


def test_a_silo_draws_its_batch_once_until_the_round_is_charged(tmp_path: Path) -> None:
    """A batch that were drawn until somebody is in it would exceed the probability that is priced."""
    path, earnest = tmp_path / "ledger", SystemRandomness()
    first, again = (opened(path, earnest).round(0).batches(1).bits(8) for _ in range(2))
    other, later = opened(path, earnest).batches(0, 2).bits(8), opened(path, earnest).batches(1, 1).bits(8)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, later)
    opened(path, earnest).round(0).release()
    assert not np.array_equal(first, opened(path, earnest).batches(0, 1).bits(8))
    seeded = [opened().batches(0, silo).bits(8) for silo in (1, 1, 2)]
    assert np.array_equal(seeded[0], seeded[1])
    assert not np.array_equal(seeded[0], seeded[2])


def test_the_statement_protects_records_from_all_but_the_server_and_their_silo(tmp_path: Path) -> None:
    run = opened(tmp_path / "ledger", SystemRandomness())
    run.round(0).release()
    statement = run.statement()
    assert (statement.unit, statement.trust, statement.caveats) == ("record", SUMS_TRUST, ())
    assert statement.sampler == "Poisson, 100 of 400 records of all silos a round, 5 rounds"


def test_the_noise_covers_the_rounding_of_float32() -> None:
    noise = PLAN.noise(0, FixedClip(clip_norm=BOUND))
    assert (noise.noise_multiplier, noise.clip_norm) == (PLAN.noise_multiplier, TRAINING.sensitivity)
    assert TRAINING.sensitivity > BOUND
