"""`incrowd reproduce ddml-figure5`, `ddml-phishing`, `ddml-ranking`, `ddml-spam`, as a user meets them."""

from pathlib import Path

import pytest

from tests.command import Command
from tests.papers.addresses import made_up, write_urls


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_urls(tmp_path_factory.mktemp("data"), made_up(400)))


@pytest.mark.slow
def test_known_weights_as_text_and_as_one_json_object(reproduce: Command) -> None:
    words = ("ddml-figure5", "--updates", "2000", "--instances", "3", "--out", "pictures")
    finished = reproduce(*words)
    assert finished.status == 0
    assert "DIFFERS" in finished.out
    assert "2,000 of 2,000 updates" in finished.err
    found = reproduce(*words, "--json").object()
    assert len(found["estimated"]) == 33
    assert found["moments"] == [2000]
    assert Path(found["files"][0]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_phishing_has_the_six_measures_beside_the_papers(reproduce: Command, urls: str) -> None:
    words = ("ddml-phishing", "--data", urls, "--passes", "2", "--seeds", "1")
    found = reproduce(*words, "--json").object()
    for measured in (found, found["paper"], found["not_private"]):
        assert {"roc_auc", "pr_auc", "accuracy", "precision", "recall", "f1"} <= measured.keys()
    assert found["setting"] == "paper"
    finished = reproduce(*words, "--best", "--tune")
    assert finished.status == 0
    assert "best, one URL instead of ten" in finished.out
    assert "387 released numbers" in finished.out


@pytest.mark.slow
def test_ranking_has_quality_load_and_hot_keys(reproduce: Command) -> None:
    words = ("ddml-ranking", "--items", "200", "--weights", "45000", "--devices", "50", "--updates", "200")
    finished = reproduce(*words)
    assert finished.status == 0
    for word in ("mean place", "updates per second", "busiest key", "writes a key", "agrees"):
        assert word in finished.out
    found = reproduce(*words, "--out", "drawn", "--json").object()
    assert found["files"] == ["drawn/ddml-ranking.png", "drawn/ddml-ranking.svg"]
    assert all(Path(name).stat().st_size > 1000 for name in found["files"])
    assert [one["share"][-1] for one in found["series"]] == [1.0] * 5  # of 200 items all are among 5,000
    assert all(one["share"] == sorted(one["share"]) for one in found["series"])
    assert 4 * 44_900 <= found["load"]["draw_bytes"] <= 4 * 45_000
    assert reproduce("ddml-ranking", "--weights", "10").status == 2


@pytest.mark.slow
def test_spam_has_honest_traffic_and_attacks(reproduce: Command) -> None:
    words = (
        "ddml-spam",
        "--rate",
        "0.05",
        "--honest",
        "100",
        "--updates",
        "60",
        "--instances",
        "3",
        "--sizes",
        "5,40",
        "--attackers",
        "0.3",
    )
    finished = reproduce(*words)
    assert finished.status == 0
    assert "hidden shift" in finished.out
    found = reproduce(*words, "--json").object()
    assert [row["weights"] for row in found["noise"]] == [5, 40]
    assert reproduce("ddml-spam", "--rate", "2").status == 2
    assert reproduce("ddml-spam", "--sizes", "many").status == 2
