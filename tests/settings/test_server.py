import numpy as np
import pytest
import torch

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.federated.fedavg import State
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.privacy.plan.promise import Carry
from incrowd.settings.server import ServerOptimizer


def walk(step: ServerOptimizer, means: Floats) -> Floats:
    weights, memory = np.zeros(means.shape[1]), step.start(means.shape[1])
    for number, mean in enumerate(means):
        direction, memory = step.direction(mean, memory)
        weights = weights + step.rate(number, len(means)) * direction
    return weights


MEANS = np.random.Generator(np.random.PCG64(0)).normal(size=(7, 4))


def test_sgd_adds_the_means() -> None:
    assert walk(ServerOptimizer(learning_rate=0.5), MEANS) == pytest.approx(0.5 * MEANS.sum(axis=0))


def test_momentum_is_torch_s() -> None:
    weights = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.3, momentum=0.8)
    for mean in MEANS:
        weights.grad = torch.from_numpy(-mean)
        optimizer.step()
    found = walk(ServerOptimizer(kind="momentum", learning_rate=0.3, momentum=0.8), MEANS)
    assert found == pytest.approx(weights.detach().numpy())


def test_adam_is_the_formula_number_by_number() -> None:
    step = ServerOptimizer(kind="adam", learning_rate=0.1, momentum=0.9, adaptivity=0.01)
    for column, found in enumerate(walk(step, MEANS)):
        weight = first = second = 0.0
        for mean in MEANS[:, column]:
            first = 0.9 * first + 0.1 * mean
            second = 0.99 * second + 0.01 * mean * mean
            weight += 0.1 * first / (second**0.5 + 0.01)
        assert found == pytest.approx(weight)


@pytest.mark.parametrize("kind", ["sgd", "momentum"])
@pytest.mark.parametrize("decay", ["none", "linear"])
@pytest.mark.parametrize("average", ["none", "tail"])
@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_influence_is_what_a_mean_adds_to_the_published_weights(
    kind: str, decay: str, average: str, rounds: int
) -> None:
    step = ServerOptimizer.model_validate(
        {"kind": kind, "decay": decay, "average": average, "learning_rate": 0.7, "momentum": 0.6}
    )
    means = np.eye(rounds)  # each round moves a weight of its own, so what is published is the influence
    state = State.first(np.zeros(rounds), server=step, carry=Carry(clip=NormalisedClip()))
    for mean in means:
        state = state.moved(mean, server=step, rounds=rounds, carry=state.carry)
    assert step.influence(rounds) == pytest.approx(state.published)


def test_of_adam_no_influence_can_be_told_beforehand() -> None:
    with pytest.raises(ConfigError, match=r"server\.kind"):
        ServerOptimizer(kind="adam").influence(3)
