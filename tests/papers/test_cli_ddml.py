"""`incrowd reproduce ddml-figure1` to `ddml-figure4`, as a user meets them."""

from pathlib import Path

import pytest

from tests.command import Command


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
def test_figure_1_needs_no_data(reproduce: Command) -> None:
    words = ("ddml-figure1", "--instances", "3", "--updates", "60", "--seeds", "4")
    assert "k/2" in reproduce(*words).out
    found = reproduce(*words, "--json").object()
    assert found["stable_variance"] == 1.5
    assert len(found["panels"]) == 2
