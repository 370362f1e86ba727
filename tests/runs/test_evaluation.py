"""Evaluations on the clients' own examples: priced, reserved and charged like a round, and said in the statement."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import incrowd
from incrowd.errors import BudgetExceeded
from incrowd.learning import CROSS_ENTROPY
from incrowd.learning.scoring import Scorer, Scoring
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.runs.config import Config
from incrowd.runs.evaluation import Evaluation, EvaluationConfig, evaluations_in
from incrowd.runs.folder import export
from incrowd.runs.run import Run
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import Place, killed_in
from tests.runs.small import clients_of, seeded, small

pytestmark = pytest.mark.usefixtures("one_thread")

WANTED = EvaluationConfig(epsilon=2.0)
KINDS = {
    "everyone": ((), Relation.REPLACE_SPECIAL),
    "poisson": (("privacy.sampling=poisson", "privacy.cohort=6"), Relation.ADD_OR_REMOVE_ONE),
    "fixed": (("privacy.sampling=fixed", "privacy.cohort=6"), Relation.REPLACE_ONE),
    "local": (("privacy.noise_by=party",), Relation.REPLACE_ONE),
    "correlated": (("privacy.noise=correlated", "privacy.groups=3"), Relation.REPLACE_SPECIAL),
}


def trained(folder: Path, config: Config) -> Run:
    run = Run.create(config, folder)
    run.train()
    return run


def exact(run: Run, scoring: Scoring | None = None) -> list[float]:
    """The figures without noise: the mean over the clients of what each has right."""
    work = clients_of(run)
    scorer = Scorer(model=work.model, data=work.engine.data, scoring=scoring or Scoring(), loss=CROSS_ENTROPY)
    with Evaluation.begin(run.folder, run.work, EvaluationConfig(epsilon=2.0)) as evaluation:
        rows = scorer.rows(evaluation.weights, range(12))
    return [float(each) for each in rows.mean(axis=0)]


def charged(run: Run) -> int:
    with Ledger.read(run.folder / "ledger.sqlite") as ledger:
        return ledger.charges()[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_are_those_of_the_clients_and_the_noise_is_as_said(kind: str, folder: Path) -> None:
    settings, relation = KINDS[kind]
    run = trained(folder / "run", seeded(*settings, "privacy.room=1e6"))
    found = run.evaluate(EvaluationConfig(epsilon=1e4, loss_bound=5.0, by_class=True))
    right, loss, *classes = exact(run, Scoring(loss_bound=5.0, classes=10))
    reach = 7 * found["accuracy_std"]
    assert reach < 0.5
    assert found["accuracy"] == pytest.approx(right + 0.5, abs=reach)
    assert found["loss"] == pytest.approx(5 * (loss + 0.5), abs=5 * reach)
    shares = np.array(classes).reshape(10, 2).sum(axis=1)
    assert [row["share"] for row in found["by_class"]] == pytest.approx(shares, abs=10 * found["share_std"])
    deviation = found["noise_multiplier"] * math.sqrt(1.5) / 12 * (math.sqrt(12) if kind == "local" else 1)
    assert found["accuracy_std"] == found["share_std"] == found["loss_std"] / 5 == pytest.approx(deviation, rel=1e-5)
    with Ledger.read(run.folder / "ledger.sqlite") as ledger:
        assert ledger.relation is relation
        assert ledger.spent().epsilon == found["epsilon_of_all"]
    assert (found["clients"], found["simulated"], found["noise_by"]) == (12, True, clients_of(run).plan.noise_by)


def test_what_is_released_is_in_the_folder_and_the_statement_counts_it(folder: Path) -> None:
    run = trained(folder / "run", seeded("privacy.room=1e6"))
    before = json.loads((run.folder / "summary.json").read_text())
    first = run.evaluate(WANTED)
    second = run.evaluate(WANTED)
    assert evaluations_in(run.folder) == [first, second]
    after = json.loads((run.folder / "summary.json").read_text())
    text = (run.folder / "statement.txt").read_text()
    assert before["epsilon"] < first["epsilon_of_all"] < second["epsilon_of_all"] == after["epsilon"]
    assert after["statement"] == second["statement"] == json.loads((run.folder / "statement.json").read_text())
    assert "evaluations: 2, of all 12 clients" in " ".join(text.split())
    assert "other runs" not in text.partition("Not covered")[0].replace("what others spent", "")
    assert after.keys() == before.keys()
    assert Run.open(run.folder).train()["epsilon"] == after["epsilon"]  # it is over, and says so again
    assert "evaluation.json" in export(run.folder, folder / "out")
    assert (folder / "out" / "evaluation.json").read_text() == (run.folder / "evaluation.json").read_text()


def test_each_is_paid_for_before_it_is_released_and_none_twice_for_one(folder: Path) -> None:
    run = trained(folder / "run", small("privacy.room=3.0"))
    rounds = charged(run)
    run.evaluate(EvaluationConfig(epsilon=1.0))
    run.evaluate(EvaluationConfig(epsilon=1.0))
    assert charged(run) == rounds + 2
    figures = [each["accuracy"] for each in evaluations_in(run.folder)]
    assert figures[0] != figures[1]  # noise of their own
    with pytest.raises(BudgetExceeded, match=r"privacy\.room, or incrowd ledger new"):
        run.evaluate(EvaluationConfig(epsilon=9.0))
    assert charged(run) == rounds + 2
    assert len(evaluations_in(run.folder)) == 2
    assert verify(run.folder / "ledger.sqlite")["intact"]


def test_under_a_seed_evaluations_differ_and_repeat(folder: Path) -> None:
    figures = []
    for name in ("one", "two"):
        run = trained(folder / name, seeded("privacy.room=1e3"))
        figures.append([run.evaluate(WANTED)["accuracy"] for _ in range(3)])
    assert figures[0] == figures[1]
    assert len(set(figures[0])) == 3


def test_without_room_nothing_is_scored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(folder / "run", seeded())
    before = (run.folder / "statement.txt").read_text()

    def scored(*_: object) -> None:
        raise AssertionError("examples were looked at")

    monkeypatch.setattr(Scorer, "rows", scored)
    with pytest.raises(BudgetExceeded):
        run.evaluate(WANTED)
    assert not (run.folder / "evaluation.json").exists()
    assert (run.folder / "statement.txt").read_text() == before


def test_what_was_reserved_and_not_charged_goes_on_or_is_given_back(folder: Path) -> None:
    run = trained(folder / "run", seeded("privacy.room=3.0"))
    labels = []
    for epsilon in (2.0, 2.0, 2.5):
        with Evaluation.begin(run.folder, run.work, EvaluationConfig(epsilon=epsilon)) as evaluation:
            labels.append(evaluation.label.rpartition(" ")[2])  # and the process ends
    assert labels == ["1", "1", "2"]
    with Ledger.read(run.folder / "ledger.sqlite") as ledger:
        assert [each.released for each in ledger.reservations()] == [False, True, False]
    run.evaluate(EvaluationConfig(epsilon=2.5))
    assert len(evaluations_in(run.folder)) == 1


@pytest.mark.parametrize(
    ("place", "paid"),
    [
        (Place("privacy/release.py", "charge", "call"), 0),
        (Place("privacy/release.py", "charge", "return"), 1),
        (Place("runs/folder.py", "write_results", "call"), 1),
        (Place("runs/folder.py", "write_results", "return"), 1),
    ],
    ids=lambda each: f"{each.function}-{each.happening}" if isinstance(each, Place) else "",
)
def test_killed_it_is_charged_once_and_the_next_one_says_all_of_it(place: Place, paid: int, folder: Path) -> None:
    run = trained(folder / "run", small("privacy.room=1e3"))
    rounds = charged(run)
    assert status_of(start(lambda: killed_in(place, lambda: run.evaluate(WANTED)))) != 0
    assert charged(run) == rounds + paid
    assert evaluations_in(run.folder) == []
    found = run.evaluate(WANTED)
    assert charged(run) == rounds + paid + 1
    assert evaluations_in(run.folder) == [found]
    assert f"evaluations: {paid + 1}, of all 12 clients" in found["statement"]["sampler"]
    with Ledger.read(run.folder / "ledger.sqlite") as ledger:
        assert found["epsilon_of_all"] == ledger.spent().epsilon == ledger.promised().epsilon


def test_those_who_are_declared_and_not_there_count_as_one_half(folder: Path) -> None:
    rows = [f"u{place % 9},{place % 7},{place % 2}" for place in range(90)]
    (folder / "table.csv").write_text("\n".join(["who,x,y", *rows]) + "\n")
    table = {"name": "table", "folder": str(folder), "file": "table.csv", "client": "who", "label": "y", "classes": 2}
    run = {"randomness": "seeded", "seed": 7, "threads": 1}
    privacy = {"epsilon": 50.0, "delta": 1e-2, "rounds": 1, "room": 1e5}
    whole = incrowd.Federation.from_tables({"data": table | {"clients": 10}, "privacy": privacy, "run": run})
    whole.train(folder / "run", progress=False)
    found = whole.evaluate(folder / "run", epsilon=1e4)
    work = clients_of(Run.open(folder / "run"))
    run_ = whole.run_in(folder / "run")
    with Evaluation.begin(run_.folder, run_.work, EvaluationConfig(epsilon=1e4)) as evaluation:
        rows_ = evaluation.here.rows(range(9))
    assert (work.data.clients, work.data.present) == (10, 9)
    assert found["accuracy"] == pytest.approx(rows_.sum() / 10 + 0.5, abs=7 * found["accuracy_std"])
