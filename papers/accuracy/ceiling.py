"""What a linear model reaches on features without any noise: the ceiling of every private one on them."""

import numpy as np
import torch

from incrowd.data import Examples

_STEPS = 60
_DECAY = 1e-6


def fitted(train: Examples, test: Examples) -> float:
    """The accuracy of softmax regression, by L-BFGS on all training examples."""
    features, labels = (torch.from_numpy(np.asarray(one)) for one in (train.values(slice(None)), train.labels))
    weights = torch.zeros(features.shape[1], train.classes or 2, requires_grad=True)
    biases = torch.zeros(train.classes or 2, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, biases], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(features @ weights + biases, labels)
        value = value + _DECAY * weights.square().sum()
        value.backward()  # type: ignore[no-untyped-call]  # torch does not say its types
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]  # as above
    with torch.no_grad():
        outputs = torch.from_numpy(np.asarray(test.values(slice(None)))) @ weights + biases
    return float((outputs.argmax(1).numpy() == test.labels).mean())
