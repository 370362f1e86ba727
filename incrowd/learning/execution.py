"""The engine's device, number of processes, and number of clients at a time."""

from dataclasses import dataclass
from typing import get_args

import torch

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.settings import Compile


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The settings of the engine that change its speed and memory alone.

    With more than one thread each has its own process, because Python's threads wait for each other. `chunk` is the
    number of contributions in memory at once. With "auto", the expected number of `contributions` decides whether torch
    compiles a step, which takes seconds; an unknown number (0) means that it does not. An accelerator trains a chunk
    side by side, padded to a fixed number of clients. The default `chunk` fills its memory, in even parts of the usual
    `cohort`.

    Guarantee: the model, the settings and each client's own examples decide about compiling: every process, and a
    resumed run, decides the same.

    Edge cases: there is one thread on an accelerator, and on systems that cannot fork (other than Linux). Another chunk
    on an accelerator may round differently. Without a C++ compiler, or for a module that torch cannot compile as a
    whole, updates are the same to rounding; so resume a run on a machine with its compiler.
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
