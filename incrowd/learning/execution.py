"""How the engine's work is done: where, by how many processes, and of how many clients at a time."""

from dataclasses import dataclass

import torch

from incrowd import _validate
from incrowd.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How the work is done, which changes its speed and memory, and nothing else.

    With more than one thread each has a process of its own, because Python's threads were measured to wait for each
    other. Of `chunk` clients the contributions are in memory at once.

    Edge cases: without `chunk` it follows from the model. On an accelerator, and where processes cannot be forked
    (other systems than Linux), there is one thread. On an accelerator a chunk is trained side by side, always so many:
    that its library treats the matrices of one call alike is assumed, and another chunk may round differently.
    """

    device: str = "cpu"
    threads: int = 1
    chunk: int | None = None

    def __post_init__(self) -> None:
        _validate.count(threads=self.threads)
        if self.chunk is not None:
            _validate.count(chunk=self.chunk)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                field="device", value=self.device, remedy="give one that torch finds here, say cpu"
            ) from error
