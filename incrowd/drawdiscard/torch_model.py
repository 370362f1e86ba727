"""Any small torch model, as one flat vector of weights: what draw and discard needs to know of it."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from incrowd.drawdiscard.glm import LINKS, AnyFloats, Link
from incrowd.errors import ConfigError, DataError
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, POISSON, SQUARED, Loss
from incrowd.learning.models import Model, mlp
from incrowd.learning.modules import refuse_dropout, settled

LOSSES = {"linear": SQUARED, "logistic": LOGISTIC, "multinomial": CROSS_ENTROPY, "poisson": POISSON}


@dataclass(frozen=True, kw_only=True)
class TorchModel:
    """A torch module whose outputs go through a link; its weights in the order of `incrowd.learning.models`.

    Guarantee: it is a `FlatModel`: gradients are autograd's of the mean loss, in float32, and the module itself is not
    changed.

    Edge cases: no examples give a zero gradient; features reach the module as [examples, features]. Frozen parts are in
    evaluation mode; dropout is refused.
    """

    module: Model
    features: int
    outputs: int
    link: Link

    def __post_init__(self) -> None:
        refuse_dropout(self.module.module, whose="device")
        still = Model(settled(copy.deepcopy(self.module.module)), fresh=self.module.fresh)
        object.__setattr__(self, "module", still)

    @property
    def size(self) -> int:
        """How many weights there are."""
        return self.module.size

    def predict(self, weights: AnyFloats, features: AnyFloats) -> AnyFloats:
        """See `FlatModel.predict`."""
        with torch.no_grad():
            outputs: AnyFloats = self._outputs(self.module.flat(weights), features).numpy()
        return self.link.mean(outputs)

    def loss(self, weights: AnyFloats, features: AnyFloats, responses: AnyFloats) -> float:
        """See `FlatModel.loss`."""
        with torch.no_grad():
            outputs: AnyFloats = self._outputs(self.module.flat(weights), features).numpy()
        return float(self.link.losses(outputs, responses).mean())

    def gradient(self, weights: AnyFloats, features: AnyFloats, responses: AnyFloats) -> AnyFloats:
        """See `FlatModel.gradient`."""
        if len(features) == 0:
            return np.zeros(self.size, np.float32)
        if responses.shape != (len(features), self.outputs):
            raise DataError(f"responses of shape {responses.shape} do not fit {len(features)} examples")
        flat = self.module.flat(weights).requires_grad_()
        loss = self._loss.value(self._outputs(flat, features), torch.as_tensor(responses, dtype=torch.float32))
        (gradient,) = torch.autograd.grad(loss, flat)
        numbers: AnyFloats = gradient.numpy()
        return numbers

    @property
    def _loss(self) -> Loss:
        return LOSSES[self.link.name]

    def _outputs(self, flat: Tensor, features: AnyFloats) -> Tensor:
        layout = self.module.layout
        pieces = flat.split_with_sizes(list(layout.sizes))
        parameters = {
            name: piece.view(shape) for name, piece, shape in zip(layout.names, pieces, layout.shapes, strict=True)
        }
        outputs: Tensor = functional_call(
            self.module.module, parameters, (torch.as_tensor(features, dtype=torch.float32),)
        )
        if outputs.shape != (len(features), self.outputs):
            raise ConfigError(
                field="outputs", value=tuple(outputs.shape), remedy=f"the module must give [examples, {self.outputs}]"
            )
        return outputs


def perceptron(widths: Sequence[int], *, link: str, bias: bool = True) -> TorchModel:
    """A perceptron with rectified hidden layers, say of widths (784, 32, 10)."""
    return TorchModel(module=mlp(widths, bias=bias), features=widths[0], outputs=widths[-1], link=LINKS[link])
