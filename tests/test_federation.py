"""The front door: a module and clients in, a result out; killed and called again, it goes on."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import incrowd
from incrowd.errors import BudgetExceeded, ConfigError, DataError, LedgerMismatch
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.home import Home
from incrowd.runs.run import Run
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import Place, killed_in

pytestmark = pytest.mark.usefixtures("one_thread")

SEEDED = incrowd.RunOptions(randomness="seeded", seed=3, threads=1)
QUICK = incrowd.RunOptions(threads=1)


def arrays(seed: int = 0, count: int = 240) -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, 4)).astype(np.float32)
    labels = (features[:, 0] > features[:, 1]).astype(np.int64)
    return features, labels, np.arange(count) % 20


def clients(*, seed: int = 0, **stated: Any) -> incrowd.Clients:
    features, labels, owner = arrays(seed)
    stated = {"public": True, "test": arrays(seed + 1)[:2], **stated}
    return incrowd.Clients.from_arrays(features, labels, owner=owner, classes=2, **stated)


def module(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def federation(data: incrowd.Clients | None = None, **given: Any) -> incrowd.Federation:
    given = {
        "local": incrowd.Local(learning_rate=0.5, batch_size=6),
        "privacy": incrowd.Private(epsilon=50, delta=1e-3, rounds=4),
        "run": QUICK,
        "module": module(),
        **given,
    }
    return incrowd.Federation(given.pop("module"), clients() if data is None else data, **given)


def test_a_module_and_clients_in_a_result_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = federation(privacy=incrowd.Private(epsilon=5000, delta=1e-3, rounds=4)).train(tmp_path / "run")
    assert result.accuracy is not None
    assert result.accuracy > 0.8  # the noise is the operating system's, and small
    assert 4900 < result.epsilon <= 5000
    assert "epsilon" in result.statement
    assert [record.round for record in result.rounds] == [0, 1, 2, 3]
    features, labels, _ = arrays(seed=1)
    assert np.mean(result.predict(features) == labels) == pytest.approx(result.accuracy)
    assert result.predict_proba(features).sum(axis=1) == pytest.approx(np.ones(240))
    assert torch.equal(torch.from_numpy(result.outputs(features)), result.module(torch.from_numpy(features)))
    assert "round 4/4" in capsys.readouterr().err


@pytest.mark.parametrize("round", [1, 3])
def test_killed_and_called_again_it_goes_on(tmp_path: Path, round: int) -> None:
    """With a module that is drawn anew: the run remembers the one that it began with."""
    whole = federation(run=SEEDED).train(tmp_path / "whole", progress=False)
    place = Place("runs/round_loop.py", "step", "call", round)
    again = federation(run=SEEDED)
    assert status_of(start(lambda: killed_in(place, lambda: again.train(tmp_path / "run")))) == -signal.SIGKILL
    result = federation(run=SEEDED, module=module(seed=99)).train(tmp_path / "run", progress=False)
    for name, value in whole.module.state_dict().items():
        assert torch.equal(result.module.state_dict()[name], value)
    assert federation(run=SEEDED).train(tmp_path / "run", progress=False).summary == result.summary


class Wider(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(4, 2)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.output(features)
        return outputs


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"privacy": incrowd.Private(epsilon=40, delta=1e-3, rounds=4)}, r"privacy\.epsilon = 50"),
        ({"local": incrowd.Local(learning_rate=0.1)}, r"local\.learning_rate = 0\.5"),
        ({"module": Wider()}, "module"),
        ({"module": nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))}, "module"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, r"local\.loss = None"),
        ({"privacy": incrowd.Private(unit="record", epsilon=4, delta=1e-3)}, "a run with .* was begun there"),
    ],
)
def test_another_federation_does_not_go_on_in_the_folder(tmp_path: Path, other: dict[str, Any], message: str) -> None:
    federation().start(tmp_path / "run")
    if getattr(other.get("privacy"), "unit", None) == "record":
        other = {**other, "local": incrowd.Local(), "run": None}
    with pytest.raises(ConfigError, match=message):
        federation(**other).train(tmp_path / "run", progress=False)


def test_neither_other_data_nor_another_program_goes_on_in_the_folder(tmp_path: Path) -> None:
    federation().start(tmp_path / "run")
    with pytest.raises(DataError, match="the data are not those"):
        federation(clients(seed=7)).train(tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match="the run was begun by a program: let that go on"):
        Run.open(tmp_path / "run")


def test_private_clients_share_one_ledger(tmp_path: Path) -> None:
    def own(**stated: Any) -> incrowd.Clients:
        return clients(**{"public": False, "name": "visits", "clients": 20, **stated})

    first = federation(own()).train(tmp_path / "first", progress=False)
    assert (first.summary["data"], first.summary["clients"]) == ("visits", 20)
    assert [known.names for known in Home.of_user().ledgers()] == [("visits",)]
    with pytest.raises(BudgetExceeded):
        federation(own()).train(tmp_path / "second", progress=False)
    with pytest.raises(LedgerMismatch):  # one round more on the same people, under a name of its own
        federation(own(name="others", public=True)).train(tmp_path / "third", progress=False)
    with pytest.raises(LedgerMismatch, match="content has"):
        federation(own(seed=3)).train(tmp_path / "fourth", progress=False)
    with pytest.raises(BudgetExceeded):  # another name, the same people
        federation(own(name="others")).train(tmp_path / "fifth", progress=False)


@pytest.mark.slow
def test_silos_have_names_budgets_and_ledgers_of_their_own(tmp_path: Path) -> None:
    features, labels, _ = arrays()
    parts = {"north": (features[:80], labels[:80]), "south": (features[80:], labels[80:])}
    data = incrowd.Clients.from_partitions(parts, classes=2, test=arrays(1)[:2], public=True)
    result = incrowd.Federation(
        module(),
        data,
        local=incrowd.Local(learning_rate=0.5, batch_size=20),
        privacy=incrowd.Private(unit="record", epsilon=(1.0, 4.0), delta=1e-4, rounds=2),
        run=incrowd.RunOptions(threads=1),
    ).train(tmp_path / "run", progress=False)
    spent = result.summary["epsilon_by_silo"]
    assert [round(epsilon) for epsilon in spent.values()] == [1, 4]
    assert result.left is not None
    assert result.left < 0.1


def test_a_recipe_fills_in_what_is_not_stated(tmp_path: Path) -> None:
    stated: Any = {"privacy": incrowd.Private(epsilon=8, delta=1e-3, rounds=3), "run": QUICK}
    one, again = (incrowd.Federation.by_recipe("general", clients(), **stated) for _ in range(2))
    assert one.settings.privacy.rounds == 3
    assert one.settings.local.label_shares is not None
    result = one.train(tmp_path / "run", progress=False)
    assert result.summary["accuracy"] > 0.6
    assert again.train(tmp_path / "run", progress=False).summary["accuracy"] == result.summary["accuracy"]
    server = incrowd.ServerOptimizer(learning_rate=0.5)
    own = incrowd.Federation.by_recipe("general", clients(), **stated, module=module(), server=server)
    assert (own.settings.server.learning_rate, own.settings.server.decay) == (0.5, "linear")
    assert own.settings.local.batches == 10
    assert own.train(tmp_path / "own", progress=False).summary["rounds"] == 3


def test_a_result_shows_spending_quality_and_its_folder(tmp_path: Path) -> None:
    whole = federation(privacy=incrowd.Private(epsilon=50, delta=1e-3, rounds=2, room=5.0)).train(
        tmp_path / "run", progress=False
    )
    shown = repr(whole)
    assert shown.startswith(f"Result(accuracy {whole.accuracy:.4f} (baseline ")
    assert whole.left is not None
    assert f"epsilon {whole.epsilon:.4g} spent, {round(whole.left, 4):g} left, folder='{tmp_path / 'run'}')" in shown
    assert 5.0 <= whole.left < 6.0


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
