"""A dry run on synthetic records: a silo's whole path, before it pays."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from incrowd._random import Floats, SeededRandomness
from incrowd.errors import RehearsalFailed
from incrowd.learning.dpsgd.records import RecordEngine, on_tensors
from incrowd.privacy.mechanism.grid import RecordTraining

STEPS = 2
"""The second step differs from the first: it has a velocity, and reuses memory."""


def rehearse(silo: str, training: RecordTraining, engine: RecordEngine, weights: Floats) -> None:
    """Train on no record, on one, and on a full physical batch plus one, all synthetic.

    Guarantee: it reads no record of the silo, asks no ledger and draws from no stream of a run, so a failure reveals
    nothing and costs nothing. torch's global generator keeps its state.

    Edge cases: every failure is a `RehearsalFailed`, with the error as its cause.
    """
    batch = min(training.most_records, training.physical_batch + 1)
    for records in sorted({0, 1, batch}):
        with _Trying(silo, records), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            _go(training, engine.rehearsal(records), weights)


@dataclass(frozen=True)
class _Trying:
    """Turns every error of a third-party module into one that names the attempt."""

    name: str
    records: int

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            what = {0: "a step without records", 1: "one made-up record"}
            raise RehearsalFailed(
                f"{self.name} tried {what.get(self.records, f'{self.records} made-up records')}, and failed with "
                f"{type(error).__name__}: {error}. Nothing was spent and no record was touched: repair the model, or "
                "what goes with it, and begin again"
            ) from error


def _go(planned: RecordTraining, engine: RecordEngine, weights: Floats) -> None:
    """Train, and compute the update."""
    training = replace(planned, steps=STEPS, sampling_prob=1.0, noise_multiplier=1.0)
    stream, hidden = SeededRandomness(seed=0).stream("rehearsal"), []

    def noised(total: Floats) -> Floats:
        """Add public noise of about the size of the real noise."""
        hidden.append(total.size)
        return np.asarray(total + training.noise_multiplier * training.sensitivity * stream.normals(total.size))

    start = weights.astype(np.float32)
    trained = engine.train(start, training, noise=on_tensors(noised), batches=stream)
    if len(hidden) != STEPS:
        raise ValueError(f"the engine hid {len(hidden)} sums in {STEPS} steps: one in each is what is paid for")
    sent = trained.update(start)
    if sent.shape != start.shape:
        raise ValueError(f"the engine gives weights of the shape {sent.shape} for {start.shape}")
    if not np.isfinite(sent).all():
        raise ValueError("the weights that come out are not finite: is the learning rate too large?")
