"""A dry run: the same settings on made-up rows of the same schema, and what the real run would cost."""

import resource
import sys
import time
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd.data.clients import Clients, made_up_row
from incrowd.data.columns import Columns
from incrowd.data.examples import Examples, each, single
from incrowd.data.partition import Partition
from incrowd.learning.features.table_rows import texts_of
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.config import Config
from incrowd.runs.data_config import GivenData
from incrowd.runs.run import Run
from incrowd.runs.sources import Given
from incrowd.runs.work import Silos, Work, work_of

ROWS = 10  # made-up rows of a client whose number of rows is private
POOL, TEST = 2000, 1000  # made-up rows that clients share, and those of the test set
ALL_SPENT = 0.01  # a run that leaves less than this share of the budget spends all of it


def dry_run(config: Config) -> dict[str, Any]:
    """Train on made-up rows of the same schema; time, memory, and the epsilon that would be spent and left.

    Guarantee: no ledger is written. The private rows are read to find their ledger, and nothing is learned from them.
    """
    work = work_of(config)
    spend, left, budget = cost_of(work)
    began = time.perf_counter()
    options = {"randomness": "seeded", "seed": 0, "trackers": (), "report_every": work.rounds}
    changes = {
        "data": GivenData(),
        "run": config.run.model_copy(update=options),
        "privacy": config.privacy.model_copy(update={"ledger": None, "witness": None}),
    }
    with TemporaryDirectory(prefix="incrowd-dry-run-") as folder:
        Run.create(config.model_copy(update=changes), Path(folder) / "run", given=Given(data=made_up(work))).train()
    seconds = time.perf_counter() - began
    unit = 1 << (20 if sys.platform == "darwin" else 10)
    return {
        "would_spend": spend,
        "would_be_left": left,
        "budget": budget,
        "seconds": seconds,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
        "rounds": work.rounds,
        "clients": work.data.clients,
        "made_up": made_up(work).describe()["data"],
    }


def cost_of(work: Work) -> tuple[float, float, float]:
    """The epsilon that a run would spend of its data's ledger, the epsilon left after it, and the budget.

    For silos it is the one with the smallest budget. A negative rest means that the ledger will refuse. Nothing is
    written.
    """
    costs = []  # the ledgers of real parties are their own
    for plan, identity, place in zip_longest(work.plans, work.identities(), work.places(Path())):
        ledger = None if identity is None else _ledger_of(identity, place[1])
        with ledger or Ledger.in_memory(budget=work.first_budget(plan), relation=plan.relation) as its:
            after = its.price([*its.commitments(), *plan.runs]).epsilon
            costs.append((after - its.promised().epsilon, its.budget.epsilon - after, its.budget.epsilon))
    return min(costs, key=lambda cost: cost[2])


def spends_all(work: Work) -> bool:
    """Whether a run on private data would leave nothing of a ledger for later runs."""
    if work.data.public:
        return False
    _, left, budget = cost_of(work)
    return -1e-9 <= left < ALL_SPENT * budget


def _ledger_of(identity: DataIdentity, path: Path | None) -> Ledger | None:
    """The ledger that a run on these data would be charged to, if it has begun."""
    if identity.public:
        return None
    known = next((each for each in Home.of_user().found(identity) if each is not None), None)
    if known is not None:
        return Ledger.read(known.path)
    return Ledger.read(path) if path is not None and path.exists() else None


def made_up(work: Work) -> Clients:
    """As many clients as there are, with made-up rows that look like theirs; declared numbers alone decide the rows of
    private clients.
    """
    held = work.held
    assert held is not None  # noqa: S101 - only a run that goes on has none
    both = _examples(held.examples, held.table, POOL + TEST)
    if isinstance(work, Silos):
        sizes, rows = np.array(work.declared), "as many rows as each silo declares"
    elif held.public:
        sizes, rows = held.sizes, "as many rows as each client has"
    else:
        of_rows = held.table is not None and held.table.client is None
        count = 1 if of_rows else ROWS
        sizes, rows = np.full(held.clients, count), "1 row a client" if of_rows else f"{ROWS} rows a client"
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Clients(
        examples=both.some(slice(0, POOL)),
        partition=Partition(offsets=offsets, indices=np.arange(offsets[-1]) % POOL),
        test=both.some(slice(POOL, None)),
        name=rows,
        public=True,
        owners=held.names or None,
        names=held.names,
        table=held.table,
    )


def _examples(like: Examples, columns: Columns | None, count: int) -> Examples:
    """Random rows in the form of the real ones, with random labels; texts of a table are empty."""
    draw = np.random.Generator(np.random.PCG64(0))

    def numbers(array: NDArray[Any]) -> NDArray[Any]:
        shape = (count, *array.shape[1:])
        if array.dtype.kind == "f":
            return draw.normal(size=shape).astype(array.dtype)
        return draw.integers(0, 256 if array.dtype == np.uint8 else 2, shape).astype(array.dtype)

    if columns is not None and any(texts_of(columns)):
        features = np.repeat(single(made_up_row(columns).features), count, axis=0)
    else:
        features = each(numbers, like.features)
    shape = (count, *like.labels.shape[1:])
    if like.classes is not None:
        return replace(like, features=features, labels=draw.integers(0, like.classes, shape))
    labels = draw.integers(0, 2, shape) if like.labels.ndim > 1 else draw.normal(size=shape)  # several: yes or no
    return replace(like, features=features, labels=labels.astype(np.float32))
