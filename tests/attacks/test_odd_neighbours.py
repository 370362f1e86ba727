"""A client whose examples are unusual stops nobody's round: a crash after the charge tells of it, and costs all."""

from collections.abc import Callable

import pytest
from torch import nn

from incrowd import Local
from incrowd.learning import ClientTensors, CohortEngine, Model
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, assert_close, clients, trained, twin

LOCAL = Local(learning_rate=0.1, batch_size=4)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 9), nn.Softplus(), nn.Linear(9, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 70), nn.LayerNorm(70), nn.GELU(), nn.Linear(70, CLASSES))


def relu() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 70), nn.ReLU(), nn.Linear(70, CLASSES))


def large_first() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 1400), nn.Softplus(), nn.Linear(1400, CLASSES))


def large_second() -> nn.Module:
    first = nn.Linear(FEATURES, 400), nn.Softplus(), nn.Linear(400, 100)
    return nn.Sequential(*first, nn.Softplus(), nn.Linear(100, CLASSES))


MODULES = [small, relu, normed, large_first, large_second]


def with_nothing_in_the_second() -> ClientTensors:
    data = clients([12, 7, 30])
    data.features[data.indices[12:19]] = 0
    return data


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("module", MODULES, ids=lambda made: made.__name__)
@pytest.mark.parametrize("data", [clients([12, 7, 30]), with_nothing_in_the_second()], ids=["control", "all zero"])
def test_examples_that_are_zero_throughout_are_learned_from(
    data: ClientTensors, module: Callable[[], nn.Module], momentum: float
) -> None:
    local = LOCAL.model_copy(update={"momentum": momentum})
    model = Model(module(), fresh=True)
    weights = model.initial(RANDOMNESS)
    found = trained(CohortEngine(model, data, local), weights, range(3))
    assert_close(found, twin(model, data, local, weights, range(3)))


@pytest.mark.parametrize("module", MODULES, ids=lambda made: made.__name__)
@pytest.mark.parametrize("offset", [-0.1, 0.0], ids=["control", "each other features"])
def test_clients_who_use_other_features_take_turns(offset: float, module: Callable[[], nn.Module]) -> None:
    model, data = Model(module(), fresh=True), clients([12, 7, 30, 5], dead=0.6, offset=offset)
    engine, weights = CohortEngine(model, data, LOCAL), model.initial(RANDOMNESS)
    together = trained(engine, weights, range(4))
    for client in range(4):
        assert (trained(CohortEngine(model, data, LOCAL), weights, [client])[client] == together[client]).all()
