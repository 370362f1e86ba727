"""Plain float32 arithmetic, whatever a program has told torch to do with it before."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_TINY = 2.0**-1074  # the smallest float64 number, which a processor that flushes takes for 0


@contextmanager
def ieee(device: str = "cpu") -> Iterator[None]:
    """Let torch compute with float32 as IEEE 754 defines it, the same again and again; afterwards as before.

    Guarantee: products of matrices and convolutions are not computed in TF32 or bfloat16 (`allow_tf32`,
    `set_float32_matmul_precision`, `fp32_precision`), small numbers are not taken for 0 (`set_flush_denormal`), nothing
    is cast (`torch.autocast`), new tensors are float32 (`set_default_dtype`), and cuDNN neither tries algorithms out
    nor uses those that add up in another order each time. What a promise says of rounding relies on it.

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
    cudnn, mkldnn, products = backends.cudnn, backends.mkldnn, backends.cuda.matmul
    found: list[tuple[Any, str, object]] = [(cudnn, "deterministic", True), (cudnn, "benchmark", False)]
    if hasattr(backends, "fp32_precision"):  # pragma: no branch - torch below 2.9
        owners = (products, mkldnn.matmul, *(getattr(one, kind) for one in (cudnn, mkldnn) for kind in ("conv", "rnn")))
        return found + [(owner, "fp32_precision", "ieee") for owner in owners]
    return [*found, (products, "allow_tf32", False), (cudnn, "allow_tf32", False)]  # pragma: no cover - torch below 2.9


_SETTINGS = _settings()
