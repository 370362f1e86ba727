"""`incrowd reproduce ddml-figure1` to `ddml-figure4`, as a user meets them."""

from pathlib import Path

import pytest

from tests.command import Command, command


@pytest.fixture
def reproduce(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capsys, "reproduce")


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["ddml-figure2", "ddml-figure4"])
def test_series_files_and_findings_as_one_json_object(reproduce: Command, folder: Path, figure: str) -> None:
    finished = reproduce(figure, "--data", str(folder), "--passes", "1", "--out", "pictures", "--json")
    assert finished.status == 0
    found = finished.object()
    assert found["figure"] == figure
    assert found["panels"][0]["series"][0]["accuracy"]
    assert found["findings"][0]["statement"]
    picture, drawing = (Path(name) for name in found["files"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in drawing.read_text()
    assert "accuracy" in finished.err


@pytest.mark.slow
def test_text_says_what_agrees(reproduce: Command, folder: Path) -> None:
    finished = reproduce("ddml-figure3", "--data", str(folder), "--passes", "1", "--instances", "2")
    assert finished.status == 0
    assert "agrees " in finished.out or "DIFFERS" in finished.out
    assert "out/figures/ddml-figure3.png" in finished.out


@pytest.mark.slow
def test_figure_1_needs_no_data(reproduce: Command) -> None:
    words = ("ddml-figure1", "--instances", "3", "--updates", "60", "--seeds", "4")
    assert "k/2" in reproduce(*words).out
    found = reproduce(*words, "--json").object()
    assert found["stable_variance"] == 1.5
    assert len(found["panels"]) == 2


def test_best_is_a_table(reproduce: Command, folder: Path) -> None:
    words = ("ddml-figure2", "--data", str(folder), "--passes", "1", "--best", "--epsilon", "2", "--held-out", "100")
    assert "smaller clip" in reproduce(*words).out
    rows = reproduce(*words, "--json").object()["rows"]
    assert {row["epsilon"] for row in rows} == {2.0}
    assert rows[0]["gain"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ddml-figure2", "--data", "nowhere"), "nowhere"),
        (("ddml-figure1", "--instances", "1"), "instances = 1"),
        (("ddml-figure1", "--seeds", "1"), "seeds = 1"),
        (("ddml-figure2", "--data", "nowhere", "--held-out", "-1"), "held_out = -1"),
        (("ddml-figure3", "--data", "nowhere", "--epsilon", "0"), "epsilon = 0"),
        (("ddml-figure4", "--data", "nowhere", "--gamma", "-1"), "gamma = -1"),
    ],
)
def test_wrong_use_is_named(reproduce: Command, words: tuple[str, ...], message: str) -> None:
    finished = reproduce(*words)
    assert finished.status == 2
    assert message in finished.err
