"""A strategy of Flower's that was made private: whom it asks, what it releases, what it refuses before it pays."""

import inspect
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as stock
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Krum, Result, Strategy
from flwr.supercore.run import Run

from incrowd.errors import BudgetExceeded, ConfigError, RehearsalFailed, RoundUnanswered
from incrowd.flower import PrivateStrategy, private
from incrowd.flower.strategy import LOOKS_AT_ONE, no_nodes, question, stepped
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip, QuantileClip
from incrowd.privacy.plan.plan import Plan, PlanConfig, Sampling
from incrowd.privacy.plan.planner import Question
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson
from incrowd.privacy.release import PrivateRun
from tests.flower.stock import (
    BUDGET,
    CLIENTS,
    NODES,
    ROUNDS,
    SEED,
    START,
    Answer,
    StockGrid,
    arrays_in,
    but,
    by_hand,
    honest,
    identify,
    ledger_for,
    made,
    moved,
    planned,
    record,
    reply,
    same,
    sent,
    still,
    trained,
)

AVERAGES = {"FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedYogi"}
DOORS = {"aggregate_evaluate", "aggregate_train", "configure_evaluate", "configure_train", "start", "summary"}


def averaging() -> FedAvg:
    return FedAvg(min_available_nodes=CLIENTS)


def on_disk(path: Path, plan: Plan) -> Ledger:
    return Ledger.open(path, budget=BUDGET, relation=plan.relation, data_identity="stock")


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    identify(monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Everyone, Poisson, FixedSize])
def test_what_comes_out_is_what_the_plans_own_run_releases(sampling: Sampling) -> None:
    plan = planned(sampling)
    assert same(trained(StockGrid(NODES, honest), strategy=made(plan), rounds=ROUNDS), by_hand(plan, ROUNDS))


def test_the_plan_draws_who_is_asked_and_flowers_fraction_does_not() -> None:
    plan = planned(Poisson)
    grid = StockGrid(reversed(NODES), honest)
    trained(grid, strategy=made(plan, fraction_train=0.2), rounds=ROUNDS)
    run = PrivateRun(plan, ledger=ledger_for(plan), randomness=SEED, size=8)
    expected = [NODES[client] for number in range(ROUNDS) for client in run.cohort(number)]
    assert [message.metadata.dst_node_id for message in grid.asked] == expected
    assert {message.metadata.message_type for message in grid.asked} == {"train"}


def test_each_nodes_move_is_clipped_to_the_plans_bound() -> None:
    def loud(message: Message) -> Message:
        arrays = arrays_in(message.content.array_records["arrays"])
        return reply(message, record(**{name: array + np.asarray(1e6, array.dtype) for name, array in arrays.items()}))

    shouted, quiet = (trained(StockGrid(NODES, answer)) for answer in (loud, still))
    shift = np.concatenate([(shouted[name] - quiet[name]).ravel() for name in START])  # the noise is the same
    assert np.linalg.norm(shift) == pytest.approx(0.5, rel=1e-3)


def test_who_is_not_connected_counts_as_zero_and_the_denominator_is_the_plans() -> None:
    found = trained(StockGrid(NODES[:5], honest), strategy=made(planned(), nodes=2))
    assert same(found, trained(StockGrid(NODES, but(NODES[5], still))))


def telling(message: Message) -> Message:
    """A node that tells what nobody has paid for."""
    if message.metadata.message_type == "evaluate":
        content = RecordDict({"metrics": MetricRecord({"num-examples": 17, "accuracy": 0.123456})})
        return sent(Message(content, reply_to=message), message)
    answer = honest(message)
    answer.content.metric_records["metrics"].update({"loss": 0.987654, "num-examples": 10**9})
    answer.content["more"] = ConfigRecord({"name": "Mrs Miller"})
    return answer


def test_nothing_that_nodes_tell_beside_the_arrays_is_passed_on_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[RecordDict] = []

    def looking(contents: list[RecordDict], key: str) -> MetricRecord:
        seen.extend(contents)
        return MetricRecord({"loss": float(len(key))})

    plan = planned()
    averages = FedAvg(min_available_nodes=CLIENTS, train_metrics_aggr_fn=looking)
    strategy = private(averages, plan, ledger_for(plan), randomness=SEED)
    flower = logging.getLogger("flwr")
    flower.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.DEBUG, "flwr"):
            grid = StockGrid(NODES, telling)
            result = strategy.start(grid, record(**START), num_rounds=2)
    finally:
        flower.removeHandler(caplog.handler)
    assert same(arrays_in(result.arrays), trained(StockGrid(NODES, honest), rounds=2))
    assert (result.train_metrics_clientapp, result.evaluate_metrics_clientapp) == ({}, {})
    assert {message.metadata.message_type for message in grid.asked} == {"train"}
    assert all(list(content.metric_records.values()) == [MetricRecord({"num-examples": 1})] for content in seen)
    assert "Starting PrivateStrategy" in caplog.text
    for private_word in ("0.987", "0.123", "Miller", "Received 6"):
        assert private_word not in caplog.text


def test_start_ends_with_the_plan_in_whatever_life_of_the_program_that_is(tmp_path: Path) -> None:
    plan, grid = planned(), StockGrid(NODES, honest)
    for rounds, asked, charged in ((1, 1, 1), (100, 2, ROUNDS)):
        with on_disk(tmp_path / "ledger", plan) as ledger:
            strategy = private(averaging(), plan, ledger)
            before = len(grid.asked)
            result = strategy.start(grid, record(**START), num_rounds=rounds)
            assert (len(grid.asked) - before) / CLIENTS == asked
            assert ledger.charges() == (charged, 0)
            assert set(result.arrays) == set(START)
            assert strategy.statement().epsilon == ledger.spent().epsilon
    before = len(grid.asked)
    with on_disk(tmp_path / "ledger", plan) as ledger:
        strategy = private(averaging(), plan, ledger)
        with pytest.raises(BudgetExceeded, match="all 3 rounds"):
            strategy.start(grid, record(**START), num_rounds=1)
        with pytest.raises(BudgetExceeded, match="all 3 rounds"):
            strategy.configure_train(1, record(**START), ConfigRecord(), grid)
        assert ledger.spent().epsilon <= BUDGET.epsilon
    assert len(grid.asked) == before


def test_a_round_that_is_paid_for_is_not_released_twice() -> None:
    plan = planned()
    strategy, grid = private(averaging(), plan, ledger_for(plan)), StockGrid(NODES, honest)
    asked = list(strategy.configure_train(1, record(**START), ConfigRecord(), grid))
    answers = [honest(message) for message in asked]
    strategy.aggregate_train(1, answers)
    with pytest.raises(ConfigError, match="ask nodes first"):
        strategy.aggregate_train(1, answers)


WHOLE = [record(**START, num_batches_tracked=np.array(3).astype(kind)) for kind in (np.int64, np.bool_, np.complex64)]
EMPTY = [record(w=np.array([np.nan])), record(), record(w=np.zeros((0, 3)))]


@pytest.mark.parametrize("arrays", [*WHOLE, *EMPTY])
def test_whole_numbers_are_refused_with_a_remedy(arrays: ArrayRecord) -> None:
    plan = planned()
    ledger, grid = ledger_for(plan), StockGrid(NODES, honest)
    with pytest.raises(ConfigError, match=r"arrays|num_batches_tracked.*group norm"):
        private(averaging(), plan, ledger).start(grid, arrays)
    assert (grid.asked, len(ledger.entries())) == ([], 1)


def test_more_nodes_than_clients_and_a_ledger_without_room_are_refused_before_anybody_is_asked() -> None:
    plan = planned()
    ledger, grid = ledger_for(plan), StockGrid([*NODES, 99], honest)
    with pytest.raises(ConfigError, match="7 nodes are connected"):
        private(averaging(), plan, ledger).start(grid, record(**START))
    assert ledger.charges() == (0, 0)
    spent = ledger_for(plan)
    spent.charge(Everyone(clients=CLIENTS, cohort=CLIENTS).event(2.0))
    with pytest.raises(BudgetExceeded):
        private(averaging(), plan, spent).start(grid, record(**START))
    assert grid.asked == []


class Own(FedAvg):
    """A strategy with one thing of its own that does not go."""

    def __init__(self, what: str) -> None:
        super().__init__(min_available_nodes=1, fraction_train=0.0 if what == "nobody" else 1.0)
        self.what = what
        if what == "uncopied":
            self.held = (number for number in range(3))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if self.what == "different":
            other = RecordDict({"arrays": arrays, "config": ConfigRecord({"rate": 2.0})})
            messages[1] = Message(other, 2, "train")
        if self.what == "two":
            content = RecordDict({"arrays": arrays, "again": arrays})
            messages = [Message(content, 1, "train")]
        if self.what == "asks":
            grid.send_and_receive(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if self.what == "metrics":
            return None, MetricRecord({"loss": next(iter(replies)).content.metric_records["metrics"]["loss"]})
        found, metrics = super().aggregate_train(server_round, replies)
        if self.what == "nothing":
            return None, metrics
        if self.what == "renames" and found is not None:
            return ArrayRecord({f"{name}.": array for name, array in found.items()}), metrics
        return found, metrics


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("nobody", ConfigError, "fraction_train above 0"),
        ("different", ConfigError, "asks nodes different things"),
        ("two", ConfigError, "sends 2 records of arrays"),
        ("asks", ConfigError, "cannot ask nodes by itself"),
        ("nothing", ConfigError, "makes nothing of the mean"),
        ("renames", ConfigError, "other arrays back"),
        ("metrics", RehearsalFailed, "KeyError.*no metrics of nodes"),
        ("uncopied", RehearsalFailed, "cannot be copied"),
    ],
)
def test_a_strategy_that_does_not_go_is_refused_before_anything_is_spent(
    what: str, error: type[Exception], words: str
) -> None:
    plan = planned()
    ledger, grid = ledger_for(plan), StockGrid(NODES, honest)
    with pytest.raises(error, match=words):
        private(Own(what), plan, ledger).start(grid, record(**START))
    assert (grid.asked, len(ledger.entries())) == ([], 1)


class Starting(FedAvg):
    def start(self, *given: object, **named: object) -> NoReturn:
        raise NotImplementedError


@pytest.mark.parametrize("strategy", [Krum(), Starting()], ids=lambda each: type(each).__name__)
def test_strategies_that_would_be_something_else_are_refused(strategy: Strategy) -> None:
    plan = planned()
    with pytest.raises(ConfigError, match="strategy"):
        private(strategy, plan, ledger_for(plan))
    with pytest.raises(ConfigError, match="averages"):
        private(made(plan), plan, ledger_for(plan))
    assert len(set(LOOKS_AT_ONE)) == 12


def test_plans_that_stock_nodes_cannot_keep_are_refused() -> None:
    local = Question(
        clients=CLIENTS,
        rounds=1,
        epsilon=8.0,
        delta=1e-5,
        sampling=Everyone,
        noise_by="party",
        clip=FixedClip(clip_norm=1.0),
    ).answer()
    with pytest.raises(ConfigError, match="add no noise of their own"):
        made(local)
    with pytest.raises(ConfigError, match="give a Plan"):
        private(averaging(), "a plan", ledger_for(planned()))  # type: ignore[arg-type]  # as a program without types could
    turns = PlanConfig.in_turns(clients=CLIENTS, rounds=2, groups=1).calibrate(Budget(epsilon=8.0, delta=1e-5))
    with pytest.raises(ConfigError, match="needs clients that keep their numbers"):
        made(turns)


def test_a_quantile_is_followed_in_one_life_of_the_program_only(tmp_path: Path) -> None:
    plan = planned(clip=QuantileClip(clip_norm=0.5, bit_noise=10.0))
    with on_disk(tmp_path / "ledger", plan) as ledger:
        private(averaging(), plan, ledger).start(StockGrid(NODES, moved), record(**START), num_rounds=2)
        assert ledger.charges() == (2, 0)
    with on_disk(tmp_path / "ledger", plan) as ledger, pytest.raises(ConfigError, match="its bound is gone"):
        private(averaging(), plan, ledger).start(StockGrid(NODES, moved), record(**START))


def test_a_round_in_which_nobody_answers_ends_the_run_and_costs_nothing() -> None:
    plan = planned()
    ledger = ledger_for(plan)

    def silent(message: Message) -> Message:
        return sent(Message(Error(1, "gone"), reply_to=message), message)

    with pytest.raises(RoundUnanswered):
        private(averaging(), plan, ledger).start(StockGrid(NODES, silent), record(**START))
    assert ledger.charges() == (0, 0)
    ledger = ledger_for(plan)
    one = StockGrid(NODES, lambda message: (honest if message.metadata.dst_node_id == NODES[0] else silent)(message))
    private(averaging(), plan, ledger).start(one, record(**START), num_rounds=1)  # the control: one answer is enough
    assert ledger.charges() == (1, 0)


# What it relies on of Flower's: each test names what changed when the pin moves.


def test_every_strategy_of_flowers_is_known_to_average_or_refused() -> None:
    refused = {kind.__name__ for kind in LOOKS_AT_ONE}
    assert set(stock.__all__) == AVERAGES | refused | {"Result", "Strategy"}, "decide which it is: see LOOKS_AT_ONE"


def test_a_strategy_has_no_other_doors_than_those_that_are_watched() -> None:
    public = {name for name in vars(Strategy) if not name.startswith("_")}
    assert public == DOORS, "what is new could lead past the ledger: see PrivateStrategy"
    assert public <= set(vars(PrivateStrategy))
    for name in DOORS:
        expected = list(inspect.signature(getattr(Strategy, name)).parameters)
        assert list(inspect.signature(getattr(PrivateStrategy, name)).parameters) == expected


def test_the_grid_that_a_strategy_gets_reaches_nobody() -> None:
    grid = no_nodes(3)
    assert list(grid.get_node_ids()) == [1, 2, 3]
    assert [node.node_id for node in grid.get_nodes()] == [1, 2, 3]
    reach: list[Callable[[], object]] = [
        lambda: grid.push_messages([]),
        lambda: grid.pull_messages([]),
        lambda: grid.send_and_receive([], timeout=1.0),
        lambda: grid.create_message(RecordDict(), MessageType.TRAIN, 1, ""),
        lambda: grid.set_run(Run.create_empty(1)),
        lambda: grid.run,
    ]
    for call in reach:
        with pytest.raises(ConfigError, match="cannot ask nodes by itself"):
            call()
    assert {name for name in vars(Grid) if not name.startswith("_")} == {*Grid.__abstractmethods__, "get_nodes"}


def test_what_flowers_own_strategy_lacks_is_what_the_page_says() -> None:
    """Should one of these change, docs/flower.md does not tell the truth any more."""
    start = record(w=np.zeros(10, np.float32))

    def trained_with(odd: Answer, nodes: int = 1) -> Result:
        """A round of four nodes, of which the first are odd."""
        grid = StockGrid(range(4), lambda message: (odd if message.metadata.dst_node_id < nodes else moved)(message))
        averaging = FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4)
        return DifferentialPrivacyServerSideFixedClipping(averaging, 2.0, 1.0, 4).start(grid, start, num_rounds=1)

    poisoned = trained_with(lambda message: reply(message, record(w=np.full(10, np.nan, np.float32))))
    assert np.isnan(poisoned.arrays["w"].numpy()).all()
    incomplete = trained_with(lambda message: sent(Message(Error(1, "gone"), reply_to=message), message))
    assert len(incomplete.arrays) == 0
    with pytest.raises(ZeroDivisionError):
        trained_with(still)
    told = trained_with(lambda message: reply(message, record(w=np.ones(10, np.float32)), loss=2.0), nodes=4)
    assert told.train_metrics_clientapp[1]["loss"] == pytest.approx(2.0)
    released = set()
    for _ in range(2):
        np.random.seed(1)  # noqa: NPY002  # the noise is drawn from this generator, which is the point
        released.add(trained_with(moved).arrays["w"].data)
    assert len(released) == 1


@pytest.mark.parametrize("kind", sorted(AVERAGES))
def test_a_mean_that_did_not_move_leaves_the_model_where_it_is(kind: str) -> None:
    more = {"proximal_mu": 0.1} if kind == "FedProx" else {}
    wrapped: FedAvg = getattr(stock, kind)(min_available_nodes=50, **more)
    arrays = record(w=np.arange(3.0))
    asked, message_type = question(wrapped, 1, arrays, ConfigRecord({"rate": 0.5}), clients=2)
    assert (message_type, asked.config_records["config"]["rate"]) == ("train", 0.5)
    np.testing.assert_array_equal(stepped(wrapped, 1, asked, arrays)["w"].numpy(), np.arange(3.0))
