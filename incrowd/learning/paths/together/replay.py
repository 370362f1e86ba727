"""A step that an accelerator repeats by itself, without being told each operation again (a CUDA graph)."""

import logging
from collections.abc import Callable

import torch

_log = logging.getLogger(__name__)
_BEFORE = 2  # times a step is taken before it is noted: libraries ask for memory when they are first used

Take = Callable[[], None]
"""A step in place: the same operations on the same memory each time."""


def noted(step: Take, device: torch.device) -> Take:
    """The step, noted where the device can note it (CUDA).

    Edge cases: it is taken a few times to be noted, so do that before there is anything to lose. What asks the
    device for a number on the way cannot be noted: it is told each operation again.
    """
    if device.type != "cuda":
        return step
    try:  # pragma: no cover - where there is one
        return _graph(step, device)
    except RuntimeError as error:  # pragma: no cover - as above
        _log.warning("a step is not repeated by the device itself: %s", str(error).splitlines()[0])
        return step


def _graph(step: Take, device: torch.device) -> Take:  # pragma: no cover - where there is one
    with torch.cuda.device(device):
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not say its types
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_BEFORE):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    replay: Take = graph.replay
    return replay
