import json
from pathlib import Path

import pytest

from incrowd.data import Split
from incrowd.errors import ConfigError
from incrowd.reproduce.report import SHOWN, report
from incrowd.reproduce.table1 import Table

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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": [100, 99]}, "rows = 99: give some of 100, 1000, 10000"),
        ({"recipes": ["worst"]}, "recipe = 'worst'"),
        ({"epsilons": [0.0]}, "epsilon = 0.0"),
        ({"seeds": 0}, "seeds = 0"),
    ],
)
def test_wrong_wishes_are_named(split: Split, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quick(split, **wrong)


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
    assert "whether one client took part" in " ".join(more["statement"]["text"].split())
    json.dumps([less, more], allow_nan=False)
    assert lines[0] == "general, 100 clients, epsilon 0.7: 5 rounds"
    assert len(list(tmp_path.glob("features-*.npy"))) == 2  # of train and test, computed once


def test_the_smallest_epsilon_reaches_the_paper_s_accuracy(split: Split) -> None:
    (entry,) = quick(split, seeds=1).smallest()
    assert entry["accuracy"] >= entry["paper_accuracy"]
    (below,) = quick(split, seeds=1, epsilons=[entry["budget_epsilon"] / 2]).entries()
    assert below["accuracy"] < entry["paper_accuracy"]


def test_the_report_draws_and_shows(split: Split, tmp_path: Path) -> None:
    picture = tmp_path / "table1.svg"
    found, shown = report(quick(split, seeds=1), smallest=False, ablate=False, plot=picture)
    assert found["plot"] == str(picture)
    assert [tuple(row) for row in shown] == [tuple(SHOWN)]
    text = picture.read_text()
    for words in ("general, epsilon 0.7", "paper, epsilon 8", "SIMULATION: seeded noise"):
        assert f"<!-- {words} -->" in text


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("recipe", "at_least"), [("best", 0.98), ("general", 0.94)])
def test_mnist_at_a_hundred_clients(mnist: Split, recipe: str, at_least: float) -> None:
    (entry,) = quick(mnist, recipes=[recipe], epsilons=[8.0], cache=Path("out/features")).entries()
    assert entry["accuracy"] >= at_least
