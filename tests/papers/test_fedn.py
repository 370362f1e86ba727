"""The FEDn example: our silos keep the budget, and its own schedule breaks it."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from incrowd.data import Split
from incrowd.privacy.account.accounting import Relation, price
from incrowd.privacy.account.events import compose
from papers.fedn.schedule import ROUNDS, Published
from papers.fedn.silos import NETWORKS, Silos, shown_published
from tests.command import Command


@pytest.fixture(autouse=True)
def quick_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of everything, whose price takes no time, and features that are quick."""
    for name, network in NETWORKS.items():
        quick = replace(network, batch_share=1.0, epochs=2.0, features=None)
        monkeypatch.setitem(NETWORKS, name, quick)


@pytest.fixture
def silos(split: Split) -> Silos:
    return Silos(split=split, silos=(2,), epsilons=(8.0,), networks=("best",))


def test_every_silo_spends_its_budget_by_the_last_round_and_never_more(silos: Silos) -> None:
    (run,) = replace(silos, silos=(3,)).runs()
    assert set(run["epsilon_by_silo"]) == {"silo 1", "silo 2", "silo 3"}
    for epsilons in (*run["epsilon_by_silo"].values(), run["epsilon_by_round"]):
        assert len(epsilons) == ROUNDS
        assert epsilons == sorted(set(epsilons))
        assert 0.999 * 8 < max(epsilons) <= 8
    assert run["stopped"] == []
    assert "add or remove one record" in " ".join(run["statement"]["text"].split())
    assert "SIMULATION" in run["statement"]["text"]


def test_the_published_schedule_is_calibrated_as_if_nothing_had_been_spent_and_breaks_its_budget() -> None:
    schedule = Published(records=320, epsilon=2.0, rounds=4, batch=320)  # everyone in every step: quick to price
    found = schedule.simulated()
    noise, epsilons = found["noise_by_round"], found["epsilon_by_round"]
    assert isinstance(noise, list)
    assert isinstance(epsilons, list)
    assert noise == sorted(noise, reverse=True)
    before = 0.0
    for number, (multiplier, epsilon) in enumerate(zip(noise, epsilons, strict=True)):
        alone = price(schedule.event(multiplier), delta=1e-5, relation=Relation.ADD_OR_REMOVE_ONE).epsilon
        assert alone == pytest.approx(math.sqrt(before**2 + 4 / 4), rel=1e-3)
        together = compose([(schedule.event(one), 1) for one in noise[: number + 1]])
        assert epsilon == pytest.approx(
            price(together, delta=1e-5, relation=Relation.ADD_OR_REMOVE_ONE).epsilon, rel=2e-3
        )
        before = epsilon
    first = found["first_round_over_budget"]
    assert isinstance(first, int)
    assert epsilons[first - 1] > 2.0 >= epsilons[first - 2]
    assert shown_published([{"silos": 2} | Published(records=32, epsilon=2.0).simulated()])[0]["silos"] == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_examples_own_numbers_break_their_budget_in_round_six() -> None:
    assert Published(records=30_000, epsilon=8.0).simulated()["first_round_over_budget"] == 6


@pytest.mark.slow
def test_the_command_prints_one_json_object_and_progress_beside_it(reproduce: Command, folder: Path) -> None:
    fedn = partial(reproduce, "fedn-silos")
    quick = ("--data", str(folder), "--silos", "2", "--epsilon", "0.5", "--network", "best", "--rounds", "2")
    finished = fedn(*quick, "--json")
    assert finished.status == 0
    found = finished.object()
    (run,), (published,) = found["runs"], found["published"]
    assert (run["silos"], run["network"], run["epsilon"]) == (2, "best", 0.5)
    assert len(run["epsilon_by_round"]) == len(published["epsilon_by_round"]) == 2
    assert 0.499 < run["epsilon_by_round"][-1] <= 0.5 < published["epsilon_by_round"][-1]
    assert "best, 2 silos, epsilon 0.5" in finished.err
    assert found["files"] == ["out/figures/fedn-silos.png", "out/figures/fedn-silos.svg"]
    drawn = Path(found["files"][1]).read_text()
    assert all(words in drawn for words in ("best, 2 silos, epsilon 0.5", "the published schedule", "budgets"))
    table = fedn(*quick[:-1], "1")
    assert table.status == 0
    assert "first round over budget" in " ".join(table.out.split())
