"""Silos that share noise, beside one server, noise in each silo, and one alone."""

from functools import partial
from pathlib import Path

import pytest

from incrowd import ConfigError, DataError
from incrowd.data import Split
from papers.fedn import shared
from papers.fedn.shared import SharedSilos
from tests.command import Command


@pytest.fixture(autouse=True)
def few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "STEPS", (4,))
    monkeypatch.setattr(shared, "RATES", (2.0,))


def test_what_cannot_be_measured_is_refused(split: Split) -> None:
    with pytest.raises(ConfigError, match="at least 3"):
        SharedSilos(split=split, sizes=[(2, 10)])
    with pytest.raises(DataError, match="too many"):
        SharedSilos(split=split, sizes=[(10, 10_000)])
    with pytest.raises(DataError, match="test examples"):
        SharedSilos(split=Split(name="x", train=split.train, test=None), sizes=[(3, 10)])


@pytest.mark.slow
def test_the_command_has_a_row_for_each_way_and_draws_them(reproduce: Command, folder: Path, tmp_path: Path) -> None:
    silos = partial(reproduce, "shared-silos")
    quick = ("--data", str(folder), "--sizes", "4x30", "--epsilon", "8", "--seeds", "1")
    finished = silos(*quick, "--plot", "bars.png", "--json")
    assert finished.status == 0
    rows = finished.object()["rows"]
    assert {row["data"] for row in rows} == {"mnist"}
    assert [(row["noise_by"], row["colluders"]) for row in rows] == [
        ("pooled", None),
        ("parties", 1),
        ("parties", 2),
        ("party", None),
        ("alone", None),
    ]
    assert (tmp_path / "bars.png").stat().st_size > 1000
    assert "shared, a third" in silos(*quick).out
    assert silos("--data", str(folder), "--sizes", "4").status == 2


def test_a_masked_answer_has_two_bytes_a_weight(reproduce: Command) -> None:
    (row,) = reproduce("secure-sum-cost", "--parties", "3", "--weights", "500", "--json").object()["rows"]
    assert 1000 < row["bytes"] < 1500
    assert row["milliseconds"] > 0
