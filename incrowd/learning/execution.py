"""How the engine's work is done: where, by how many processes, and of how many clients at a time."""

from dataclasses import dataclass
from typing import get_args

import torch

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.settings.compiling import Compile


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How the work is done, which changes its speed and memory, and nothing else.

    With more than one thread each has a process of its own, because Python's threads were measured to wait for each
    other. Of `chunk` clients the contributions are in memory at once. Whether a client's step is compiled by torch,
    which takes seconds, "auto" decides by how many `contributions` are expected in all; where that is not known (0) it
    is not compiled. On an accelerator a chunk is trained side by side, always so many, filled up: without `chunk` as
    many as there is memory for, divided evenly where a round usually has a `cohort` of fewer, or of more.

    Guarantee: what is decided about compiling follows from the model, the settings and each client's own examples: it
    is the same in every process, and when a run is taken up again.

    Edge cases: on an accelerator, and where processes cannot be forked (other systems than Linux), there is one thread.
    Another chunk on an accelerator may round differently. Where nothing can be compiled (no C++ compiler, a module that
    torch cannot compile as a whole) clients learn the same to rounding, so take a run up again where its compiler is.
    """

    device: str = "cpu"
    threads: int = 1
    chunk: int | None = None
    compile: Compile = "auto"
    contributions: float = 0.0
    cohort: float = 0.0

    def __post_init__(self) -> None:
        _validate.count(threads=self.threads)
        if self.chunk is not None:
            _validate.count(chunk=self.chunk)
        _validate.non_negative(contributions=self.contributions, cohort=self.cohort)
        if self.compile not in get_args(Compile):
            remedy = f"give one of {', '.join(get_args(Compile))}"
            raise ConfigError(field="compile", value=self.compile, remedy=remedy)
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                field="device", value=self.device, remedy="give one that torch finds here, say cpu"
            ) from error
