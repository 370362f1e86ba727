"""Plain float32 arithmetic, whatever a program has told torch to do with it before."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_TINY = 2.0**-1074  # the smallest float64 number, which a processor that flushes takes for 0


@contextmanager
def ieee(device: str = "cpu") -> Iterator[None]:
    """Let torch compute with float32 as IEEE 754 defines it, the same again and again; afterwards as before.

    Guarantee: products of matrices and convolutions are not computed in TF32 or bfloat16 (`set_float32_matmul_precision`,
    `allow_tf32`, `fp32_precision`), small numbers are not taken for 0 (`set_flush_denormal`), nothing is cast
    (`torch.autocast`), new tensors are float32 (`set_default_dtype`), and cuDNN neither tries algorithms out nor uses
    those that add up in another order each time. What a promise says of rounding relies on it.

    Edge cases: the settings hold for the whole process (small numbers and casts: for this thread).
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


def _settings() -> list[tuple[Any, str, object]]:
    backends: Any = torch.backends
    found: list[tuple[Any, str, object]] = [
        (backends.cudnn, "deterministic", True),
        (backends.cudnn, "benchmark", False),
    ]
    if hasattr(backends, "fp32_precision"):
        owners = (backends.cuda.matmul, *(getattr(one, op) for one in _owners(backends) for op in ("conv", "rnn")))
        return found + [(owner, "fp32_precision", "ieee") for owner in (*owners, backends.mkldnn.matmul)]
    return [*found, (backends.cuda.matmul, "allow_tf32", False), (backends.cudnn, "allow_tf32", False)]


def _owners(backends: Any) -> tuple[Any, Any]:
    return backends.cudnn, backends.mkldnn


_SETTINGS = _settings()
