"""One named case for every way in which published software was seen to break its own promise.

docs/conformance.md lists them. Each case runs the path that a real round takes and would fail on the bug that it is
named after. `what_leaks` is the attacker's view: how far one client can move the sum, in clip bounds.
"""

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from numpy.typing import NDArray

from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.errors import AccountingError, BudgetExceeded, ConfigError, LedgerMismatch, UnpricedEvent
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import (
    Clip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
    clip_rows,
)
from incrowd.privacy.mechanism.contribution import Layout
from incrowd.privacy.plan.plan import Plan, PlanConfig, Sampling
from incrowd.privacy.plan.promise import Carry
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson
from incrowd.privacy.plan.schedule import Schedule, Step
from incrowd.privacy.release import PrivateRun, Release
from incrowd.privacy.statement import MEDIAN
from tests.privacy.receipts import spent_on

Rows = NDArray[np.float64]
BIG = Budget(epsilon=1e4, delta=1e-6)


def a_plan(
    *,
    sampling: Sampling = Everyone,
    clients: int = 10,
    cohort: float = 10,
    noise: float = 1.0,
    rounds: int = 1,
    clip: Clip | None = None,
) -> Plan:
    step = Step(rounds=rounds, cohort=cohort, noise_multiplier=noise)
    clip = FixedClip(clip_norm=1.0) if clip is None else clip
    return PlanConfig(clients=clients, schedule=Schedule((step,)), sampling=sampling, clip=clip).plan(BIG)


def a_run(plan: Plan, *, size: int, seed: int = 0) -> PrivateRun:
    ledger = Ledger.in_memory(budget=BIG, relation=plan.relation)
    return PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(seed), size=size, numbered=False)


def released(plan: Plan, rows: Rows, *, seed: int = 0) -> Release:
    open_round = a_run(plan, size=rows.shape[1], seed=seed).round(0)
    open_round.add(rows)
    return open_round.release()


def what_leaks(plan: Plan, rows: Rows, neighbour: Rows) -> float:
    """How far apart two neighbouring sums are; the same seed gives both the same noise."""
    clipped, other = released(plan, rows), released(plan, neighbour)
    return float(np.linalg.norm((clipped.mean - other.mean) * plan.round(0).sampler.expected_cohort))


def test_clip_sign_inverted() -> None:
    """Large updates passed and small ones were blown up to the bound."""
    rows = np.array([[0.1], [1e6]])
    assert list(clip_rows(FixedClip(clip_norm=1.0), rows).rows[:, 0]) == pytest.approx([0.1, 1.0], rel=1e-6)


def test_quantile_bit_inverted() -> None:
    """The bit said *was clipped*, and the bound ran away from the quantile."""
    clip = QuantileClip(clip_norm=0.1, bit_noise=1.0)
    for _ in range(100):
        unclipped = clip_rows(clip, np.ones((5, 1))).unclipped
        clip = clip.updated(float(unclipped.mean()))
    assert clip.clip_norm == pytest.approx(1.0, rel=0.2)


def test_replacing_a_client_moves_the_sum_by_two_bounds() -> None:
    """Fixed-size sampling was priced with the sensitivity of adding or removing a client."""
    rows, neighbour = np.array([[1.0], [0.0]]), np.array([[-1.0], [0.0]])
    plan = a_plan(sampling=FixedSize, clients=2, cohort=2)
    leak = what_leaks(plan, rows, neighbour)
    assert leak == pytest.approx(2.0, rel=1e-6)
    honest = price(a_plan(noise=plan.noise_multiplier / leak).event, delta=1e-6, relation=Relation.ADD_OR_REMOVE_ONE)
    assert plan.price.epsilon >= honest.epsilon * (1 - 1e-6)


def test_noise_of_another_bound() -> None:
    """The noise followed the next round's bound, or the bound's square, instead of the bound that clipped."""
    for bound in (0.01, 7.0):
        clip = QuantileClip(clip_norm=1.0, bit_noise=50.0)
        carry = Carry(clip=replace(clip, clip_norm=bound))
        open_round = a_run(a_plan(clip=clip), size=20_000).round(0, carry=carry)
        out = open_round.release()
        assert out.mean.std() * 10 == pytest.approx(bound, rel=5 / math.sqrt(40_000) + 1e-3)


def test_weights_reported_by_clients() -> None:
    """A client that claimed many examples moved the mean by more than one share."""
    million_examples = np.vstack([np.ones((1, 3)) * 1e6, np.ones((4, 3)) * 0.1])
    assert what_leaks(a_plan(), million_examples, million_examples[1:]) <= 1.0


def test_denominator_of_the_realised_cohort() -> None:
    """Dropouts changed the divisor, so that each client's share depended on who else had answered."""
    full, half = np.full((10, 1), 0.5), np.full((5, 1), 0.5)
    assert released(a_plan(), full).mean - released(a_plan(), half).mean == pytest.approx(5 * 0.5 / 10, abs=1e-5)


def test_layers_as_independent_samples() -> None:
    """Three layers of one sampled cohort were accounted as three independent samples."""
    clip = PerLayerClip(clip_norms=(1.0, 1.0, 1.0), parts=(1, 1, 1))
    step = Step(rounds=1, cohort=3, noise_multiplier=1.0)
    plan = PlanConfig(clients=10, schedule=Schedule((step,)), clip=clip).plan(BIG)
    out = released(plan, np.zeros((1, 3)))
    assert out.noise_std == pytest.approx(math.sqrt(3))
    assert plan.event == a_plan(sampling=Poisson, cohort=3).event


def test_arrays_clipped_one_by_one() -> None:
    """Several arrays of one client were clipped apart: sqrt(arrays) times the bound."""
    arrays = {name: np.ones(4) for name in ("a", "b", "c")}
    vector = Layout.of(arrays).flatten(arrays)
    assert np.linalg.norm(clip_rows(FixedClip(clip_norm=1.0), vector).rows) <= 1.0


def test_fixed_size_priced_as_poisson() -> None:
    """A cohort of fixed size was drawn and the formula for independent coins applied."""
    fixed = a_plan(sampling=FixedSize, clients=100, cohort=10)
    independent = a_plan(sampling=Poisson, clients=100, cohort=10)
    assert fixed.relation is not independent.relation
    assert fixed.price.epsilon > independent.price.epsilon
    with pytest.raises(UnpricedEvent):
        price(independent.event, delta=1e-6, relation=fixed.relation)
    ledger = Ledger.in_memory(budget=BIG, relation=independent.relation)
    with pytest.raises(LedgerMismatch):
        PrivateRun(fixed, ledger=ledger, randomness=SeededRandomness(0), size=1)


def test_fictitious_sampling() -> None:
    """Everyone trained in every round, and the accountant was told of a sampling probability."""
    everyone = a_plan(sampling=Everyone, clients=10, cohort=10)
    assert "Sampled" not in repr(everyone.event)
    with pytest.raises(ConfigError, match="everyone means 10 clients"):
        a_plan(sampling=Everyone, clients=10, cohort=5)
    sampled = a_run(a_plan(sampling=Poisson, clients=100, cohort=5), size=1)
    assert len(sampled.cohort(0)) < 50


def test_statistic_of_an_adaptive_clip_unpaid() -> None:
    """The quantile's bits (or the median itself) were free."""
    quantile = QuantileClip(clip_norm=1.0, bit_noise=1.0)
    open_round = a_run(a_plan(noise=1.5, clip=quantile), size=20_000).round(0)
    out = open_round.release()
    together = out.noise_std**-2 + (2 * quantile.bit_noise) ** -2
    assert together == pytest.approx(1.5**-2)
    step = Step(rounds=1, cohort=10, noise_multiplier=1.0)
    median = PlanConfig(clients=10, schedule=Schedule((step,)), sampling=Everyone, clip=MedianClip()).plan(BIG)
    assert MEDIAN in median.statement(spent_on(median), own=1).text().replace("\n  ", " ")


def test_noise_computed_and_dropped() -> None:
    """The noised result was thrown away and the clean one sent."""
    out = released(a_plan(), np.zeros((3, 1000)))
    assert np.count_nonzero(out.mean) > 990
    assert out.mean.std() * 10 == pytest.approx(1.0, rel=0.12)


def test_accountant_rebuilt_each_round() -> None:
    """A new accountant each round: the printed epsilon never rose."""
    plan = a_plan(rounds=5)
    ledger = Ledger.in_memory(budget=BIG, relation=plan.relation)
    run = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(0), size=1)
    spent = []
    for number in range(5):
        run.round(number).release()
        spent.append(ledger.spent().epsilon)
    assert all(later > earlier for earlier, later in pairwise(spent))
    assert spent[-1] == pytest.approx(plan.price.epsilon)


def test_restart_forgets_the_spend(tmp_path: Path) -> None:
    """After a restart training went on without privacy, or with a fresh budget."""
    plan = a_plan(rounds=2)
    budget = Budget(epsilon=plan.price.epsilon, delta=1e-6)
    for number in range(2):
        with Ledger.open(tmp_path / "ledger", budget=budget, relation=plan.relation, data_identity="d") as ledger:
            run = PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=1)
            assert run.next_round == number
            run.round(number).release()
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert ledger.spent().epsilon == pytest.approx(plan.price.epsilon)
        with pytest.raises(BudgetExceeded):
            PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=1, label="again")


def test_failing_accountant_read_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the accountant became epsilon = 0, and the release went out."""

    def broken(*_: object, **__: object) -> None:
        raise ValueError("overflow")

    ledger = Ledger.in_memory(budget=BIG, relation=Relation.ADD_OR_REMOVE_ONE)
    event = PoissonSampledDpEvent(0.271828, GaussianDpEvent(1.61803))  # priced nowhere else, so no cache can know it
    for part in ("pld.privacy_loss_distribution.from_gaussian_mechanism", "rdp.rdp_privacy_accountant.RdpAccountant"):
        monkeypatch.setattr(f"dp_accounting.{part}", broken)
    with pytest.raises(AccountingError):
        ledger.charge(event)
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
def test_not_a_number_passes_the_clip(bad: float) -> None:
    """min(1, C / nan) is 1: the update went in unclipped."""
    good = np.full((2, 2), 0.1)
    assert what_leaks(a_plan(), np.vstack([good, [[bad, 0.0]]]), good) == 0


def test_norm_of_zero_divides() -> None:
    """An all-zero update stopped the round."""
    for clip in (FixedClip(clip_norm=1.0), NormalisedClip(), PerLayerClip(clip_norms=(1.0, 1.0), parts=(1, 1))):
        assert not clip_rows(clip, np.zeros((1, 2))).rows.any()


def test_whole_numbers_and_buffers_escape() -> None:
    """Counters and running statistics went around the clip, or got noise rounded to nothing."""
    arrays = {"weight": np.ones(2, np.float32), "batches_seen": np.array([40_000])}
    vector = Layout.of(arrays).flatten(arrays)
    out = released(a_plan(), vector[None, :])
    assert np.all(out.mean != np.round(out.mean))
    assert what_leaks(a_plan(), vector[None, :], np.zeros((0, 3))) <= 1.0


def test_metrics_and_counts_sent_without_noise() -> None:
    """Numbers of examples, losses and fractions clipped left the server as they were."""
    plan = a_plan()
    ledger = Ledger.in_memory(budget=BIG, relation=plan.relation)
    real = PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=1).round(0)
    real.add(np.ones((4, 1)), clients=range(4))
    assert real.release().observed is None
    note = {name: value for name, value in ledger.entries()[-1].content()["note"].items() if name != "plan"}
    assert "4" not in re.findall(r"\d+", str(note))


def test_global_generators_decide_the_noise() -> None:
    """np.random.seed made the noise repeat."""
    import torch

    seen = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002  # it must not matter
        torch.manual_seed(0)
        plan = a_plan()
        ledger = Ledger.in_memory(budget=BIG, relation=plan.relation)
        out = PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=100).round(0).release()
        seen.append(out.mean)
    assert np.all(seen[0] != seen[1])


def test_seeded_noise_repeats_each_round() -> None:
    """The generator was seeded anew each round: the difference of two rounds had no noise at all."""
    run = a_run(a_plan(rounds=2), size=1000)
    first, second = run.round(0).release().mean, run.round(1).release().mean
    assert np.all(first != second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(1000)


@pytest.mark.parametrize("sampling", [Poisson, FixedSize, Everyone])
def test_repetitions_counted_once(sampling: Sampling) -> None:
    """A public accountant charged n repetitions of one mechanism as a single one."""
    once = a_plan(sampling=sampling, cohort=10 if sampling is Everyone else 3)
    many = compose([(once.event, 10)])
    one_by_one = compose([(once.event, 1)] * 10)
    together, apart = (price(event, delta=1e-6, relation=once.relation).epsilon for event in (many, one_by_one))
    assert together == apart > once.price.epsilon


def test_stopping_after_the_round_that_breaks_the_budget() -> None:
    """The loop looked at epsilon after the release: the round that broke the budget was published."""
    plan = a_plan(rounds=3)
    ledger = Ledger.in_memory(budget=Budget(epsilon=plan.price.epsilon, delta=1e-6), relation=plan.relation)
    for _ in range(3):
        ledger.charge(plan.round(0).event)
    with pytest.raises(BudgetExceeded):
        ledger.charge(plan.round(0).event)
    assert ledger.spent().epsilon <= plan.price.epsilon * (1 + 1e-12)


def test_target_met_from_zero_each_round() -> None:
    """Each round's noise was solved as if nothing had been spent: the noise shrank and the budget broke half-way."""
    config = PlanConfig(clients=10, schedule=Schedule((Step(rounds=10, cohort=10),)), sampling=Everyone)
    plan = config.calibrate(Budget(epsilon=8.0, delta=1e-5))
    assert {plan.round(number).noise_multiplier for number in range(10)} == {plan.noise_multiplier}
    assert plan.price.epsilon <= 8.0


def test_classical_gaussian_calibration() -> None:
    """sigma = sqrt(2 ln(1.25 / delta)) / epsilon was used where it does not hold (epsilon of 1 or more)."""
    config = PlanConfig(clients=10, schedule=Schedule((Step(rounds=1, cohort=10),)), sampling=Everyone)
    plan = config.calibrate(Budget(epsilon=8.0, delta=5e-4))
    classical = math.sqrt(2 * math.log(1.25 / 5e-4)) / 8.0
    assert plan.noise_multiplier != pytest.approx(classical, rel=0.01)
    assert plan.noise_multiplier == pytest.approx(0.5, rel=1e-3)  # exact: delta(8) at 0.5 is 5.0e-4


def test_estimate_instead_of_bound() -> None:
    """The accountant's point estimate was reported as the guarantee."""
    event = a_plan(sampling=Poisson, cohort=3, rounds=40).event
    coarse, fine = (
        price(event, delta=1e-6, relation=Relation.ADD_OR_REMOVE_ONE, accountants=("PLD",), grid=grid).epsilon
        for grid in (1e-2, 1e-4)
    )
    assert coarse >= fine


def test_a_case_for_every_row_of_the_documentation() -> None:
    root = Path(__file__).parents[2]
    listed = set(re.findall(r"`(test_\w+)`", (root / "docs/conformance.md").read_text()))
    cases = {name for name in globals() if name.startswith("test_")}
    assert cases - {"test_a_case_for_every_row_of_the_documentation"} <= listed
    written = "".join(path.read_text() for path in (root / "tests").rglob("test_*.py"))
    assert listed <= set(re.findall(r"def (test_\w+)", written))
