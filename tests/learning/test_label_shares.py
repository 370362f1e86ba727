"""A client's own label shares in its logits: every path against a plain loop that spells the likelihood out."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from incrowd import Local
from incrowd.errors import ConfigError
from incrowd.learning import (
    CROSS_ENTROPY,
    LOGISTIC,
    SQUARED,
    ClientTensors,
    CohortEngine,
    Loss,
    Model,
    backends,
    linear,
    mlp,
)
from incrowd.learning.backends import BACKENDS
from incrowd.learning.backends.backend import MakeBackend
from incrowd.learning.losses import logit_offset
from tests.learning.cohorts import (
    CLASSES,
    FEATURES,
    RANDOMNESS,
    SIZES,
    assert_close,
    clients,
    trained,
    twin,
    with_labels,
)

LOCAL = Local(learning_rate=0.3, batch_size=10)
SHARES = LOCAL.replaced(label_shares=0.1)
WHO = range(len(SIZES))


def by_hand(data: ClientTensors, client: int) -> Loss:
    """The likelihood of a client's labels, given that it draws classes as often as it has them (+ 0.1)."""
    labels = data.labels[torch.as_tensor(data.examples(client), dtype=torch.int64)]
    weight = torch.tensor([float((labels == kind).float().mean()) + 0.1 for kind in range(CLASSES)])

    def value(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        odds = outputs.exp() * weight
        return -(odds[torch.arange(len(wanted)), wanted] / odds.sum(1)).log().mean()

    return Loss(name="by hand", value=value)


def through(*between: nn.Module) -> Model:
    return Model(nn.Sequential(nn.Linear(FEATURES, 9), *between, nn.Linear(9, CLASSES)), fresh=True)


MODELS: dict[str, Callable[[], Model]] = {
    "linear": lambda: linear(FEATURES, CLASSES),
    "perceptron": lambda: mlp((FEATURES, 400, CLASSES)),
    "any": lambda: through(nn.LayerNorm(9), nn.Softplus()),
}


@pytest.mark.parametrize("paths", [BACKENDS, (backends.loop.make,)], ids=["all", "one"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_every_path_learns_by_the_likelihood_given_the_clients_own_shares(
    make: Callable[[], Model], paths: tuple[MakeBackend, ...]
) -> None:
    model, data = make(), clients(dead=0.6)
    weights = model.initial(RANDOMNESS)
    found = trained(CohortEngine(model, data, SHARES, backends=paths), weights, WHO)
    expected = {k: twin(model, data, LOCAL, weights, [k], loss=by_hand(data, k))[k] for k in WHO}
    assert_close(found, expected)
    without = trained(CohortEngine(model, data, LOCAL, backends=paths), weights, WHO)
    assert max(float(np.abs(found[k] - without[k]).max()) for k in WHO) > 1e-2


def test_other_clients_labels_change_nothing() -> None:
    model, data = linear(FEATURES, CLASSES), clients(dead=0.6)
    labels = data.labels.clone()
    others = torch.as_tensor(np.concatenate([data.examples(k) for k in WHO if k != 2]), dtype=torch.int64)
    labels[others] = 0
    weights = model.initial(RANDOMNESS)
    both = (data, with_labels(data, labels))
    one, two = (trained(CohortEngine(model, each, SHARES), weights, [2])[2] for each in both)
    assert np.array_equal(one, two)


def test_yes_and_no_shift_the_one_logit() -> None:
    labels = torch.tensor([1, 0, 0, 0])
    offset = logit_offset(labels, 0.25, loss=LOGISTIC, outputs=(1,))
    assert offset.tolist() == pytest.approx([float(np.log(0.5 / 1.0))])
    two = logit_offset(torch.tensor([[1, 0], [1, 1]]), 0.5, loss=LOGISTIC, outputs=(2,))
    assert two.tolist() == pytest.approx([float(np.log(1.5 / 0.5)), 0.0])
    model, data = linear(FEATURES, 1), clients(dead=0.6)
    data = with_labels(data, (data.labels > 1).long())
    weights = model.initial(RANDOMNESS)
    engines = [
        CohortEngine(model, data, SHARES, backends=paths, loss=LOGISTIC) for paths in (BACKENDS, (backends.loop.make,))
    ]
    found = [trained(engine, weights, WHO) for engine in engines]
    assert_close(found[0], found[1])


def test_of_sequences_only_the_places_that_count_are_counted() -> None:
    labels = torch.tensor([[0, 1, -100], [1, -100, -100]])
    offset = logit_offset(labels, 0.1, loss=CROSS_ENTROPY, outputs=(3, 2))
    assert offset.tolist() == pytest.approx(np.log([1 / 3 + 0.1, 2 / 3 + 0.1]).tolist())
    nobody = logit_offset(labels[:0], 0.1, loss=CROSS_ENTROPY, outputs=(3, 2))
    assert nobody.tolist() == pytest.approx(np.log([0.1, 0.1]).tolist())


def test_a_loss_without_classes_is_refused() -> None:
    data = clients()
    data = with_labels(data, data.labels.float())
    with pytest.raises(ConfigError, match=r"local\.label_shares = 0\.1: it is for 'cross entropy' and 'logistic'"):
        CohortEngine(linear(FEATURES, 1), data, SHARES, loss=SQUARED)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_smoothing_that_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="label_shares"):
        Local(label_shares=value)
