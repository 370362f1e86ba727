from collections.abc import Sequence
from pathlib import Path

import pytest

from incrowd import Local
from incrowd.data import Split
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.schedule import constant
from incrowd.runs.database import Record
from incrowd.runs.trackers import Facts
from papers.geyer.kept import Kept
from papers.geyer.measure import curve, measure
from papers.geyer.paper import PaperSetup, executed

CLIENTS = 6
SETUP = PaperSetup(local=Local(learning_rate=0.1, batches=2), schedule=constant(rounds=1, cohort=3).scaled(0.9))
PLAN = executed(constant(rounds=4, cohort=3).scaled(0.02), clients=CLIENTS, delta=1e-3)


class Impatient:
    """Stops a run after a round, as a user does."""

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """Nothing."""

    def round(self, record: Record) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    def end(self, summary: Facts | None) -> None:
        """Nothing."""


@pytest.mark.slow
def test_it_is_the_federation_in_memory_and_goes_on_where_it_was_stopped(
    split: Split, folder: Path, tmp_path: Path
) -> None:
    kept = Kept(folder=tmp_path, data=folder)
    expected = curve(SETUP, PLAN, split, seed=3)
    run = kept.federation(SETUP, PLAN, 3).start(kept.place(PLAN, 3))
    with pytest.raises(KeyboardInterrupt):
        run.train([Impatient()])
    assert kept.curve(SETUP, PLAN, seed=3) == expected
    assert (kept.place(PLAN, 3) / "summary.json").is_file()
    assert kept.curve(SETUP, PLAN, seed=3) == expected  # it is over: the same again
    assert len({point.accuracy for point in expected}) > 1


@pytest.mark.slow
def test_what_is_kept_is_measured_as_what_is_not(split: Split, folder: Path, tmp_path: Path) -> None:
    budget = Budget(epsilon=8, delta=1e-3)
    kept = Kept(folder=tmp_path, data=folder).measure(SETUP, split, clients=CLIENTS, budget=budget, seeds=[5])
    found = measure(SETUP, split, clients=CLIENTS, budget=budget, seeds=[5])
    assert kept.accuracies == found.accuracies
    assert 2 <= found.plan.rounds <= 8
    assert (kept.plan, kept.weights, kept.claim) == (found.plan, found.weights, found.claim)


@pytest.mark.slow
def test_a_folder_with_another_run_is_refused(folder: Path, tmp_path: Path) -> None:
    kept = Kept(folder=tmp_path, data=folder)
    kept.curve(SETUP, PLAN, seed=3)
    other = PaperSetup(local=Local(learning_rate=0.2, batches=2), schedule=SETUP.schedule)
    louder = executed(constant(rounds=4, cohort=3).scaled(0.03), clients=CLIENTS, delta=1e-3)
    for setup, plan in ((other, PLAN), (SETUP, louder)):
        with pytest.raises(ConfigError, match=r"a run with .* was begun there"):
            kept.curve(setup, plan, seed=3)
