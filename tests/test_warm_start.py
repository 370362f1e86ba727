"""More rounds from a finished run: a released model is public, and what starts from it is one more run on the data."""

from pathlib import Path

import numpy as np
import pytest
import torch

import incrowd
from incrowd.errors import BudgetExceeded
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.home import Home
from tests.test_federation import clients, federation

pytestmark = pytest.mark.usefixtures("one_thread")


def begin_ledger(epsilon: float) -> None:
    """As `incrowd ledger new --name visits --epsilon EPSILON --delta 1e-3` does."""
    Home.of_user().ledger_of(
        DataIdentity(name="visits", unit="client"),
        budget=Budget(epsilon=epsilon, delta=1e-3),
        relation=Relation.REPLACE_SPECIAL,
    )


def private(epsilon: float, rounds: int = 3) -> incrowd.Private:
    return incrowd.Private(epsilon=epsilon, delta=1e-3, rounds=rounds)


def test_a_run_from_a_released_model_is_charged_to_the_same_ledger(tmp_path: Path) -> None:
    begin_ledger(epsilon=20)
    own = clients(public=False, name="visits", clients=20)
    first = federation(own, privacy=private(10)).train(tmp_path / "first", progress=False)
    assert first.epsilon == pytest.approx(10, abs=0.1)
    more = federation(own, module=first.module, privacy=private(8, rounds=2)).train(tmp_path / "more", progress=False)
    assert 10.1 < more.epsilon <= 20
    alone = federation(clients(seed=5), privacy=private(8, rounds=2)).train(tmp_path / "alone", progress=False)
    assert more.epsilon > alone.epsilon
    assert "which also holds 3 charges of other runs" in " ".join(more.statement.split())
    with pytest.raises(BudgetExceeded):  # what is left decides, whatever the new run's own budget is
        federation(own, module=more.module, privacy=private(19)).train(tmp_path / "third", progress=False)
    assert not (tmp_path / "third").exists()


def test_it_starts_where_the_other_ended(tmp_path: Path) -> None:
    first = federation().train(tmp_path / "first", progress=False)
    still = incrowd.ServerOptimizer(learning_rate=1e-9)
    more = federation(module=first.module, server=still).train(tmp_path / "more", progress=False)
    for name, value in first.module.state_dict().items():
        assert torch.allclose(more.module.state_dict()[name], value, atol=1e-6)
    features = np.ones((1, 4), np.float32)
    assert np.allclose(more.outputs(features), first.outputs(features), atol=1e-5)
