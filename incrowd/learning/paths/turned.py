"""The first weight stored by input, transposed once for all clients that start from it."""

from torch import Tensor


class Turned:
    """Keeps the last weight that it transposed."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, int, Tensor] | None = None

    def of(self, weight: Tensor) -> Tensor:
        """A weight [outputs, inputs] as [inputs, outputs], contiguous."""
        owner = weight if weight._base is None else weight._base
        if self._last is None or self._last[0] is not owner or self._last[1] != weight._version:
            self._last = owner, weight._version, weight.t().contiguous()
        return self._last[2]
