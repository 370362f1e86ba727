"""What is doubtful about a run is said with a figure and a remedy, before the first round and at the end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import incrowd
from incrowd.algorithms.metrics import metrics
from incrowd.runs.advice import advice, judged, verdict
from incrowd.runs.config import Config, parse
from incrowd.runs.folder import Record
from incrowd.runs.work import ClientWork, SiloWork, assemble, assemble_silos

ROWS = "".join(f"p{n // 4},{n % 60},{n % 2}\n" for n in range(40))


def work(**sections: dict[str, Any]) -> ClientWork:
    """The digits, with whatever is said otherwise."""
    privacy = {"epsilon": 8.0, "delta": 1e-3, "rounds": 20} | sections.pop("privacy", {})
    return assemble(parse({"data": {"clients": 100}, "privacy": privacy, **sections}))


def of_table(folder: Path, *, features: str = "none", **data: object) -> ClientWork:
    (folder / "t.csv").write_text(f"owner,age,y\n{ROWS}")
    told = {"name": "table", "folder": str(folder), "file": "t.csv", "client": "owner", "label": "y", "clients": 10}
    promise = {"epsilon": 8.0, "delta": 1e-3}
    config = parse({"data": told | {"classes": 2} | data, "features": {"name": features}, "privacy": promise})
    assert isinstance(config, Config)
    return assemble(config)


def test_a_sensible_run_needs_no_advice() -> None:
    assert advice(work()) == []


def test_an_epsilon_that_promises_little_is_said_with_the_attacker_s_odds() -> None:
    (said,) = advice(work(privacy={"epsilon": 60.0}))
    assert said.startswith("privacy.epsilon = 60 promises little: who attacks may be right 100 % of the time.")
    assert advice(work(privacy={"epsilon": 50.0})) == []


def test_silos_are_seen_by_the_largest_of_their_budgets() -> None:
    tables = {"data": {"clients": 2}, "privacy": {"unit": "record", "epsilon": [1.0, 80.0], "delta": 1e-5}}
    found = assemble_silos(parse(tables))
    assert [said.partition(" promises")[0] for said in advice(found)] == ["privacy.epsilon = 80"]


def test_noise_beside_signal_is_said_as_the_plan_has_it() -> None:
    found = work(data={"clients": 20}, model={"kind": "mlp", "hidden": [200]}, privacy={"epsilon": 1.0})
    (said,) = advice(found)
    plan, size = found.plan, found.model.size
    ratio = plan.noise_multiplier * np.sqrt(size) / 20 / np.sqrt(plan.rounds)
    assert said.startswith(f"noise is {ratio:.3g} times what 20 rounds of {size:,} weights can move")


def test_columns_without_a_range_are_named(tmp_path: Path) -> None:
    plain = of_table(tmp_path, columns={"age": {"kind": "number"}})
    assert any(said.startswith("age go in as they are") for said in advice(plain))
    assert any(said.startswith("age go in as they are") for said in advice(of_table(tmp_path)))
    by_size = of_table(tmp_path, columns={"age": "number"}, features="table")
    assert any(said.startswith("age have no range, and are seen by their size") for said in advice(by_size))
    scaled = of_table(tmp_path, columns={"age": {"range": [0, 60]}})
    assert not any("go in as they are" in said for said in advice(scaled))


def test_advice_does_not_depend_on_the_rows(tmp_path: Path) -> None:
    before = advice(of_table(tmp_path))
    global ROWS  # noqa: PLW0603 - other rows of the same clients
    kept, ROWS = ROWS, ROWS.replace(",1\n", ",0\n")
    try:
        assert advice(of_table(tmp_path)) == before
    finally:
        ROWS = kept


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


SEEDED = ("run.randomness=seeded", "run.seed=1")


@pytest.mark.parametrize("good", [True, False])
def test_the_verdict_is_in_the_summary_and_at_the_end(tmp_path: Path, good: bool) -> None:
    federation = incrowd.Federation.from_settings(
        None, overrides=[*SEEDED, "privacy.rounds=2", *([] if good else ["privacy.epsilon=0.01"])]
    )
    run = federation.start(tmp_path / "run")
    found = run.train()
    assert (found["verdict"]["measure"], found["verdict"]["advice"] == []) == ("accuracy", good)
    assert (run.verdict(found) == []) == good


@pytest.mark.parametrize(("losses", "words"), [((1.0, 2.0), None), ((1.0, 11.0), "11, and was 1"), ((None,), "not a")])
def test_a_model_that_went_astray_is_said(losses: tuple[float | None, ...], words: str | None) -> None:
    records = [Record(round=place, epsilon=1.0, accuracy=0.5, loss=loss) for place, loss in enumerate(losses)]
    said = verdict(work(), {"verdict": None}, records)
    assert [words in one for one in said if words is not None] == ([] if words is None else [True])
    assert bool(said) == (words is not None)


@pytest.mark.slow
def test_a_program_and_the_command_line_show_it_before_the_first_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    numbers = np.arange(40)
    x, y = np.stack([numbers / 40, numbers % 3], 1), numbers % 2
    data = incrowd.Clients.from_arrays(x, y, owner=numbers // 4, classes=2, public=True)
    private = incrowd.Private(epsilon=70, delta=1e-3, rounds=1)
    federation = incrowd.Federation(nn.Linear(2, 2), data, privacy=private)
    federation.train(tmp_path / "shown")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("advice: privacy.epsilon = 70 promises little")
    assert lines[-1].startswith("round 1/1")
    federation.train(tmp_path / "quiet", progress=False)
    assert capsys.readouterr().err == ""


def of_silos(**sections: dict[str, Any]) -> SiloWork:
    """Two silos of digits, with whatever is said otherwise."""
    privacy = {"unit": "record", "epsilon": 8.0, "delta": 1e-5, "rounds": 5} | sections.pop("privacy", {})
    return assemble_silos(parse({"data": {"clients": 2}, "privacy": privacy, **sections}))


@pytest.mark.slow
def test_noise_of_silos_is_said_as_their_steps_have_it() -> None:
    assert advice(of_silos()) == []
    found = of_silos(privacy={"epsilon": 0.1}, local={"batch_size": 8.0}, model={"kind": "mlp", "hidden": [400]})
    (said,) = advice(found)
    plans, size = found.plans, found.model.size
    # The mean over the silos of the sums of all steps, each of which moves at most by the clip.
    noise = [found.plan.noise_multiplier / 8 * np.sqrt(plan.config.steps * 5) for plan in plans]
    signal = np.mean([plan.config.steps * 5 for plan in plans])
    assert all(plan.config.steps == plans[0].config.steps for plan in plans)
    ratio = np.sqrt(size) * np.linalg.norm(noise) / 2 / signal
    assert said.startswith(f"noise is {ratio:.3g} times what 5 rounds of {size:,} weights can move")
    assert said.endswith("Raise privacy.epsilon or local.batch_size, find more records, or take a smaller model.")


def test_correlated_noise_is_said_as_what_is_left_of_it_after_all_rounds() -> None:
    private = {"epsilon": 0.5, "noise": "correlated", "groups": 4, "rounds": 8}
    found = work(privacy=private)
    (said,) = advice(found)
    plan, size = found.plan, found.model.size
    assert plan.correlated is not None
    column = plan.correlated.strategy.column(8)
    mixing = np.array([[column[row - at] if row >= at else 0.0 for at in range(8)] for row in range(8)])
    last = np.linalg.inv(mixing).sum(axis=0)  # of the sum over all rounds, in the fresh noise of each
    noise = plan.noise_multiplier * plan.correlated.sensitivity * np.linalg.norm(last)
    assert said.startswith(f"noise is {np.sqrt(size) * noise / 25 / 8:.3g} times what 8 rounds of {size:,} weights")
