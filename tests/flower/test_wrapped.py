"""What a strategy that was made private relies on of Flower's; each test names what changed when the pin moves."""

import inspect
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.privacy_accounting import PrivacyAccountant
from flwr.supercore.run import Run

from incrowd.errors import ConfigError
from incrowd.flower import LedgerAccountant, PrivateStrategy
from incrowd.flower.strategy import LOOKS_AT_ONE, NoNodes, question, stepped
from tests.flower.stock import identify, record

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


def test_the_accountant_has_all_that_flower_may_ask() -> None:
    asked = {name for name in vars(PrivacyAccountant) if not name.startswith("_")}
    assert asked == {
        "compose",
        "config",
        "get_delta",
        "get_epsilon",
        "get_privacy_spent",
        "load_state_dict",
        "num_releases",
        "state_dict",
        "would_exceed",
    }
    assert asked <= set(vars(LedgerAccountant))


def test_the_grid_that_a_strategy_gets_reaches_nobody() -> None:
    grid = NoNodes(3)
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
    assert {name for name in vars(Grid) if not name.startswith("_")} <= set(vars(NoNodes)) | {"get_nodes"}


@pytest.mark.parametrize("kind", sorted(AVERAGES))
def test_a_mean_that_did_not_move_leaves_the_model_where_it_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    identify(monkeypatch)
    more = {"proximal_mu": 0.1} if kind == "FedProx" else {}
    wrapped: FedAvg = getattr(strategy, kind)(min_available_nodes=50, **more)
    arrays = record(w=np.arange(3.0))
    asked, message_type = question(wrapped, 1, arrays, ConfigRecord({"rate": 0.5}), clients=2)
    assert (message_type, asked.config_records["config"]["rate"]) == ("train", 0.5)
    np.testing.assert_array_equal(stepped(wrapped, 1, asked, arrays)["w"].numpy(), np.arange(3.0))
