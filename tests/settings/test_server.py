import numpy as np
import pytest
import torch

from incrowd._random import Floats
from incrowd.algorithms.fedavg import NO_CLIP, Answers, State
from incrowd.algorithms.server import optimizer_of, stepped
from incrowd.settings.server import ServerOptimizer


def walk(step: ServerOptimizer, means: Floats) -> Floats:
    weights, memory = np.zeros(means.shape[1]), optimizer_of(step).init(means.shape[1])
    for number, mean in enumerate(means):
        direction, memory = stepped(step, mean, memory)
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


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adaptive_steps_are_the_formulas_number_by_number(kind: str) -> None:
    """Reddi et al. 2021, algorithm 2, without bias correction; Adam's second moment starts at 0."""
    step = ServerOptimizer(kind=kind, learning_rate=0.1, momentum=0.9, adaptivity=0.3)
    for column, found in enumerate(walk(step, MEANS)):
        weight = first = 0.0
        second = 0.3**2 if kind == "yogi" else 0.0
        for mean in MEANS[:, column]:
            first = 0.9 * first + 0.1 * mean
            sign = 1 if second > mean * mean else -1
            second = second - 0.01 * mean * mean * sign if kind == "yogi" else 0.99 * second + 0.01 * mean * mean
            weight += 0.1 * first / (second**0.5 + 0.3)
        assert found == pytest.approx(weight)
    other = ServerOptimizer(kind="yogi" if kind == "adam" else "adam", learning_rate=0.1, adaptivity=0.3)
    assert walk(other, MEANS) != pytest.approx(walk(step, MEANS))


@pytest.mark.parametrize("decay", ["none", "linear"])
def test_the_published_weights_are_the_mean_over_the_last_half_of_the_rounds(decay: str) -> None:
    step = ServerOptimizer.model_validate({"decay": decay, "average": "tail", "learning_rate": 0.7})
    state = State.first(np.zeros(4), server=step, carry=NO_CLIP)
    weights, late = np.zeros(4), []
    for number, mean in enumerate(MEANS):
        state = state.after(Answers(mean=mean, carry=NO_CLIP), server=step, rounds=7)
        weights = weights + 0.7 * (1 - number / 7 if decay == "linear" else 1) * mean
        late += [weights] if number >= 3 else []
    assert state.published == pytest.approx(np.mean(late, axis=0))
