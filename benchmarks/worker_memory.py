"""How much memory each worker of `incrowd flower simulate` takes beside examples that all workers of a machine share.

python benchmarks/worker_memory.py [--megabytes 1000] [--workers 2] [--json]
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from harness import processes
from harness.results import markdown
from incrowd import Clients, Federation, Local, Private, RunOptions
from incrowd.flower import Simulation

FEATURES, EACH = 2_500, 100


class Look:
    """A tracker that looks at the workers after every round."""

    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []

    def start(self, settings: Mapping[str, object], past: Sequence[object]) -> None:
        """See `Tracker.start`."""

    def round(self, record: object) -> None:
        """See `Tracker.round`."""
        workers = processes.called(processes.family(os.getpid()), "ray::ClientAppActor")
        self.found = [processes.memory(worker) for worker in sorted(workers)]

    def end(self, summary: Mapping[str, object] | None) -> None:
        """See `Tracker.end`."""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="of examples")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="figures for a program")
    options = parser.parse_args()
    look = measure(options.megabytes, options.workers)
    rows = [{name: round(value / 1e6) for name, value in worker.items()} for worker in look.found]
    if options.json:
        print(json.dumps({"examples_megabytes": options.megabytes, "workers": rows}))
    else:
        print("\n".join(markdown(rows)))


def measure(megabytes: int, workers: int) -> Look:
    """Two rounds of a linear model, in which every client trains; what the workers had after the last."""
    clients = max(workers, megabytes * 10**6 // (4 * FEATURES * EACH))
    generator = np.random.default_rng(0)
    features = generator.random((clients * EACH, FEATURES), np.float32)
    labels = generator.integers(0, 2, clients * EACH)
    test = features[:10], labels[:10]
    data = Clients.from_arrays(
        features, labels, owner=np.repeat(np.arange(clients), EACH), classes=2, test=test, public=True
    )
    federation = Federation(
        nn.Linear(FEATURES, 2),
        data,
        local=Local(learning_rate=0.1, batch_size=50),
        privacy=Private(epsilon=8, delta=1e-5, rounds=2, cohort=clients),
        run=RunOptions(randomness="seeded", seed=1),
    )
    look = Look()
    with tempfile.TemporaryDirectory(prefix="incrowd-bench-") as folder:
        Simulation(workers=workers).train(federation.start(Path(folder) / "run"), [look])
    return look


if __name__ == "__main__":
    main()
