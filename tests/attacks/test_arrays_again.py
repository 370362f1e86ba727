"""The same people once more, as arrays: other names, another scale, another order, a public flag."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd.errors import BudgetExceeded, LedgerMismatch

pytestmark = pytest.mark.usefixtures("one_thread")

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
OWNER = np.arange(60) % 12
ORDER = np.random.default_rng(1).permutation(60)


def train(folder: Path, x: Any = X, y: Any = Y, owner: Any = OWNER, **stated: Any) -> None:
    stated = {"name": "visits", "clients": 12, **stated}
    data = incrowd.Clients.from_arrays(x, y, owner=owner, classes=2, **stated)
    privacy = incrowd.Private(epsilon=3, delta=1e-3, rounds=2)
    run = incrowd.RunOptions(threads=1)
    incrowd.Federation(nn.Linear(3, 2), data, privacy=privacy, run=run).train(folder, progress=False)


@pytest.mark.parametrize(
    "again",
    [
        {"x": X[ORDER], "y": Y[ORDER], "owner": OWNER[ORDER]},
        {"x": X.astype(np.float64)},
        {"x": X * 2, "scale": 0.5},
        {"owner": OWNER + 100},
        {"owner": np.array([f"patient {11 - owner}" for owner in OWNER])},
    ],
    ids=["shuffled", "wider", "scaled", "renumbered", "renamed"],
)
def test_the_same_people_in_other_arrays_have_the_ledger_that_they_had(tmp_path: Path, again: dict[str, Any]) -> None:
    train(tmp_path / "first")
    with pytest.raises(BudgetExceeded):
        train(tmp_path / "second", **{"name": "others", **again})
    with pytest.raises(LedgerMismatch):
        train(tmp_path / "third", **{"name": "nobody", "public": True, **again})


def test_the_same_examples_of_other_people_under_a_known_name_are_refused(tmp_path: Path) -> None:
    train(tmp_path / "first")
    with pytest.raises(LedgerMismatch, match="content has"):
        train(tmp_path / "second", owner=(np.arange(60) + np.arange(60) // 12) % 12)


def test_other_people_have_a_ledger_of_their_own(tmp_path: Path) -> None:
    """The control: what is another patient's is another's."""
    train(tmp_path / "first")
    train(tmp_path / "second", x=X + np.float32(0.5), name="others")
