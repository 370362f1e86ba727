"""Make the machine code of compiled loops ahead of their first use: `python -m incrowd.learning.warm_up`.

It is made for this processor and kept on disk, so that nobody's first run waits for it: in an image of a container, or
after an installation.
"""

import sys
import time

import numpy as np
import torch
from torch import Tensor

from incrowd.learning.engine import CohortEngine
from incrowd.learning.models import Model, mlp, small_cnn
from incrowd.learning.store import ClientTensors
from incrowd.settings.local import Local

KINDS = (torch.uint8, torch.float32)
"""What features are stored as: bytes of pictures, and numbers."""

WIDTHS = ((3, 2), (3, 64, 2))
"""Of a narrow and of a wide model."""


def main() -> None:
    """Train a made-up client of each kind of features, in each model that has such loops, and say how long it took."""
    begun = time.perf_counter()
    for kind in KINDS:
        for widths in WIDTHS:
            _trained(mlp(widths), torch.zeros(2, widths[0]).to(kind))
    _trained(small_cnn(side=16), torch.zeros(2, 16, 16))
    sys.stdout.write(f"compiled loops: ready after {time.perf_counter() - begun:.1f} s\n")


def _trained(model: Model, features: Tensor) -> None:
    data = ClientTensors(features=features, labels=torch.tensor([0, 1]), offsets=np.array([0, 2]), indices=np.arange(2))
    CohortEngine(model, data, Local(learning_rate=0.1)).rehearse(model.weights)


if __name__ == "__main__":
    main()
