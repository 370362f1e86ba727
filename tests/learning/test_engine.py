import numpy as np
import pytest
import torch
from torch import nn

from incrowd import Local
from incrowd.errors import ConfigError, DataError
from incrowd.learning import CROSS_ENTROPY, CohortEngine, Model, linear, mlp
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, SIZES, clients, trained, with_labels

COHORT = tuple(range(len(SIZES)))


def normalised() -> Model:
    return Model(nn.Sequential(nn.Linear(FEATURES, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, CLASSES)), fresh=True)


def test_the_global_generators_are_neither_read_nor_changed() -> None:
    model, data, local = normalised(), clients(), Local(learning_rate=0.3, batch_size=4)
    engine = CohortEngine(model, data, local)
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the generator that must not matter
        before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002 - as above
        found.append(trained(engine, model.initial(RANDOMNESS), [2])[2])
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]  # noqa: NPY002 - as above
    assert np.array_equal(found[0], found[1])


def test_neither_the_weights_nor_the_module_are_written_to() -> None:
    for model in (mlp((FEATURES, 70, CLASSES)), normalised(), linear(FEATURES, CLASSES)):
        weights = model.initial(RANDOMNESS)
        before, own = weights.clone(), model.weights
        trained(CohortEngine(model, clients(), Local(learning_rate=0.3, batch_size=4)), weights, COHORT)
        assert torch.equal(weights, before)
        assert torch.equal(model.weights, own)


@pytest.mark.parametrize("dead", [0.5, 0.8])
def test_training_that_diverges_is_visible(dead: float) -> None:
    data = clients(dead=dead)
    engine = CohortEngine(
        linear(FEATURES, 1),
        with_labels(data, data.labels.float()),
        Local(learning_rate=1e6, batch_size=2, epochs=9, loss="squared"),
    )
    for chunk in engine.train(torch.ones(FEATURES + 1), [6], randomness=RANDOMNESS, round=0):
        assert not np.isfinite(chunk.norms()).any()


def test_what_does_not_fit_is_refused_before_anything_is_trained() -> None:
    model, data, local = linear(FEATURES, CLASSES), clients(), Local(learning_rate=0.3)
    engine = CohortEngine(model, data, local)
    with pytest.raises(ConfigError, match=r"clients = 8: give numbers from 0 to 7"):
        next(engine.train(model.weights, [0, 8], randomness=RANDOMNESS, round=0))
    with pytest.raises(ConfigError, match="clients = -1"):
        next(engine.train(model.weights, [-1], randomness=RANDOMNESS, round=0))
    with pytest.raises(DataError, match="client 1 has no examples"):
        next(
            CohortEngine(model, clients([3, 0, 4]), local).train(model.weights, [0, 1], randomness=RANDOMNESS, round=0)
        )
    with pytest.raises(ConfigError, match="one vector of 125 numbers"):
        next(engine.train(torch.zeros(3), [0], randomness=RANDOMNESS, round=0))
    with pytest.raises(DataError, match=r"cannot take examples of the shape \(24,\)"):
        CohortEngine(linear(FEATURES + 1, CLASSES), data, local)
    with pytest.raises(DataError, match="'cross entropy' does not fit a model with 4 outputs"):
        CohortEngine(linear(FEATURES, CLASSES - 1), data, local)
    assert engine.loss is CROSS_ENTROPY
