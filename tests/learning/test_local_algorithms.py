"""Local algorithms beside slow twins, and what one of somebody's own may do."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd import Local, _extensions
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning import SQUARED, ClientTensors, CohortEngine, Execution, Model, linear
from incrowd.learning.backends import BACKENDS
from incrowd.learning.backends.backend import Task
from incrowd.learning.backends.loop import Loop
from incrowd.learning.contributions import Shortening
from incrowd.learning.inputs import draw_batches
from incrowd.learning.local_algorithms import Sgd, descend
from incrowd.types import ClientAtWork, LocalAlgorithm, register
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, assert_close, clients, trained, twin

LOCAL = Local(learning_rate=0.1, batch_size=5, epochs=2, algorithm="scaffold")


def gradient(model: Model, weights: Tensor, data: ClientTensors, rows: Sequence[int]) -> Tensor:
    features, labels = torch.as_tensor(data.features)[rows] * data.scale, data.labels[rows]
    module = model.with_weights(weights)
    value = nn.functional.cross_entropy(module(features), labels)
    return torch.cat([one.flatten() for one in torch.autograd.grad(value, list(module.parameters()))])


def slow_scaffold(
    model: Model, start: Tensor, shared: Tensor, data: ClientTensors, local: Local, client: int
) -> Floats:
    """Karimireddy et al. 2020, algorithm 1 with option I, one client."""
    examples, scale = data.examples(client), local.learning_rate * local.epochs * (local.batches or 1)
    own, now = gradient(model, start, data, examples.tolist()), start.clone()
    batches = draw_batches(len(examples), local, randomness=RANDOMNESS, round=3, client=client)
    for places, size in zip(batches.positions, batches.sizes, strict=True):
        step = gradient(model, now, data, examples[places[:size]].tolist()) - own + shared / scale
        now = now - local.learning_rate * step
    return torch.cat([now - start, scale * own - shared]).numpy().astype(np.float64)


@pytest.mark.parametrize("changed", [{}, {"batch_size": None, "batches": 3}])
def test_scaffold_is_that_of_the_paper(changed: dict[str, int | None]) -> None:
    model, data, local = linear(FEATURES, CLASSES), clients(), LOCAL.replaced(**changed)
    engine, start = CohortEngine(model, data, local), model.initial(RANDOMNESS)
    shared = 0.01 * torch.randn(model.size, generator=torch.Generator().manual_seed(1))
    assert [type(one) for one in engine.backends] == [Loop]
    assert (engine.size, engine.parts) == (2 * model.size, (*model.parts, model.size))
    found = trained(engine, torch.cat([start, shared]), range(4))
    assert_close(found, {k: slow_scaffold(model, start, shared, data, local, k) for k in range(4)})
    how = Shortening(bound=1.0, parts=None, factors=partial(np.divide, 1.0))
    one, several = (
        CohortEngine(model, data, local, Execution(threads=threads)).train_and_sum(
            torch.cat([start, shared]), [3, 0], how, randomness=RANDOMNESS, round=3
        )
        for threads in (1, 2)
    )
    assert np.array_equal(one.total, several.total)


class Idle(nn.Module):
    """Some parameters have no part in the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.layer = nn.Parameter(torch.ones(3)), nn.Linear(FEATURES, CLASSES)

    def forward(self, examples: Tensor) -> Tensor:
        outputs: Tensor = self.layer(examples)
        return outputs


def test_parameters_without_a_gradient_stay() -> None:
    model = Model(Idle())
    engine = CohortEngine(model, clients(), LOCAL)
    (found,) = trained(engine, torch.cat([model.weights, torch.zeros(model.size)]), [0]).values()
    assert not found[:3].any()
    assert not found[model.size : model.size + 3].any()
    assert found[3 : model.size].any()


def test_one_clip_bounds_update_and_control_variate_together() -> None:
    model, data = linear(FEATURES, CLASSES), clients()
    engine = CohortEngine(model, data, LOCAL)
    start = torch.cat([model.initial(RANDOMNESS), torch.zeros(model.size)])
    for chunk in engine.train(start, range(4), randomness=RANDOMNESS, round=3):
        assert chunk.norms()[:, 0] == pytest.approx(np.linalg.norm(chunk.rows(), axis=1), rel=1e-4)
        halves = np.linalg.norm(chunk.rows().reshape(len(chunk), 2, -1), axis=2)
        assert (halves > 0).all()
        assert (chunk.norms()[:, 0] > halves.max(1)).all()


def two_that_differ() -> ClientTensors:
    """Least squares whose clients' curvatures and optima differ: many local steps pull the mean aside."""
    features = torch.tensor([[1.0], [3.0]])
    labels = features[:, 0] * torch.tensor([4.0, 0.0])
    return ClientTensors(features=features, labels=labels, offsets=np.array([0, 1, 2]), indices=np.arange(2))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_scaffold_comes_to_the_optimum_of_all_where_clients_drift(algorithm: str) -> None:
    local = Local(learning_rate=0.01, epochs=10, algorithm=algorithm)
    model = linear(1, 1, bias=False)
    engine = CohortEngine(model, two_that_differ(), local, loss=SQUARED)
    state = torch.zeros(engine.size, dtype=torch.float64)
    for number in range(200):
        rows = trained(engine, state, [0, 1], round=number)
        state += torch.from_numpy(np.mean(list(rows.values()), axis=0))
    best = 4 / 10  # the sum of x * y over the sum of x^2
    assert (abs(float(state[0]) - best) < 1e-3) == (algorithm == "scaffold")


def test_scaffold_takes_steps_of_sgd() -> None:
    with pytest.raises(ConfigError, match=r"local.optimizer = 'adam': scaffold takes steps of sgd"):
        LOCAL.replaced(optimizer="adam")


def test_a_round_starts_with_as_many_numbers_as_a_client_sends() -> None:
    engine = CohortEngine(linear(FEATURES, CLASSES), clients(), LOCAL)
    with pytest.raises(ConfigError, match=f"weights = .*: give one vector of {engine.size} numbers"):
        trained(engine, engine.model.weights, [0])


class Halved:
    """An algorithm of somebody's own: half a learning rate."""

    def __init__(self, local: Local) -> None:
        self.local = local.replaced(learning_rate=local.learning_rate / 2)

    def sends(self, size: int) -> int:
        return 0 * size

    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:
        assert not shared
        descend(client, self.local)
        return ()


class Remembering(Halved):
    """It begins where the last client ended."""

    last: float = 0.0

    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:
        super().train(client, shared)
        self.last += float(client.parameters[0].detach().sum())
        return ()


PLAIN = LOCAL.replaced(algorithm="fedavg")


def test_an_algorithm_of_ones_own_is_used_and_named() -> None:
    model, data = linear(FEATURES, CLASSES), clients()
    engine, weights = CohortEngine(model, data, PLAIN, algorithm=Halved(PLAIN)), model.initial(RANDOMNESS)
    assert engine.third_party == "algorithm Halved"
    half = PLAIN.replaced(learning_rate=PLAIN.learning_rate / 2)
    assert_close(trained(engine, weights, range(4)), twin(model, data, half, weights, range(4)))
    assert CohortEngine(model, data, PLAIN, algorithm=Sgd(PLAIN)).third_party == ""


def test_a_registered_algorithm_is_found_by_its_name_and_sends_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    register("local_algorithms", "halved", Halved)
    model, local = linear(FEATURES, CLASSES), PLAIN.replaced(algorithm="halved")
    assert CohortEngine(model, clients(), local).third_party == "algorithm Halved"
    monkeypatch.setattr(Halved, "sends", lambda _, size: size - 1)
    with pytest.raises(ConfigError, match="let it send 0 or"):
        CohortEngine(model, clients(), local)


@pytest.mark.parametrize("kind", [Remembering, Halved])
def test_an_algorithm_that_remembers_clients_ends_the_round(kind: type[LocalAlgorithm]) -> None:
    """Attack: what one client's weights came to moved the next one's update. The control remembers nothing."""
    model = linear(FEATURES, CLASSES)
    engine = CohortEngine(model, clients(), PLAIN, algorithm=kind(PLAIN))  # type: ignore[call-arg]  # both take settings
    if kind is Halved:
        assert len(trained(engine, model.weights, [0, 1])) == 2
        return
    with pytest.raises(ConfigError, match="it remembers what it was called with"):
        trained(engine, model.weights, [0, 1])


class Mine(Loop):
    """A backend of somebody's own, for small clients."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.takes = np.diff(task.data.offsets) < 10


def test_a_backend_of_ones_own_comes_first_where_it_takes_a_client_and_is_named() -> None:
    model, data = linear(FEATURES, CLASSES), clients()
    engine = CohortEngine(model, data, PLAIN, backends=(Mine, *BACKENDS))
    assert [type(one).__name__ for one in engine.backends] == ["Mine", "Fast"]
    assert engine.third_party == "backend Mine"
    weights = model.initial(RANDOMNESS)
    assert_close(trained(engine, weights, range(4)), twin(model, data, PLAIN, weights, range(4)))


def test_a_device_that_torch_does_not_find_is_refused() -> None:
    with pytest.raises(ConfigError, match="device = 'nowhere': give one that torch finds here"):
        Execution(device="nowhere")
