"""A step that an accelerator replays without new launches (a CUDA graph)."""

import logging
from collections.abc import Callable

import torch

_log = logging.getLogger(__name__)
_BEFORE = 2  # times a step is taken before it is noted: libraries ask for memory when they are first used

Take = Callable[[], None]
"""A step in place: the same operations on the same memory each time."""


class Notes:
    """Captures steps as CUDA graphs, if the device can, and replays them.

    All captured steps share memory for their intermediate results. A step writes its results to the caller's memory,
    and two steps never run at the same time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def noted(self, step: Take) -> Take:
        """The step, recorded if the device can.

        Edge cases: recording takes the step a few times, so call this before any client's numbers are in its memory. A
        step that reads a number back from the device cannot be recorded, and runs operation by operation.
        """
        if self._memory is None:
            return step
        try:  # pragma: no cover - on a device that records
            return self._graph(step)
        except RuntimeError as error:  # pragma: no cover - as above
            _log.warning("a step is not repeated by the device itself: %s", type(error).__name__)
            return step

    def _graph(self, step: Take) -> Take:  # pragma: no cover - where there is one
        with torch.cuda.device(self._device):
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not say its types
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_BEFORE):
                    step()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory):
                step()
        replay: Take = graph.replay
        return replay
