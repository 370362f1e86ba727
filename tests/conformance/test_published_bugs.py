"""One named case for every way in which published software was seen to break its own promise.

docs/conformance.md lists them. Each case runs the path that a real round takes and would fail on the bug that it is
named after. `what_leaks` is the attacker's view: how far one client can move the sum, in clip bounds.
"""

import json
import math
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import NoOpDpEvent
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from numpy.typing import NDArray

from incrowd._random import SeededRandomness, Stream, SystemRandomness
from incrowd.errors import AccountingError, BudgetExceeded, ConfigError, LedgerMismatch, UnpricedEvent
from incrowd.learning.contributions import Shortening
from incrowd.privacy.account.accounting import Budget, GaussianCurve, Relation, delta_at, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import (
    Clip,
    FixedClip,
    Layout,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
    clip_rows,
)
from incrowd.privacy.plan.plan import Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Schedule, Step
from incrowd.privacy.release import Carry, PrivateRun, Release
from incrowd.privacy.statement import MEDIAN
from incrowd.runs.run import Run
from incrowd.runs.work import assemble
from tests.conformance.folders import told
from tests.privacy.receipts import spent_on
from tests.runs.small import small

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
    return PlanConfig(members=clients, schedule=Schedule((step,)), sampling=sampling, clip=clip).plan(BIG)


def a_run(plan: Plan, *, size: int, seed: int = 0) -> PrivateRun:
    ledger = Ledger.in_memory(budget=BIG, relation=plan.relation)
    return PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(seed), size=size)


def released(plan: Plan, rows: Rows, *, seed: int = 0) -> Release:
    run = a_run(plan, size=rows.shape[1], seed=seed)
    open_round = run.round(0)
    open_round.add(rows, clients=run.cohort(0)[: len(rows)])
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
    plan = PlanConfig(members=10, schedule=Schedule((step,)), clip=clip).plan(BIG)
    out = released(plan, np.zeros((1, 3)))
    assert out.noise_std == pytest.approx(math.sqrt(3))
    assert plan.event == a_plan(sampling=Poisson, cohort=3).event


class OneByOne(PerLayerClip):
    """The bug: every array is clipped to the bound, and the bound is said to hold for all of them together."""

    @property
    def clip_norm(self) -> float:
        return max(self.clip_norms)


def test_arrays_clipped_one_by_one() -> None:
    """Several arrays of one client were clipped apart: sqrt(arrays) times the bound."""
    arrays = {name: np.ones(size) for name, size in (("a", 4), ("b", 1), ("c", 30))}
    vector = Layout.of(arrays).flatten(arrays)
    assert np.linalg.norm(clip_rows(FixedClip(clip_norm=1.0), vector).rows) <= 1.0
    apart = OneByOne(clip_norms=(1.0,) * 3, parts=(4, 1, 30))
    assert np.linalg.norm(apart.clip(vector[None])) == pytest.approx(math.sqrt(3), rel=1e-6)
    # The way of a real round: a network of six arrays, trained far, where each array alone is longer than the bound.
    federation = assemble(small("model={kind='mlp', hidden=[20, 10]}", "local.learning_rate=3.0", "local.epochs=5"))
    engine, bound = federation.engine, FixedClip(clip_norm=1e-3)
    weights, sizes = (
        engine.model.initial(SeededRandomness(0)),
        tuple(p.numel() for p in engine.model.module.parameters()),
    )

    def longest(shortening: Shortening) -> float:
        summed = [
            engine.train_and_sum(weights, [client], shortening, randomness=SeededRandomness(0), round=0).total
            for client in range(3)
        ]
        return max(float(np.linalg.norm(total)) for total in summed)

    assert len(sizes) == 6
    assert 0.9e-3 < longest(Shortening(bound=1e-3, parts=None, factors=bound.factors)) <= 1e-3
    each = PerLayerClip(clip_norms=(1e-3,) * 6, parts=sizes)
    assert longest(Shortening(bound=1e-3, parts=sizes, factors=each.factors)) > 1.5e-3


@pytest.mark.slow
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


def takes_part_as_accounted(plan: Plan, *, rounds: int) -> bool:
    """Whether clients are left out as often as the event of a round says, within 5 standard errors."""
    event, run = plan.round(0).event, a_run(plan, size=1)
    prob = event.sampling_probability if isinstance(event, PoissonSampledDpEvent) else 1.0
    clients, left_out = plan.config.members, np.zeros(plan.config.members)
    for number in range(rounds):
        left_out += ~np.isin(np.arange(clients), run.cohort(number))
    variance = rounds * prob * (1 - prob)
    if abs(left_out.sum() - clients * rounds * (1 - prob)) > 5 * math.sqrt(clients * variance):
        return False
    return bool(left_out.std() < 3 * math.sqrt(variance) + 1e-9)  # and not always the same ones


@pytest.mark.slow
@pytest.mark.parametrize("prob", [0.001, 0.05, 0.45, 0.9, 0.99, 0.999])
def test_fictitious_sampling(prob: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone trained in every round, and the accountant was told of a sampling probability."""
    everyone = a_plan(sampling=Everyone, clients=1000, cohort=1000, rounds=2)
    assert "Sampled" not in repr(everyone.event)
    assert takes_part_as_accounted(everyone, rounds=2)
    with pytest.raises(ConfigError, match="everyone means 10 clients"):
        a_plan(sampling=Everyone, clients=10, cohort=5)
    sampled = a_plan(sampling=Poisson, clients=1000, cohort=1000 * prob, rounds=100)
    assert isinstance(sampled.round(0).event, PoissonSampledDpEvent)
    assert takes_part_as_accounted(sampled, rounds=100)
    chosen = np.sort(np.random.default_rng(0).permutation(1000)[: round(1000 * prob)])
    for twin in (np.arange(1000), chosen):  # everyone; or always the same ones
        monkeypatch.setattr(Poisson, "sample", lambda *_, twin=twin, **__: twin)
        assert not takes_part_as_accounted(sampled, rounds=100)


def test_statistic_of_an_adaptive_clip_unpaid() -> None:
    """The quantile's bits (or the median itself) were free."""
    quantile = QuantileClip(clip_norm=1.0, bit_noise=1.0)
    open_round = a_run(a_plan(noise=1.5, clip=quantile), size=20_000).round(0)
    out = open_round.release()
    together = out.noise_std**-2 + (2 * quantile.bit_noise) ** -2
    assert together == pytest.approx(1.5**-2)
    step = Step(rounds=1, cohort=10, noise_multiplier=1.0)
    median = PlanConfig(members=10, schedule=Schedule((step,)), sampling=Everyone, clip=MedianClip()).plan(BIG)
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


@pytest.fixture(scope="module")
def earnest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[int]]:
    """The folder of a run in earnest over many clients, and its private counts: who was drawn, and their examples."""
    folder, secrets = tmp_path_factory.mktemp("run") / "run", set[int]()
    words = ("data.clients=1200", "privacy.sampling=poisson", "privacy.cohort=700", "privacy.rounds=3")
    run = Run.create(small(*words, "privacy.delta=1e-5"), folder)
    sizes, public, draw = run.work.data.sizes, len(run.work.data.examples), Poisson.sample

    def watched(sampler: Poisson, stream: Stream, *, round: int) -> NDArray[np.int64]:
        cohort = draw(sampler, stream, round=round)
        secrets.update((len(cohort), int(sizes[cohort].sum())))
        return cohort

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Poisson, "sample", watched)
        run.train()
    return folder, secrets - {700, 1200, public, 900}  # the settings state 0.9 and 0.001, which come to 900


def test_metrics_and_counts_sent_without_noise(earnest: tuple[Path, set[int]]) -> None:
    """Numbers of examples, losses and fractions clipped left the server as they were: in no file of a run."""
    folder, secrets = earnest
    assert len(secrets) >= 3
    assert told(folder, {700, 1200, 3}) == {700, 1200, 3}  # what is public is found
    assert told(folder, secrets) == set()
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM rounds WHERE simulation IS NOT NULL").fetchone() == (0,)


def in_a_file(folder: Path, secret: int) -> None:
    (folder / "metrics.json").write_text(json.dumps({"rounds": [{"fit": {"num_examples": secret}}]}))


def in_a_table(folder: Path, secret: int) -> None:
    seconds = math.pi / 10  # no count makes a whole rate of it
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE speeds AS SELECT ? AS seconds, ? AS per_second", (seconds, secret / seconds))


def in_a_note(folder: Path, secret: int) -> None:
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        ledger.charge(NoOpDpEvent(), note={"clients": secret})


def in_a_log(folder: Path, secret: int) -> None:
    (folder / "server.log").write_text(f"INFO aggregate_fit: received {secret} results and 0 failures")


def in_a_picture(folder: Path, secret: int) -> None:
    import matplotlib.image

    matplotlib.image.imsave(folder / "speeds.png", np.zeros((2, 2)), metadata={"Comment": f"{secret} clients"})


@pytest.mark.parametrize("bug", [in_a_file, in_a_table, in_a_note, in_a_log, in_a_picture])
def test_metrics_and_counts_are_found_where_they_are(
    earnest: tuple[Path, set[int]], bug: Callable[[Path, int], None], tmp_path: Path
) -> None:
    """The control: each way to leave a count behind is seen."""
    folder, secrets = earnest
    copy = shutil.copytree(folder, tmp_path / "run")
    secret = max(secrets)
    bug(copy, secret)
    assert told(copy, secrets) == {secret}


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


@pytest.mark.slow
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
    config = PlanConfig(members=10, schedule=Schedule((Step(rounds=10, cohort=10),)), sampling=Everyone)
    plan = config.calibrate(Budget(epsilon=8.0, delta=1e-5))
    assert {plan.round(number).noise_multiplier for number in range(10)} == {plan.noise_multiplier}
    assert plan.price.epsilon <= 8.0


def test_classical_gaussian_calibration() -> None:
    """sigma = sqrt(2 ln(1.25 / delta)) / epsilon was used where it does not hold (epsilon of 1 or more)."""
    config = PlanConfig(members=10, schedule=Schedule((Step(rounds=1, cohort=10),)), sampling=Everyone)
    plan = config.calibrate(Budget(epsilon=8.0, delta=5e-4))
    classical = math.sqrt(2 * math.log(1.25 / 5e-4)) / 8.0
    assert plan.noise_multiplier != pytest.approx(classical, rel=0.01)
    assert plan.noise_multiplier == pytest.approx(0.5, rel=1e-3)  # exact: delta(8) at 0.5 is 5.0e-4


Claim = Callable[[float], float]
"""A delta for an epsilon."""


def never_below(truth: Claim, claim: Claim) -> bool:
    return all(claim(epsilon) >= truth(epsilon) * (1 - 1e-9) for epsilon in (0.011, 0.1, 0.5, 1.003, 2.0))


def stated(event: DpEvent, accountant: str, grid: float) -> Claim:
    def claim(epsilon: float) -> float:
        relation = Relation.ADD_OR_REMOVE_ONE
        return delta_at(event, epsilon=epsilon, relation=relation, accountants=(accountant,), grid=grid)

    return claim


def rounded_down(sampling_prob: float, grid: float) -> Claim:
    """The bug: losses on a grid, not on its private side. Gaussian noise of 1."""
    found = from_gaussian_mechanism(
        1.0,
        sampling_prob=sampling_prob,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=grid,
    )
    claim: Claim = found.get_delta_for_epsilon
    return claim


@pytest.mark.parametrize("grid", [1e-1, 1e-2, 1e-4])
def test_estimate_instead_of_bound(grid: float) -> None:
    """The accountant's point estimate was reported as the guarantee."""
    exact = GaussianCurve([(GaussianDpEvent(1.0), 1)]).delta
    four = compose([(GaussianDpEvent(2.0), 4)])
    assert all(never_below(exact, stated(four, accountant, grid)) for accountant in ("GDP", "PLD", "RDP"))
    assert not never_below(exact, rounded_down(1.0, grid))


@pytest.mark.parametrize("grid", [1e-1, 1e-2, 1e-4])
def test_estimate_instead_of_bound_for_a_sample(grid: float) -> None:
    """The same, where the truth is a sum over a fine line."""
    line = np.linspace(-13.0, 14.0, 200_001)
    rest, mine = (np.exp(-((line - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (0.0, 1.0))
    mixed, width = 0.7 * rest + 0.3 * mine, line[1] - line[0]

    def exact(epsilon: float) -> float:
        return float(np.maximum(mixed - math.exp(epsilon) * rest, 0).sum() * width) * (1 - 1e-7)

    sampled = PoissonSampledDpEvent(0.3, GaussianDpEvent(1.0))
    assert all(never_below(exact, stated(sampled, accountant, grid)) for accountant in ("PLD", "RDP"))
    assert not never_below(exact, rounded_down(0.3, grid))


def test_a_case_for_every_row_of_the_documentation() -> None:
    root = Path(__file__).parents[2]
    listed = set(
        re.findall(r"`(test_\w+)`", (root / "docs/conformance.md").read_text().partition("<!-- mutants -->")[0])
    )
    cases = {name for name in globals() if name.startswith("test_")}
    assert cases - {"test_a_case_for_every_row_of_the_documentation"} <= listed
    written = "".join(path.read_text() for path in (root / "tests").rglob("test_*.py"))
    assert listed <= set(re.findall(r"def (test_\w+)", written))
