"""A dry run: the same settings on made-up rows of the same schema, and what the real run would cost."""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd.data import Clients, Columns, Examples, Partition
from incrowd.data.inputs import each, first, named
from incrowd.data.schema import Category, Column, Date, Ignored, Number, Text, YesNo
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.account.events import RepeatedEvent
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import DataIdentity
from incrowd.runs.config import AnyConfig
from incrowd.runs.data_config import GivenData
from incrowd.runs.identity import identities_of_silos
from incrowd.runs.run import Run, UnitWork, work_of
from incrowd.runs.silo_work import RecordWork, SiloWork
from incrowd.runs.sources import NOTHING, Given
from incrowd.runs.work import LedgerWork

ROWS = 10
"""Made-up rows of a client whose number of rows is private."""

POOL, TEST = 2000, 1000
"""Made-up rows that clients share, and those of the test set."""

ALL_SPENT = 0.01
"""A run that leaves less than this share of the budget spends all of it."""

_WORDS, _ROUNDING = 1000, 1e-9


def dry_run(config: AnyConfig, *, given: Given = NOTHING) -> dict[str, Any]:
    """Train on made-up rows of the same schema; time, memory, a range of accuracy, and what would be spent and left.

    The range goes from a model that has learned nothing to one of rows that tell their labels well.

    Guarantee: no ledger is written. The private rows are read to find their ledger, and nothing is learned from them.
    """
    work = work_of(config, given)
    spend, left, budget = cost_of(work)
    began = time.perf_counter()
    summary = _trained(work, given)
    seconds = time.perf_counter() - began
    return {
        "would_spend": spend,
        "would_be_left": left,
        "budget": budget,
        "seconds": seconds,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        / (1 << (20 if sys.platform == "darwin" else 10)),
        "expected": _expected(summary),
        "rounds": work.rounds,
        "clients": work.data.clients,
        "made_up": f"{ROWS} rows a client",
    }


def cost_of(work: UnitWork) -> tuple[float, float, float]:
    """What a run would spend of its data's ledger, what would be left, and the budget, each an epsilon.

    Of silos it is the one with the smallest budget. What would be left is negative where the ledger will refuse.

    Guarantee: nothing is written.
    """
    if isinstance(work, LedgerWork):
        ledger = _ledger_of(work.identity(), work.config.privacy.ledger)
        return _cost(work.plan.runs, work.begins_with, work.plan.relation, ledger)
    room, plans = work.config.privacy.room, work.plans  # the ledgers of real parties are their own
    identities = [None] * len(plans) if work.elsewhere else identities_of_silos(work.config, work.held)
    costs = []
    for plan, identity in zip(plans, identities, strict=True):
        budget = replace(plan.budget, epsilon=plan.budget.epsilon + room)
        ledger = None if identity is None else _ledger_of(identity, None)
        costs.append(_cost([*plan.runs, *plan.config.report_runs], budget, plan.relation, ledger))
    return min(costs, key=lambda cost: cost[2])


def _cost(
    runs: Sequence[RepeatedEvent], budget: Budget, relation: Relation, ledger: Ledger | None
) -> tuple[float, float, float]:
    """What these events would add to a ledger, or to one that begins with this budget; see `cost_of`."""
    with ledger or Ledger.in_memory(budget=budget, relation=relation) as its:
        after = its.price([*its.commitments(), *runs]).epsilon
        return after - its.promised().epsilon, its.budget.epsilon - after, its.budget.epsilon


def spends_all(work: UnitWork) -> bool:
    """Whether a run on private data would leave nothing of a ledger for later runs."""
    if work.data.public:
        return False
    _, left, budget = cost_of(work)
    return -_ROUNDING <= left < ALL_SPENT * budget


def _ledger_of(identity: DataIdentity, path: str | None) -> Ledger | None:
    """The ledger that a run on these data would be charged to, if it has begun."""
    if identity.public:
        return None
    known = next((each for each in Home.of_user().found(identity) if each is not None), None)
    if known is not None:
        return Ledger.read(known.path)
    return Ledger.read(path) if path is not None and Path(path).exists() else None


def _trained(work: UnitWork, given: Given) -> dict[str, Any]:
    """The summary of a run of these settings on made-up rows."""
    config, data = work.config, made_up(work)
    options = config.run.model_copy(
        update={"randomness": "seeded", "seed": 0, "plot": False, "trackers": (), "report_every": work.rounds}
    )
    privacy = config.privacy.model_copy(update={"ledger": None, "witness": None})
    config = config.model_copy(update={"data": GivenData(), "run": options, "privacy": privacy})
    with TemporaryDirectory(prefix="incrowd-dry-run-") as name:
        folder = Path(name).resolve()
        run = Run.create(config, folder / "run", given=replace(given, data=data))
        return run.train()


def _expected(summary: dict[str, Any]) -> dict[str, Any]:
    """The measure of a summary, of a model that has learned nothing, and as it was reached."""
    measured = summary["metrics"] or {}
    if summary["accuracy"] is None:
        return {"measure": "r2", "lowest": 0.0, "highest": measured.get("r2")}
    lowest = (measured.get("baseline") or {}).get("accuracy")
    return {"measure": "accuracy", "lowest": lowest, "highest": summary["accuracy"]}


def made_up(work: UnitWork) -> Clients:
    """As many clients as there are, with made-up rows that look like theirs.

    Guarantee: of private clients only what is declared decides what they hold.
    """
    held = work.held
    assert held is not None  # noqa: S101 - only a run that goes on has none
    both = _examples(held.examples, held.table, POOL + TEST)
    sizes = held.sizes if held.public else np.full(held.clients, ROWS)
    if isinstance(work, SiloWork):
        sizes = np.array([plan.config.members for plan in work.plans])
    elif isinstance(work, RecordWork):
        sizes = np.array(work.declared)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Clients(
        examples=both.some(slice(0, POOL)),
        partition=Partition(offsets=offsets, indices=np.arange(offsets[-1]) % POOL),
        test=both.some(slice(POOL, None)),
        name="made up",
        public=True,
        owners=held.names or None,
        names=held.names,
        table=held.table,
    )


def _examples(like: Examples, columns: Columns | None, count: int) -> Examples:
    """Made-up rows that tell their labels: each class has a row of its own, and its rows have half of that; labels that
    are no classes follow a linear rule.
    """
    draw = np.random.Generator(np.random.PCG64(0))
    rows = _rows(like, columns, count, draw)
    if like.classes is not None and like.labels.ndim == 1:
        labels = draw.integers(0, like.classes, count)
        models = iter(named(_rows(like, columns, like.classes, draw)).values())
        rows = each(lambda one: np.where(draw.random(one.shape) < 1 / 2, next(models)[labels], one), rows)
        return replace(like, features=_encoded(rows, columns), labels=labels)
    features = _encoded(rows, columns)
    flat = first(features).reshape(count, -1).astype(np.float64)
    shape = (like.classes or 1, *like.labels.shape[1:])
    scores = np.tensordot((flat - flat.mean(0)) / (flat.std(0) + 1e-9), draw.normal(size=(flat.shape[1], *shape)), 1)
    if like.classes is not None:
        return replace(like, features=features, labels=scores.argmax(1))
    numbers = scores[:, 0] / scores.std()
    several = like.labels.ndim > 1  # yes or no to each
    return replace(like, features=features, labels=(numbers > 0 if several else numbers).astype(np.float32))


def _rows(like: Examples, columns: Columns | None, count: int, draw: np.random.Generator) -> Any:
    """Cells of the stated kinds where the rows are a table's; elsewhere arrays of the same form."""
    if columns is None:
        return each(lambda array: _numbers(array, count, draw), like.features)
    cells = np.empty((count, len(columns.features)), object)
    for place, name in enumerate(columns.features):
        column = columns.meaning(name)
        for row in range(count):
            cells[row, place] = _cell(column, draw)
    return cells


def _numbers(array: NDArray[Any], count: int, draw: np.random.Generator) -> NDArray[Any]:
    shape = (count, *array.shape[1:])
    if array.dtype.kind == "f":
        return draw.normal(size=shape).astype(array.dtype)
    return draw.integers(0, 256 if array.dtype == np.uint8 else 2, shape).astype(array.dtype)


def _encoded(rows: Any, columns: Columns | None) -> Any:
    """What a model sees of cells."""
    if columns is None:
        return rows
    reading, meanings = columns.reading, [columns.meaning(name) for name in columns.features]
    encoded = (
        [number for column, cell in zip(meanings, row, strict=True) for number in column.encoded(cell, reading)]
        for row in rows
    )
    return np.array(list(encoded), np.float32)


def _cell(column: Column, draw: np.random.Generator) -> Any:
    """A made-up cell of a column."""
    if isinstance(column, Number):
        if column.range is None:
            return int(draw.integers(0, 100)) if column.whole else float(draw.normal())
        low, high = column.range
        return int(draw.integers(int(np.ceil(low)), int(high) + 1)) if column.whole else float(draw.uniform(low, high))
    if isinstance(column, Category):
        return column.levels[int(draw.integers(len(column.levels)))]
    if isinstance(column, YesNo):
        return (column.yes if draw.random() < 1 / 2 else column.no)[0]
    if isinstance(column, Date):
        return column.dates[0] + timedelta(days=int(draw.integers((column.dates[1] - column.dates[0]).days + 1)))
    if isinstance(column, Text):
        return " ".join(f"word{number}" for number in draw.integers(0, _WORDS, 5))
    assert isinstance(column, Ignored)  # noqa: S101 - there are no other kinds
    return None
