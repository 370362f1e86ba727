"""The machine: its fastest matrix product on one thread, its name, and how to keep to one processor."""

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from contest.lean import settle
from incrowd.learning import one_thread


def seconds(run: Callable[[], object]) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def matrix_peak(sizes: tuple[int, ...] | None = None, *, times: int = 5, device: str = "cpu") -> float:
    """The best rate of large matrix products of float32 on one thread, or on an accelerator, in operations a second."""
    chosen = sizes or ((512, 1024) if device == "cpu" else (4096, 8192))
    with one_thread():
        return max(_rate(size, times, device) for size in chosen)


def _rate(size: int, times: int, device: str) -> float:
    a, b, c = (torch.rand(size, size, device=device) for _ in range(3))

    def product() -> None:
        torch.mm(a, b, out=c)
        settle(device)

    return 2 * size**3 / min(seconds(product) for _ in range(times))


def processors() -> list[int]:
    """The processors that this process may use; where the system does not say, all there are."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep this thread, and the threads and processes that it starts, to one processor, where the system can."""
    before = processors()
    _keep_to(before[-1:])
    try:
        yield
    finally:
        _keep_to(before)


def _keep_to(chosen: list[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, chosen)


def describe(device: str = "cpu") -> dict[str, object]:
    """What a result has to say about the machine for others to read it."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": _model_name() or platform.processor() or platform.machine(),
        "processors": len(processors()),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_at_start": None if load is None else round(load, 2),
        **({} if device == "cpu" else {"device": _accelerator(device)}),
    }


def _accelerator(device: str) -> str:
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device


def _model_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
