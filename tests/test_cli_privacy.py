"""`incrowd privacy`, as a user meets it."""

import pytest

from tests.command import Command, command

ASKED = ("--k", "10", "--epsilon", "1.1", "--updates-since", "5000")


@pytest.fixture
def ddml(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys, "privacy", "ddml")


@pytest.mark.slow
def test_three_adversaries_as_one_json_object(ddml: Command) -> None:
    finished = ddml(*ASKED, "--gamma", "0.01", "--clip", "0.5", "--weights", "10", "--delta", "1e-6", "--json")
    assert finished.status == 0
    one, two, three = finished.object()["adversaries"]
    assert one["epsilon"] == two["epsilon"] == 1.1
    assert one["epsilon_per_model"] == pytest.approx(11)
    assert one["noise_scale"] == pytest.approx(0.01 / 1.1)
    assert two["expected_loss"] == pytest.approx(0.45 * 1.1)
    assert three["delta"] == 1e-6
    assert 0 < three["epsilon"] < three["epsilon_if_not_discarded"] < 1.1


@pytest.mark.slow
def test_text_names_the_papers_figures_as_such(ddml: Command) -> None:
    finished = ddml(*ASKED, "--unit", "model")
    assert finished.status == 0
    assert "paper's, printed" in finished.out
    assert "not a DP guarantee" in finished.out
