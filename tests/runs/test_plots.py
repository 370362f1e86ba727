from pathlib import Path

import pytest

from incrowd.errors import ConfigError
from incrowd.runs.database import Record
from incrowd.runs.plots import draw_curve

RECORDS = [
    Record(round=0, epsilon=1.0, seconds=1.0, clients_per_second=1.0, accuracy=0.5, loss=1.0),
    Record(round=1, epsilon=1.5, seconds=0.0, clients_per_second=0.0, lost=True),
    Record(round=2, epsilon=2.0, seconds=1.0, clients_per_second=1.0),
]


def text(path: Path) -> str:
    """An SVG holds its words as paths, unless it is told not to: the comments beside them say which."""
    return path.read_text()


@pytest.mark.parametrize("simulated", [True, False])
def test_a_curve_is_drawn_and_a_simulation_is_marked(tmp_path: Path, simulated: bool) -> None:
    path = tmp_path / "curve.svg"
    draw_curve(path, RECORDS, simulated=simulated)
    assert "<!-- accuracy on the server's test set -->" in text(path)
    assert "<!-- epsilon, at most -->" in text(path)
    assert ("<!-- SIMULATION: seeded noise -->" in text(path)) == simulated


def test_without_accuracy_there_is_the_loss_and_without_both_only_epsilon(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    losses = [Record(round=0, epsilon=1.0, seconds=1.0, clients_per_second=1.0, loss=2.0)]
    for records in (losses, RECORDS[1:]):
        draw_curve(path, records, simulated=False)
        assert "<!-- loss on the server's test set -->" in text(path)


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a writable"):
        draw_curve(tmp_path / "curve.doc", RECORDS, simulated=False)
