"""What is between two Linear layers, at work on batches of one width."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from incrowd.learning.paths.fused.layers import Between, Norm, Smooth
from incrowd.learning.paths.fused.parameter import Parameter
from incrowd.learning.program import ACTIVATIONS, Activation


class Passage(Protocol):
    """Something between two Linear layers."""

    def forward(self, x: Tensor) -> Tensor:
        """What comes out. What went in, and it, have to stay as they are until the way back."""
        ...

    def backward(self, d: Tensor) -> None:
        """Change the gradients of what came out to those of what went in; steps of weights, if there are any."""
        ...


class InPlace:
    """An activation that writes over what went in."""

    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        self._value = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """See `Passage.forward`."""
        self._value = self._activation.apply(x)
        return x

    def backward(self, d: Tensor) -> None:
        """See `Passage.backward`."""
        self._activation.backward(d, self._value)


class Rectified:
    """max(x, 0), which torch takes longer to call on its way back than to do."""

    def __init__(self) -> None:
        from incrowd.learning.paths.fused import loops  # numba takes a while to start

        self._back = loops.rectified
        self._value = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """See `Passage.forward`."""
        self._value = x.relu_()
        return x

    def backward(self, d: Tensor) -> None:
        """See `Passage.backward`."""
        self._back(self._value.numpy(), d.numpy())


class Bent:
    """A function of one number; its derivative is computed on the way forth."""

    def __init__(self, smooth: Smooth, like: Tensor) -> None:
        from incrowd.learning.paths.fused import loops  # numba takes a while to start

        self._loop: loops.Bow = getattr(loops, smooth.name)
        self._out, self._slope = torch.empty_like(like), torch.empty_like(like)
        self._arrays = self._out.numpy(), self._slope.numpy()

    def forward(self, x: Tensor) -> Tensor:
        """See `Passage.forward`."""
        self._loop(x.numpy(), *self._arrays)
        return self._out

    def backward(self, d: Tensor) -> None:
        """See `Passage.backward`."""
        d.mul_(self._slope)


class Normed:
    """Outputs normalised example by example."""

    def __init__(self, eps: float, gain: Parameter | None, shift: Parameter | None, like: Tensor) -> None:
        from incrowd.learning.paths.fused import loops  # as above

        self._loops, self._eps = loops, eps
        rows, width = like.shape
        self._out, self._one = torch.empty_like(like), torch.ones(1, 1)
        self._numbers, self._scales = np.empty((rows, width), np.float32), np.empty(rows, np.float32)
        self._gain = np.ones(width, np.float32) if gain is None else gain.value[0].numpy()
        self._shift = np.zeros(width, np.float32) if shift is None else shift.value[0].numpy()
        gradients = torch.empty(2, 1, width)
        self._found = gradients[0, 0].numpy(), gradients[1, 0].numpy()
        several = zip((gain, shift), gradients, strict=True)
        self._steps = [(parameter, gradient) for parameter, gradient in several if parameter is not None]
        self._array = self._out.numpy()

    def forward(self, x: Tensor) -> Tensor:
        """See `Passage.forward`."""
        weights = self._gain, self._shift
        self._loops.normalise(x.numpy(), *weights, self._eps, self._numbers, self._scales, self._array)
        return self._out

    def backward(self, d: Tensor) -> None:
        """See `Passage.backward`."""
        self._loops.denormalise(d.numpy(), self._gain, self._numbers, self._scales, *self._found)
        for parameter, gradient in self._steps:
            parameter.update(self._one, gradient)


def passage(between: Between, like: Tensor, parameter: Callable[[], Parameter]) -> Passage:
    """What does this to such values; the parameters come in torch's order."""
    if isinstance(between, Norm):
        gain = parameter() if between.gain else None
        shift = parameter() if between.shift else None
        return Normed(between.eps, gain, shift, like)
    if isinstance(between, Smooth):
        return Bent(between, like)
    return Rectified() if between is ACTIVATIONS[nn.ReLU] else InPlace(between)
