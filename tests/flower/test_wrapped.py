"""What a strategy that was made private relies on of Flower's; each test names what changed when the pin moves."""

import inspect
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Result, Strategy
from flwr.supercore.run import Run

from incrowd.errors import ConfigError
from incrowd.flower import PrivateStrategy
from incrowd.flower.strategy import LOOKS_AT_ONE, no_nodes, question, stepped
from tests.flower.stock import Answer, StockGrid, identify, moved, record, reply, sent

AVERAGES = {"FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedYogi"}
DOORS = {"aggregate_evaluate", "aggregate_train", "configure_evaluate", "configure_train", "start", "summary"}


def test_every_strategy_of_flowers_is_known_to_average_or_refused() -> None:
    refused = {kind.__name__ for kind in LOOKS_AT_ONE}
    assert set(strategy.__all__) == AVERAGES | refused | {"Result", "Strategy"}, "decide which it is: see LOOKS_AT_ONE"


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


def test_what_flowers_own_strategy_lacks_is_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should one of these change, docs/flower.md does not tell the truth any more."""
    identify(monkeypatch)
    start = record(w=np.zeros(10, np.float32))

    def trained(odd: Answer, nodes: int = 1) -> Result:
        """A round of four nodes, of which the first are odd."""
        grid = StockGrid(range(4), lambda message: (odd if message.metadata.dst_node_id < nodes else moved)(message))
        averaging = FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4)
        return DifferentialPrivacyServerSideFixedClipping(averaging, 2.0, 1.0, 4).start(grid, start, num_rounds=1)

    poisoned = trained(lambda message: reply(message, record(w=np.full(10, np.nan, np.float32))))
    assert np.isnan(poisoned.arrays["w"].numpy()).all()
    incomplete = trained(lambda message: sent(Message(Error(1, "gone"), reply_to=message), message))
    assert len(incomplete.arrays) == 0
    with pytest.raises(ZeroDivisionError):
        trained(lambda message: reply(message, message.content.array_records["arrays"]))
    told = trained(lambda message: reply(message, record(w=np.ones(10, np.float32)), loss=2.0), nodes=4)
    assert told.train_metrics_clientapp[1]["loss"] == pytest.approx(2.0)
    released = set()
    for _ in range(2):
        np.random.seed(1)  # noqa: NPY002  # the noise is drawn from this generator, which is the point
        released.add(trained(moved).arrays["w"].data)
    assert len(released) == 1


@pytest.mark.parametrize("kind", sorted(AVERAGES))
def test_a_mean_that_did_not_move_leaves_the_model_where_it_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    identify(monkeypatch)
    more = {"proximal_mu": 0.1} if kind == "FedProx" else {}
    wrapped: FedAvg = getattr(strategy, kind)(min_available_nodes=50, **more)
    arrays = record(w=np.arange(3.0))
    asked, message_type = question(wrapped, 1, arrays, ConfigRecord({"rate": 0.5}), clients=2)
    assert (message_type, asked.config_records["config"]["rate"]) == ("train", 0.5)
    np.testing.assert_array_equal(stepped(wrapped, 1, asked, arrays)["w"].numpy(), np.arange(3.0))
