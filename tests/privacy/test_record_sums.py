"""Records that a server's noise protects: silos send clipped sums, and one plan pays for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipped_sum import ClippedSum, Observed, Part
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, MedianClip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan.plan import NoiseBy, Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Schedule, Step, constant
from incrowd.privacy.release import PrivateRound, PrivateRun

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
    assert opened().statement().sampler == "Poisson, 100 of 400 records of all silos a round, 5 rounds"
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


def test_the_noise_covers_the_rounding_of_float32() -> None:
    noise = PLAN.noise(0, FixedClip(clip_norm=BOUND))
    assert (noise.noise_multiplier, noise.clip_norm) == (PLAN.noise_multiplier, TRAINING.sensitivity)
    assert TRAINING.sensitivity > BOUND


# Sums that come from elsewhere


FEW, CLIENTS = 4, 3
ROOMY = Budget(epsilon=1e6, delta=1e-3)
ROWS = np.array([[0.5, 0, 0, 0], [0, 3, 4, 0], [np.nan, 0, 0, 0]])


@dataclass
class Far:
    """Clients whose sum is made elsewhere, by the same code."""

    clients: Sequence[int]
    change: Part | None = None
    asked: int = 0

    def collected(self, clip: Clip) -> Part:
        self.asked += 1
        if self.change is not None:
            return self.change
        total = ClippedSum(FEW, clip, contributions_bound=CLIENTS)
        total.add(ROWS[list(self.clients)])
        return Part(observed=total.observed, total=total.close())


def run_of(*, clip: Clip | MedianClip | None = None, noise_by: NoiseBy = "server") -> PrivateRun:
    step = Step(rounds=2, cohort=CLIENTS, noise_multiplier=1.0)
    clip = clip or FixedClip(clip_norm=1.0)
    config = PlanConfig(members=CLIENTS, schedule=Schedule((step,)), sampling=Everyone, clip=clip, noise_by=noise_by)
    plan = config.plan(ROOMY)
    ledger = Ledger.in_memory(budget=ROOMY, relation=plan.relation)
    return PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(1), size=FEW)


def part(steps: Sequence[int], *, step: float = 2.0**-30, observed: tuple[int, int, int] = (3, 0, 3)) -> Part:
    contributions, dropped, unclipped = observed
    seen = Observed(contributions=contributions, dropped=dropped, unclipped=unclipped)
    return Part(total=Whole(steps=np.array(steps, np.int64), step=step), observed=seen)


@pytest.mark.parametrize("there", [[0, 1, 2], [1]])
def test_a_sum_from_elsewhere_is_released_like_one_from_here(there: list[int]) -> None:
    here, far = run_of().round(0), run_of().round(0)
    here.add(ROWS, clients=range(CLIENTS))
    rest = [client for client in range(CLIENTS) if client not in there]
    far.add(ROWS[rest].reshape(-1, FEW), clients=rest)
    far.add_cohort(Far(there))
    expected, found = here.release(), far.release()
    assert found.total.steps.tolist() == expected.total.steps.tolist()
    assert found.observed == expected.observed


def test_where_clients_noise_for_themselves_the_round_is_charged_before_they_are_asked() -> None:
    run = run_of(noise_by="party")
    charged = []

    class Asking(Far):
        def collected(self, clip: Clip) -> Part:
            charged.append(run.next_round)
            return part([2**35, 0, 0, 0], observed=(1, 0, 1))  # longer than three contributions without noise

    opened = run.round(0)
    opened.add_cohort(Asking([0]))
    opened.add_cohort(Asking([1, 2]))
    assert charged == [1, 1]
    assert opened.release().total.values.tolist() == [2 * 2.0**5, 0, 0, 0]


@pytest.mark.parametrize(
    "odd",
    [
        part([0, 0, 0]),
        part([2**40, 0, 0, 0]),
        part([0, 0, 0, 0], observed=(4, 0, 0)),
        part([0, 0, 0, 0], observed=(3, 2, 2)),
        part([0, 0, 0, 0], observed=(3, -2, 1)),
    ],
)
def test_what_can_be_no_sum_of_these_clients_is_refused(odd: Part) -> None:
    run = run_of()
    with pytest.raises(DataError):
        run.round(0).add_cohort(Far([0, 1, 2], change=odd))
    assert run.next_round == 0


def test_who_contributed_already_whose_norms_are_needed_or_who_is_late_is_not_asked() -> None:
    begun, median, over = run_of().round(0), run_of(clip=MedianClip()).round(0), run_of().round(0)
    begun.add_cohort(Far([0, 1]))
    over.release()
    for opened, words in ((begun, "contributed already"), (median, "norms of a cohort"), (over, "released")):
        far = Far([1, 2])
        with pytest.raises((ConfigError, DataError), match=words):
            opened.add_cohort(far)
        assert far.asked == 0
