import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Result
from flwr.supercore.privacy_accounting import GaussianPrivacyEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from incrowd.errors import BudgetExceeded, ConfigError, LedgerMismatch
from incrowd.flower import LedgerAccountant
from incrowd.flower.accountant import FlowerNoise
from incrowd.privacy.account.accountants import log_delta
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson
from incrowd.privacy.statement import CENTRAL_TRUST, SIMULATION, stated
from tests.flower import stock
from tests.flower.stock import BUDGET, CLIENTS, NOISE_MULTIPLIER

EVENT = GaussianPrivacyEvent(NOISE_MULTIPLIER, CLIENTS, CLIENTS)


def in_memory(relation: Relation = Relation.REPLACE_SPECIAL, budget: Budget = BUDGET) -> LedgerAccountant:
    return LedgerAccountant(Ledger.in_memory(budget=budget, relation=relation), clients=CLIENTS)


def on_disk(path: Path) -> Ledger:
    return Ledger.open(path, budget=BUDGET, relation=Relation.REPLACE_SPECIAL, data_identity="stock")


@pytest.mark.slow
def test_a_stock_app_that_is_started_again_and_again_stops_after_the_releases_that_the_budget_allows(
    tmp_path: Path,
) -> None:
    found = []
    for _ in range(5):
        command = [sys.executable, stock.__file__, str(tmp_path / "stock.ledger"), "3"]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout))
    assert [each["releases"] for each in found] == [3, 6, 9, 11, 11]
    assert [each["stopped"] for each in found] == [False, False, False, True, True]
    assert found[-1]["epsilon"] == pytest.approx(7.955, abs=0.001)
    # Flower's own accountant starts from nothing each time: it would never have stopped.
    assert [round(each["theirs"], 2) for each in found] == [4.01, 4.01, 4.01, 3.19, 0.0]


def test_a_charge_is_on_the_disk_when_compose_returns_and_another_life_goes_on_from_it(tmp_path: Path) -> None:
    with on_disk(tmp_path / "ledger") as ledger:
        LedgerAccountant(ledger, clients=CLIENTS).compose(EVENT)
        with Ledger.read(tmp_path / "ledger") as seen:
            assert seen.charges() == (1, 1)
    with on_disk(tmp_path / "ledger") as ledger:
        accountant = LedgerAccountant(ledger, clients=CLIENTS)
        accountant.compose(EVENT)
        assert accountant.num_releases == 2
        assert accountant.get_epsilon(1e-5) == in_memory_after(2).get_epsilon(1e-5)


def in_memory_after(releases: int) -> LedgerAccountant:
    accountant = in_memory()
    accountant.compose(EVENT, releases)
    return accountant


@given(
    noise=st.floats(min_value=0.3, max_value=30.0),
    releases=st.integers(min_value=1, max_value=200),
    relation=st.sampled_from([Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE]),
)
@settings(max_examples=30, deadline=None)
def test_the_price_is_that_of_plain_gaussian_noise_over_what_one_client_moves(
    noise: float, releases: int, relation: Relation
) -> None:
    accountant = in_memory(relation, Budget(epsilon=1e6, delta=1e-6))
    accountant.compose(GaussianPrivacyEvent(noise, 2, CLIENTS), releases)  # two of four: not amplified
    moves = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    epsilon = accountant.get_epsilon(1e-6)
    mu = moves / noise * math.sqrt(releases)
    assert float(np.exp(log_delta(mu, np.array([epsilon])))[0]) == pytest.approx(1e-6, rel=1e-3)
    assert accountant.get_delta(epsilon) == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.slow
@given(
    rounds=st.lists(st.tuples(st.floats(min_value=0.5, max_value=20.0), st.integers(1, 5)), min_size=1, max_size=8),
    relation=st.sampled_from([Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE]),
)
@settings(max_examples=30, deadline=None)
def test_what_is_said_to_fit_is_charged_and_nothing_else_is(
    rounds: list[tuple[float, int]], relation: Relation
) -> None:
    accountant, releases = in_memory(relation), 0
    for noise, count in rounds:
        event = GaussianPrivacyEvent(noise, CLIENTS, CLIENTS)
        if accountant.would_exceed(event, count=count):
            with pytest.raises(BudgetExceeded):
                accountant.compose(event, count)
        else:
            accountant.compose(event, count)
            releases += count
        assert accountant.num_releases == releases
        assert accountant.get_epsilon(BUDGET.delta) <= BUDGET.epsilon


def test_a_cohort_of_a_fixed_size_costs_what_our_own_samplers_say_without_amplification() -> None:
    everyone, replaced = in_memory(Relation.REPLACE_SPECIAL), in_memory(Relation.REPLACE_ONE)
    for accountant in (everyone, replaced):
        accountant.compose(GaussianPrivacyEvent(4.0, 2, CLIENTS))
    for accountant, sampler in (
        (everyone, Everyone(clients=CLIENTS)),
        (replaced, FixedSize(clients=CLIENTS, cohort=CLIENTS)),
    ):
        ours = price(sampler.event(4.0), delta=1e-5, relation=sampler.relation).epsilon
        assert accountant.get_epsilon(1e-5) == pytest.approx(ours, rel=1e-9)
    drawn = Poisson(clients=CLIENTS, cohort=2)
    assert price(drawn.event(4.0), delta=1e-5, relation=drawn.relation).epsilon < everyone.get_epsilon(1e-5)


def test_a_ledger_in_which_a_client_more_or_less_is_the_question_is_refused() -> None:
    with pytest.raises(LedgerMismatch, match="REPLACE_SPECIAL or REPLACE_ONE"):
        in_memory(Relation.ADD_OR_REMOVE_ONE)


def test_what_others_charged_or_reserved_counts() -> None:
    accountant = in_memory()
    accountant.ledger.reserve([(Everyone(clients=CLIENTS).event(NOISE_MULTIPLIER), 9)], label="another")
    assert not accountant.would_exceed(EVENT, count=2)
    assert accountant.would_exceed(EVENT, count=3)
    assert accountant.get_epsilon(1e-5) == 0.0
    assert accountant.would_exceed(EVENT, max_epsilon=1.0)
    assert accountant.would_exceed(EVENT, max_epsilon=100.0, count=3)


def test_a_strategy_asks_nobody_for_a_round_that_the_budget_does_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    stock.identify(monkeypatch)
    accountant = in_memory()
    accountant.compose(EVENT, 10)
    strategy = stock_strategy(accountant)
    grid = stock.StockGrid(range(CLIENTS), stock.moved)
    with pytest.raises(PrivacyBudgetExhausted, match="max_epsilon"):
        strategy.start(grid, stock.record(w=np.zeros(10, np.float32)), num_rounds=5)
    assert len(grid.asked) == CLIENTS  # one round more, and no other
    assert accountant.num_releases == 11


def stock_strategy(accountant: LedgerAccountant) -> DifferentialPrivacyServerSideFixedClipping:
    averaging = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    return DifferentialPrivacyServerSideFixedClipping(averaging, NOISE_MULTIPLIER, 1.0, CLIENTS, accountant=accountant)


def test_what_flowers_own_strategy_lacks_is_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should one of these change, docs/flower.md does not tell the truth any more."""
    stock.identify(monkeypatch)
    start = stock.record(w=np.zeros(10, np.float32))

    def one_of(odd: stock.Answer) -> stock.Answer:
        return lambda message: odd(message) if message.metadata.dst_node_id == 1 else stock.moved(message)

    def not_a_number(message: Message) -> Message:
        return stock.reply(message, stock.record(w=np.full(10, np.nan, np.float32)))

    def silent(message: Message) -> Message:
        return stock.sent(Message(Error(1, "gone"), reply_to=message), message)

    def telling(message: Message) -> Message:
        return stock.reply(message, stock.record(w=np.ones(10, np.float32)), loss=2.0)

    def still(message: Message) -> Message:
        return stock.reply(message, message.content.array_records["arrays"])

    def trained(answer: stock.Answer) -> tuple[Result, int]:
        accountant = in_memory()
        grid = stock.StockGrid(range(CLIENTS), answer)
        return stock_strategy(accountant).start(grid, start, num_rounds=1), accountant.num_releases

    poisoned, _ = trained(one_of(not_a_number))
    assert np.isnan(poisoned.arrays["w"].numpy()).all()
    incomplete, releases = trained(one_of(silent))
    assert (len(incomplete.arrays), releases) == (0, 0)
    with pytest.raises(ZeroDivisionError):
        trained(one_of(still))
    told, _ = trained(telling)
    assert told.train_metrics_clientapp[1]["loss"] == pytest.approx(2.0)
    np.random.seed(1)  # noqa: NPY002  # the noise is drawn from this generator, which is the point
    first, _ = trained(stock.moved)
    np.random.seed(1)  # noqa: NPY002  # the same noise again
    again, _ = trained(stock.moved)
    assert first.arrays["w"].data == again.arrays["w"].data


def test_what_does_not_fit_is_refused() -> None:
    accountant = in_memory()
    with pytest.raises(ConfigError, match="population_size"):
        accountant.compose(GaussianPrivacyEvent(2.0, 4, 5))
    with pytest.raises(ConfigError, match="count"):
        accountant.would_exceed(EVENT, count=0)
    with pytest.raises(ConfigError, match="clients"):
        LedgerAccountant(accountant.ledger, clients=0)
    with pytest.raises(ConfigError, match="Flower draws this noise itself"):
        FlowerNoise().stream("noise")
    assert accountant.num_releases == 0


def test_statements_say_that_this_noise_comes_from_a_seed() -> None:
    accountant = in_memory_after(2)
    statement = stated(accountant.ledger, unit="client", trust=CENTRAL_TRUST, sampler="all", own=1)
    assert SIMULATION in statement.caveats
    spent = accountant.get_privacy_spent()
    assert (spent.num_releases, spent.delta, spent.accounting_method) == (2, BUDGET.delta, "GDP")
    assert (
        spent.epsilon
        == price(
            compose(accountant.ledger.commitments()), delta=BUDGET.delta, relation=Relation.REPLACE_SPECIAL
        ).epsilon
    )
