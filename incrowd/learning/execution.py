"""The engine's device, number of processes, and number of clients at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.settings import Compile

LINE = 16  # float32 numbers in a line of the cache


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The settings of the engine that change its speed and memory alone.

    Each thread has its own process, on Linux. `chunk` is the number of contributions in memory at once. With "auto",
    the expected number of `contributions` decides whether torch compiles a step. An accelerator trains a chunk side by
    side, in even parts of the usual `cohort`.

    Guarantee: the model, the settings and each client's own examples decide about compiling, in every process alike.

    Edge cases: another chunk on an accelerator, or a machine without a C++ compiler, may round differently: resume a
    run on a machine like the one that began it.
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
            remedy = "give one that torch finds here, say cpu"
            raise ConfigError(field="device", value=self.device, remedy=remedy) from error


_TINY = 2.0**-1074  # the smallest float64 number, which a processor that flushes takes for 0


@contextmanager
def ieee(device: str = "cpu") -> Iterator[None]:
    """Let torch compute in IEEE 754 float32, reproducibly, and restore the process's settings afterwards.

    Guarantee: matrix products and convolutions do not use TF32 or bfloat16. Denormals are kept, nothing is cast, new
    tensors are float32, and cuDNN is deterministic. The bounds on rounding rely on it.
    """
    kind, flushed = torch.get_default_dtype(), torch.tensor(_TINY, dtype=torch.float64).item() * 1.0 == 0
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in _SETTINGS]
    try:
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)
        for owner, name, value in _SETTINGS:
            setattr(owner, name, value)
        with torch.autocast(torch.device(device).type, enabled=False):
            yield
    finally:
        torch.set_default_dtype(kind)
        torch.set_flush_denormal(flushed)
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def in_one_order(device: torch.device) -> Iterator[None]:
    """Use deterministic algorithms on an accelerator; torch raises a RuntimeError for operations without one."""
    if device.type == "cpu":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it; it gives products room for that
    strictly = torch.are_deterministic_algorithms_enabled()
    kindly = torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic: Any = torch.utils.deterministic
    filled = deterministic.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(mode=True)
        deterministic.fill_uninitialized_memory = False  # a check for other people's errors, which takes time
        yield
    finally:
        torch.use_deterministic_algorithms(strictly, warn_only=kindly)
        deterministic.fill_uninitialized_memory = filled


def _settings() -> list[tuple[Any, str, object]]:
    backends: Any = torch.backends
    cudnn, mkldnn, products = backends.cudnn, backends.mkldnn, backends.cuda.matmul
    found: list[tuple[Any, str, object]] = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
    if hasattr(backends, "fp32_precision"):  # pragma: no branch - torch below 2.9
        owners = (products, mkldnn.matmul, *(getattr(one, kind) for one in (cudnn, mkldnn) for kind in ("conv", "rnn")))
        return found + [(owner, "fp32_precision", "ieee") for owner in owners]
    return [*found, (products, "allow_tf32", False), (cudnn, "allow_tf32", False)]  # pragma: no cover - torch below 2.9


_SETTINGS = _settings()


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


one_thread = partial(with_threads, 1)
"""Let torch compute with one thread."""
