"""A step that an accelerator repeats by itself, without being told each operation again (a CUDA graph)."""

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
        """The step, noted if it can be. Edge cases: as `noted_together`."""
        return self.noted_together(step)[0]

    def noted_together(self, *steps: Take) -> tuple[Take, ...]:
        """Capture steps that work on each other's memory, in their order: all of them, or none.

        Edge cases: capture runs each step a few times, so capture before memory holds anything. A step that reads a
        number from the device cannot be captured: it launches each operation anew.
        """
        if self._memory is None:
            return steps
        try:  # pragma: no cover - where there is one
            return tuple([self._graph(step) for step in steps])
        except RuntimeError as error:  # pragma: no cover - as above
            _log.warning("a step is not repeated by the device itself: %s", type(error).__name__)
            return steps

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
