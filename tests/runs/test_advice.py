"""What is doubtful about a run is said with a figure and a remedy, before the first round and at the end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd.algorithms.metrics import metrics
from incrowd.runs.advice import advice, judged
from incrowd.runs.config import parse
from incrowd.runs.work import Work, work_of


def work(**sections: dict[str, Any]) -> Work:
    """The digits, with whatever is said otherwise."""
    privacy = {"epsilon": 8.0, "delta": 1e-3} | sections.pop("privacy", {})
    return work_of(parse({"data": {"clients": 100}, "privacy": privacy, **sections}))


def of_table(folder: Path, *, features: str = "none", label: str = "n % 2", **columns: object) -> Work:
    rows = "".join(f"p{n // 4},{n % 60},{eval(label)}\n" for n in range(40))  # noqa: S307 - our own words
    (folder / "t.csv").write_text(f"owner,age,y\n{rows}")
    told = {"name": "table", "folder": str(folder), "file": "t.csv", "client": "owner", "label": "y", "clients": 10}
    return work(data={**told, "classes": 2, "columns": columns}, features={"name": features})


def test_a_sensible_run_needs_no_advice_and_each_doubt_has_its_figure() -> None:
    assert advice(work()) == advice(work(privacy={"epsilon": 50.0})) == []
    (said,) = advice(work(privacy={"epsilon": 60.0}))
    assert said.startswith("privacy.epsilon = 60 promises little: who attacks may be right 100 % of the time.")
    silos = {"unit": "record", "epsilon": [1.0, 80.0], "delta": 1e-5}
    assert [said.partition(" promises")[0] for said in advice(work(data={"clients": 2}, privacy=silos))] == [
        "privacy.epsilon = 80"
    ]
    few = {"unit": "record", "epsilon": 0.03, "delta": 1e-5}
    assert advice(work(data={"clients": 2}, privacy=few | {"epsilon": 8.0})) == []
    (said,) = advice(work(data={"clients": 2}, privacy=few, local={"batch_size": 8.0}))
    assert said.endswith("Raise privacy.epsilon or local.batch_size, find more records, or take a smaller model.")
    found = work(data={"clients": 20}, model={"kind": "mlp", "hidden": [200]}, privacy={"epsilon": 1.0})
    (said,) = advice(found)
    ratio = found.plan.noise_multiplier * np.sqrt(found.model.size) / 20 / np.sqrt(found.rounds)
    assert said.startswith(f"noise is {ratio:.3g} times what 20 rounds of {found.model.size:,} weights can move")


def test_columns_without_a_range_are_named_and_no_row_is_looked_at(tmp_path: Path) -> None:
    unscaled = advice(of_table(tmp_path, age="number"))
    assert any(said.startswith("age go in as they are") for said in unscaled)
    assert any(said.startswith("age go in as they are") for said in advice(of_table(tmp_path)))
    assert advice(of_table(tmp_path, label="n % 1", age="number")) == unscaled
    by_size = advice(of_table(tmp_path, features="table", age="number"))
    assert any(said.startswith("age have no range, and are seen by their size") for said in by_size)
    scaled = advice(of_table(tmp_path, age={"range": [0, 60]}))
    assert not any("go in as they are" in said for said in scaled)


def measured(scores: np.ndarray, labels: np.ndarray) -> Any:
    """The judgement of logits for labels, of two classes or more; of numbers where there is no class."""
    classes = None if labels.dtype.kind == "f" else scores.shape[1]
    return judged(metrics(scores, labels, classes=classes), examples=len(labels), settings={"privacy": {"epsilon": 4}})


def test_a_model_is_judged_by_the_measure_that_suits_its_labels() -> None:
    draw = np.random.default_rng(0)
    rare = (draw.random(1000) < 0.08).astype(np.int64)
    even = draw.integers(0, 2, 1000)
    noise = draw.normal(size=(1000, 2))
    majority = np.tile([1.0, 0.0], (1000, 1)) + 0.01 * noise  # right for 92 %, and it has learned nothing
    for labels, scores, measure in ((rare, majority, "auc"), (even, noise, "accuracy")):
        found = measured(scores, labels)
        assert found["measure"] == measure
        (said,) = found["advice"]
        assert "is no better than" in said
        assert "privacy.epsilon" in said
        good = measured(scores + 2 * np.eye(2)[labels], labels)  # the control
        assert (good["measure"], good["advice"], good["value"] > 0.8) == (measure, [], True)
    three = np.where(draw.random(1000) < 0.8, 0, draw.integers(0, 3, 1000))
    assert measured(draw.normal(size=(1000, 3)), three)["measure"] == "balanced_accuracy"


def test_numbers_are_judged_by_r2_and_one_right_answer_more_is_no_better() -> None:
    draw = np.random.default_rng(0)
    labels = draw.normal(size=500).astype(np.float32)
    (said,) = measured(12 * draw.normal(size=500), labels)["advice"]
    assert said.startswith("R² -1")
    assert "server.learning_rate" in said
    assert measured(labels + draw.normal(size=500), labels)["advice"] != []
    assert measured(labels + 0.1, labels)["advice"] == []  # the control
    answers = np.repeat([0, 1], [251, 249])
    scores = np.tile([1.0, 0.0], (500, 1))
    scores[300] = [0.0, 1.0]  # the majority's, and one row
    assert measured(scores, answers)["advice"] != []


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [70, 0.01])
def test_a_program_shows_it_before_the_first_round_and_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], epsilon: float
) -> None:
    numbers = np.arange(40)
    x, y = np.stack([numbers / 40, numbers % 3], 1), numbers % 2
    data = incrowd.Clients.from_arrays(x, y, owner=numbers // 4, classes=2, public=True, test=(x, y))
    private = incrowd.Private(epsilon=epsilon, delta=1e-3, rounds=1)
    federation = incrowd.Federation(nn.Linear(2, 2), data, privacy=private)
    federation.train(tmp_path / "shown")
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("advice: privacy.epsilon = 70 promises little" if epsilon > 1 else "advice: noise is ")
    assert "is no better than always saying the most frequent class" in last
    federation.train(tmp_path / "quiet", progress=False)
    assert capsys.readouterr().err == ""
