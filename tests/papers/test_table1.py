import json
from pathlib import Path

import pytest

from incrowd import Local
from incrowd.data import Split
from incrowd.privacy.statement import MEDIAN
from papers.geyer.paper import FIXED
from papers.geyer.plain import Plain
from papers.geyer.report import SHOWN, report, warnings
from papers.geyer.table1 import Table

PROMISED = {
    "clients",
    "recipe",
    "epsilon",
    "delta",
    "accuracy",
    "accuracy_sd",
    "rounds",
    "communications",
    "accountant",
    "seconds",
    "paper_accuracy",
    "paper_communications",
    "statement",
}


def quick(split: Split, **other: object) -> Table:
    """A row of a second."""
    settings = {"split": split, "rows": [100], "recipes": ["general"], "epsilons": [0.7], "seeds": 2} | other
    return Table(**settings)  # type: ignore[arg-type]  # by name


@pytest.mark.slow
def test_an_entry_says_what_was_measured_and_what_is_promised(split: Split, tmp_path: Path) -> None:
    lines: list[str] = []
    table = quick(split, epsilons=[0.7, 8.0], say=lines.append, cache=tmp_path)
    less, more = table.entries()
    assert less.keys() >= PROMISED
    assert less["epsilon"] <= 0.7 < more["epsilon"] <= 8.0
    assert (more["accountant"], more["delta"], more["paper_accuracy"]) == ("GDP", 1e-3, 0.78)
    assert more["communications"] == 100 * more["rounds"]
    assert less["accuracy"] < more["accuracy"]
    assert any("SIMULATION" in caveat for caveat in more["statement"]["caveats"])
    assert any("declared public" in caveat for caveat in more["statement"]["caveats"])
    assert "whether one client contributed or left its place empty" in " ".join(more["statement"]["text"].split())
    json.dumps([less, more], allow_nan=False)
    assert lines[0] == "general, 100 clients, epsilon 0.7"
    assert len(list(tmp_path.glob("features-*.npy"))) == 2  # of train and test, computed once


@pytest.mark.slow
def test_the_smallest_epsilon_reaches_the_paper_s_accuracy(split: Split) -> None:
    (entry,) = quick(split, seeds=1).smallest()
    assert entry["accuracy"] >= entry["paper_accuracy"]
    (below,) = quick(split, seeds=1, epsilons=[entry["budget_epsilon"] / 2]).entries()
    assert below["accuracy"] < entry["paper_accuracy"]


@pytest.mark.slow
def test_the_paper_s_recipe_says_what_it_claims_and_what_holds_and_adds_the_row_without_privacy(
    split: Split, tmp_path: Path
) -> None:
    plain = Plain(rounds=2, clients=5, local=Local(learning_rate=0.1, batches=2))
    table = quick(split, recipes=["paper"], epsilons=[3.0], seeds=2, plain=plain)
    picture = tmp_path / "table1.svg"
    found, shown = report(table, smallest=False, ablate=False, plot=picture)
    private, public = found["rows"]
    assert private.keys() >= PROMISED
    assert public.keys() >= PROMISED
    assert private["epsilon"] == private["budget_epsilon"] == 3.0 < private["epsilon_honest"]
    assert private["accountant"] == "moments"
    assert private["accountant_honest"] == "GDP"  # everyone takes part
    assert private["sampling"] == "FixedSize"
    assert MEDIAN in private["warnings"]
    assert MEDIAN in private["statement"]["caveats"]
    assert warnings(found) == [MEDIAN, FIXED, "nothing is private here"]
    assert (public["clients"], public["rounds"], public["communications"]) == (5, 2, 10)
    assert public["epsilon"] is public["delta"] is public["accountant"] is public["statement"] is None
    assert public["paper_accuracy"] is None  # these are not the digits that the paper speaks of
    assert public["weights"] == private["weights"] == 531_400
    assert len(public["accuracies"]) == 2
    assert [tuple(row) for row in shown] == [tuple(SHOWN)] * 2
    assert ">paper, epsilon 3</text>" in picture.read_text()
    json.dumps(found, allow_nan=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("recipe", "at_least"), [("best", 0.98), ("general", 0.94)])
def test_mnist_at_a_hundred_clients(mnist: Split, recipe: str, at_least: float) -> None:
    (entry,) = quick(mnist, recipes=[recipe], epsilons=[8.0], cache=Path("out/features")).entries()
    assert entry["accuracy"] >= at_least
