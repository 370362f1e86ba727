"""Modules and losses of one's own, seen to carry nothing from one client or record to the next."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from incrowd.errors import ConfigError
from incrowd.learning.compiling.remembered import remembered
from incrowd.learning.losses import LOSSES, Loss
from incrowd.learning.modules import known


class OwnCode:
    """The code of a module and a loss that is neither torch's nor ours, and all that it can hold.

    Guarantee: a call that changes anything that is reachable from it is refused: attributes, closures, globals, class
    attributes. Modules are trained in copies, which may change.

    Edge cases: state that Python cannot see (a file, another process, a C extension) is beyond this check.
    """

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        self.of_module = not all(map(known, module.modules()))
        self.of_loss = loss not in LOSSES.values()
        self._parts: dict[tuple[str, str], object] = (
            {("module", type(module).__name__): module} if self.of_module else {}
        )
        self._parts |= {("loss", loss.name): loss.value} if self.of_loss else {}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Refuse, after a block, code that holds something else than before."""
        before = {key: remembered(one) for key, one in self._parts.items()}
        yield
        for (field, name), one in self._parts.items():
            if remembered(one) != before[field, name]:
                raise refused(field, name)


def refused(field: str, name: str) -> ConfigError:
    """The error for code that remembers what it was called with."""
    remedy = (
        "it remembers what it was called with, or draws numbers, so that one client's data would reach the next: "
        "compute everything from the arguments, and give constants, say class weights, as such"
    )
    return ConfigError(field=field, value=name, remedy=remedy)
