import re
import subprocess
import sys
from pathlib import Path

import pytest

from incrowd import __version__
from tests.command import Command

ASKED = ("privacy", "ddml", "--k", "10", "--epsilon", "1.1", "--updates-since", "5000")


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "incrowd", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"incrowd {__version__}\n"


def test_version_and_help(incrowd: Command) -> None:
    assert incrowd("--version").out == f"incrowd {__version__}\n"
    groups = [[name] for name in ("ddml", "flower", "ledger", "party", "privacy", "reproduce")]
    for words in ([], ["plan"], *groups, ["ledger", "show"], ["ledger", "verify"]):
        finished = incrowd(*words, "--help")
        assert finished.status == 0
        assert "Usage:" in finished.out
        assert "Example: incrowd " in " ".join(finished.out.split())


@pytest.mark.slow
def test_plan_answers_what_if(incrowd: Command, tmp_path: Path) -> None:
    picture = tmp_path / "plans.svg"
    words = [
        "--clients",
        "100,1000",
        "--epsilon",
        "1,8",
        "--delta",
        "1e-5",
        "--rounds",
        "5,9",
        "--sampling",
        "everyone",
    ]
    finished = incrowd("plan", *words, "--weights", "400", "--plot", str(picture), "--json")
    plans = finished.object()["plans"]
    assert {"cohort", "sampling_prob", "noise_multiplier", "schedule"} <= set(plans[0])
    assert [(plan["clients"], plan["budget_epsilon"], plan["rounds"]) for plan in plans] == [
        (clients, epsilon, rounds) for clients in (100, 1000) for epsilon in (1, 8) for rounds in (5, 9)
    ]
    assert all(plan["epsilon"] <= plan["budget_epsilon"] for plan in plans)
    assert plans[0]["noise_to_signal"] == pytest.approx(plans[0]["noise_multiplier"] * 20 / 100)
    text = picture.read_text()
    assert all(words in text for words in ("epsilon 1, 100 clients", "epsilon 8, 1000 clients", "400 weights"))
    table = incrowd("plan", *words).out
    assert re.search(r"budget epsilon", table)
    assert len(re.findall(r"│\s+1000 │\s+8 │", table)) == 2


@pytest.mark.slow
def test_privacy_of_three_adversaries_is_one_json_object(incrowd: Command) -> None:
    finished = incrowd(*ASKED, "--gamma", "0.01", "--clip", "0.5", "--weights", "10", "--delta", "1e-6", "--json")
    assert finished.status == 0
    one, two, three = finished.object()["adversaries"]
    assert one["epsilon"] == two["epsilon"] == 1.1
    assert one["epsilon_per_model"] == pytest.approx(11)
    assert one["noise_scale"] == pytest.approx(0.01 / 1.1)
    assert two["expected_loss"] == pytest.approx(0.45 * 1.1)
    assert three["delta"] == 1e-6
    assert 0 < three["epsilon"] < three["epsilon_if_not_discarded"] < 1.1


@pytest.mark.slow
def test_privacy_names_the_papers_figures_as_such(incrowd: Command) -> None:
    finished = incrowd(*ASKED, "--unit", "model")
    assert finished.status == 0
    assert "paper's, printed" in finished.out
    assert "not a DP guarantee" in finished.out
