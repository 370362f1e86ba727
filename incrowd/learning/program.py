"""Examples as a table of layers needs them."""

from typing import Protocol

from torch import Tensor


class Labelled(Protocol):
    """Examples with their labels."""

    @property
    def labels(self) -> Tensor:
        """A label for each example, or several."""
        ...

    @property
    def plain(self) -> bool:
        """True if an example is one tensor of numbers."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, where it is one."""
        ...
