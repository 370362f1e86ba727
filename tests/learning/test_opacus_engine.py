from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError
from incrowd.learning.opacus_engine import OpacusRecords
from tests.learning.record_models import FEATURES
from tests.learning.test_record_engine import Seen, rows, tilted
from tests.learning.test_records import training

RANDOMNESS = SeededRandomness(seed=2)
RECORDS = rows(40)
DATA = TensorDataset(RECORDS.features, RECORDS.labels)


NOBODY = (torch.zeros(FEATURES), torch.tensor(0))


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(DATA, **options)


def article() -> nn.Sequential:
    """The network of the article, but for its sizes: dropout, and logarithms of probabilities."""
    return nn.Sequential(
        nn.Linear(FEATURES, 8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(8, 4),
        nn.ReLU(),
        nn.Linear(4, 4),
        nn.LogSoftmax(1),
    )


def engine(
    module: nn.Module | None = None,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    criterion: Callable[[Any, Any], Tensor] | None = None,
    data: DataLoader[Any] | None = None,
    **options: float,
) -> OpacusRecords:
    module = nn.Linear(FEATURES, 4) if module is None else module
    steps = optimizer(module.parameters(), **({"lr": 0.1} | options))
    data = loader(batch_size=4) if data is None else data
    return OpacusRecords(module, steps, data, criterion=criterion or nn.CrossEntropyLoss(), made_up=NOBODY)


def train(one: OpacusRecords, weights: Tensor | None = None, **changes: Any) -> Tensor:
    settings = training(**{"physical_batch": 6, **changes})
    start = one.weights if weights is None else weights
    return one.train(start, settings, noise=tilted, batches=RANDOMNESS.stream("batches")).weights


def test_the_articles_module_optimizer_and_loader_train_as_they_are() -> None:
    torch.manual_seed(0)
    one = engine(article(), criterion=nn.NLLLoss(), data=loader(batch_size=32, shuffle=True))
    before = one.weights
    after = train(one, steps=3)
    assert after.isfinite().all()
    assert not torch.equal(before, after)
    assert torch.equal(one.weights, after)


def test_adam_starts_every_round_anew_and_keeps_a_changed_rate() -> None:
    one = engine(optimizer=torch.optim.Adam)
    start = one.weights
    first, second = train(one, start), train(one, start)
    assert torch.equal(first, second)
    one.optimizer.param_groups[0]["lr"] = 0.01
    slower = train(one, start)
    assert float((slower - start).norm()) < 0.2 * float((first - start).norm())


def test_frozen_parameters_stay_and_are_no_part_of_the_vector() -> None:
    first = nn.Linear(FEATURES, 6)
    module = nn.Sequential(first, nn.ReLU(), nn.Linear(6, 4))
    first.weight.requires_grad_(False)
    kept = first.weight.detach().clone()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    one = OpacusRecords(module, optimizer, loader(), criterion=nn.CrossEntropyLoss(), made_up=NOBODY)
    assert one.size == 6 + 6 * 4 + 4
    train(one)
    assert torch.equal(first.weight, kept)


class Half(nn.Module):
    """A part of it does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(FEATURES, 4), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


def test_a_parameter_that_the_loss_does_not_depend_on_has_gradients_of_zero() -> None:
    seen, one = Seen(), engine(Half())
    one.train(one.weights, training(steps=1), noise=seen, batches=RANDOMNESS.stream("batches"))
    assert seen.totals[0][: FEATURES * 4].any()
    assert not seen.totals[0][-8:].any()


def test_nothing_of_opacus_or_of_a_private_gradient_stays() -> None:
    one = engine()
    train(one)
    for parameter in one.module.parameters():
        assert parameter.grad is None
        assert not hasattr(parameter, "grad_sample")
    assert not one.module._forward_hooks
    assert not one.module._backward_hooks


@pytest.mark.parametrize(
    "sampler",
    [WeightedRandomSampler([1.0] * 40, 40), RandomSampler(DATA, replacement=True)],
    ids=["weighted", "with replacement"],
)
def test_a_sampler_that_prefers_some_records_is_refused(sampler: Any) -> None:
    with pytest.raises(ConfigError, match="the same chance"):
        engine(data=loader(sampler=sampler))
