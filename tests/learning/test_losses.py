import copy

import pytest
import torch

from incrowd.errors import DataError
from incrowd.learning import CROSS_ENTROPY, LOGISTIC, LOSSES, POISSON, SQUARED, Loss, as_loss

LABELS = {
    "cross entropy": torch.tensor([0, 2, 1, 2]),
    "logistic": torch.tensor([0, 1, 1, 0]),
    "squared": torch.tensor([0.5, -2.0, 3.0, 0.0]),
    "poisson": torch.tensor([0.0, 2.0, 5.0, 1.0]),
    "absolute": torch.tensor([0.5, -2.0, 3.0, 0.0]),
    "huber": torch.tensor([0.5, -2.0, 3.0, 0.0]),
}


CANONICAL = {name: loss for name, loss in LOSSES.items() if loss.canonical is not None}


@pytest.mark.parametrize("loss", CANONICAL.values(), ids=CANONICAL)
def test_the_gradient_of_a_canonical_loss_is_mean_minus_target(loss: Loss) -> None:
    labels = LABELS[loss.name]
    outputs = torch.randn(4, 3 if loss is CROSS_ENTROPY else 1, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(loss.value(outputs.requires_grad_(), labels), [outputs])
    assert loss.canonical is not None
    mean = torch.empty(outputs.shape)
    loss.canonical.mean(outputs.detach(), out=mean)
    assert torch.allclose(4 * gradient, mean - loss.canonical.target(labels, outputs.shape[1]), atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "labels", "outputs"),
    [
        (CROSS_ENTROPY, [0, 3], 3),
        (CROSS_ENTROPY, [-1, 0], 3),
        (CROSS_ENTROPY, [0.0, 1.0], 3),
        (LOGISTIC, [0, 2], 1),
        (LOGISTIC, [0, 1], 2),
        (SQUARED, [0.0, float("nan")], 1),
        (SQUARED, [0.0, 1.0], 2),
        (POISSON, [-1, 2], 1),
        (POISSON, [1, 2], 2),
    ],
)
def test_labels_that_do_not_fit_are_refused_by_name(loss: Loss, labels: list[float], outputs: int) -> None:
    with pytest.raises(DataError, match=f"{loss.name}.*{outputs} outputs: give"):
        loss.check(torch.tensor(labels), [outputs])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_of_ours_is_the_same_in_another_process(loss: Loss) -> None:
    """Which gradients and backends a loss gets is asked by what it is."""
    assert copy.deepcopy(loss) is loss
    made, given = loss.__reduce_ex__(2)
    assert (made(*given), given) == (loss, (loss.name,))
    own = as_loss(loss.value)
    assert copy.deepcopy(own) is not own
