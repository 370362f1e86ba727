"""Runs of a second, for tests."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from incrowd.privacy.plan.plan import Plan
from incrowd.runs.config import Config, parse, tables
from incrowd.runs.ledgers import RunLedger
from incrowd.runs.run import Run
from incrowd.runs.work import ClientWork, SiloWork

SMALL = (
    "features={name='none'}",
    "model={kind='linear'}",
    "data.clients=12",
    "privacy.rounds=4",
    "local.batch_size=32",
    "local.epochs=1",
    "run.keep=3",
)
SEEDED = ("run.randomness=seeded", "run.seed=7")


def load(path: Path | None = None, *, overrides: Sequence[str] = (), data: Path | None = None) -> Config:
    """The config of a file, or of the demonstration, with overrides."""
    return parse(tables(path, overrides=overrides, data=data))


def small(*overrides: str) -> Config:
    """Four rounds over twelve clients, under the operating system's randomness."""
    return load(overrides=(*SMALL, *overrides))


def seeded(*overrides: str) -> Config:
    """The same as a simulation."""
    return small(*SEEDED, *overrides)


def planned(federation: ClientWork) -> Plan:
    """The plan of a federation with independent noise."""
    assert isinstance(federation.plan, Plan)
    return federation.plan


def clients_of(run: Run) -> ClientWork:
    """What a run that protects whole clients works with."""
    assert isinstance(run.work, ClientWork)
    return run.work


def payer_of(run: Run) -> RunLedger:
    """What such a run is charged to."""
    return clients_of(run).payer


def silos_of(run: Run) -> SiloWork:
    """What a run of silos works with."""
    assert isinstance(run.work, SiloWork)
    return run.work


def write_mnist(folder: Path) -> None:
    """The four files of MNIST, with a few grey images in them."""
    for part, count in (("train", 20), ("t10k", 5)):
        images = np.full((count, 28, 28), 100, np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
