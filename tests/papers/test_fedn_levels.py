"""Three promises on the same data."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from incrowd.data import Split
from papers.fedn.levels import Levels
from papers.fedn.silos import NETWORKS
from tests.command import Command


@pytest.fixture(autouse=True)
def quick_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of everything, whose price takes no time, and raw pixels."""
    quick = replace(NETWORKS["best"], batch_share=1.0, epochs=1.0, features=None)
    monkeypatch.setitem(NETWORKS, "best", quick)


@pytest.mark.slow
def test_central_noise_leaves_more_than_local_noise_and_a_record_is_easier_to_hide_than_a_client(split: Split) -> None:
    levels = Levels(split=split, clients=10, epsilons=(8.0,))
    by_level = {point["level"]: point for point in levels.points()}
    assert by_level["local"]["accuracy"] < by_level["central"]["accuracy"]
    assert [by_level[level]["unit"] for level in ("local", "central", "record")] == ["client", "client", "record"]
    assert by_level["record"]["accuracy"] > 0.2


@pytest.mark.slow
def test_the_command_draws_a_curve_a_level(reproduce: Command, folder: Path, tmp_path: Path) -> None:
    levels = partial(reproduce, "fedn-privacy-levels")
    quick = ("--data", str(folder), "--clients", "5", "--level", "central,local")
    finished = levels(*quick, "--epsilon", "2,8", "--plot", "levels.png", "--json")
    assert finished.status == 0
    assert [(point["level"], point["epsilon"]) for point in finished.object()["points"]] == [
        ("central", 2.0),
        ("central", 8.0),
        ("local", 2.0),
        ("local", 8.0),
    ]
    assert (tmp_path / "levels.png").read_bytes().startswith(b"\x89PNG")
    assert "a whole client, local noise, epsilon 8" in finished.err
    table = levels(*quick, "--epsilon", "8")
    assert table.status == 0
    assert "central" in table.out
