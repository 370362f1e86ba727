"""The card of a model: what whoever is handed the model has to know, and nothing else."""

from pathlib import Path

import pytest

from incrowd.runs.card import card
from incrowd.runs.folder import settings_in
from incrowd.runs.run import Run
from incrowd.runs.settings import load
from tests.runs.small import SEEDED, small
from tests.runs.test_silo_run import small as silos
from tests.runs.test_table_runs import SIX, write

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_card_shows_promise_metrics_columns_and_settings(tmp_path: Path) -> None:
    config = load(write(tmp_path, f'{SIX}\ntest_file = "../tables/test.csv"'))
    summary = Run.create(config, tmp_path / "run").train()
    text = (tmp_path / "run/card.md").read_text()
    assert text.startswith("# A model of ward.csv\n")
    for line in (
        "| clients | 6 |",
        "| protected | one client |",
        "| delta | 0.001 |",
        f"| accuracy | {summary['accuracy']:.6g} |",
        '| age | {"range": [0, 100], "missing": 50} |',
        '| sex | {"levels": ["f", "m"]} |',
        "It gives one of the classes of died: no, yes.",
        f"Test set: {summary['test_set']}.",
    ):
        assert line in text.splitlines(), line
    assert summary["statement"]["text"] in text
    assert "accuracy, baseline" in text
    assert 'delimiter ";"' in text
    assert '- model: bias true, init_scale 1.0, kind "linear"' in text
    assert "- stop:" not in text


def test_a_card_tells_no_path_no_seed_and_no_time(tmp_path: Path) -> None:
    Run.create(load(write(tmp_path, SIX)), tmp_path / "run").train()
    Run.create(small(*SEEDED), tmp_path / "seeded").train()
    for folder in ("run", "seeded"):
        text = (tmp_path / folder / "card.md").read_text()
        assert str(tmp_path) not in text
        for word in ("tables/", "seconds", "seed ", "threads", "ledger.sqlite"):
            assert word not in text
    seeded = (tmp_path / "seeded" / "card.md").read_text()
    assert "| simulated | True |" in seeded
    assert "Examples like those that it learned from." in seeded


def test_epsilon_is_never_rounded_down(tmp_path: Path) -> None:
    summary = Run.create(small(), tmp_path / "run").train()
    summary["epsilon"] = 1.23401
    assert "| epsilon | 1.235 |" in card(settings_in(tmp_path / "run"), summary, statement="")


def test_silos_have_a_card_too(tmp_path: Path) -> None:
    summary = Run.create(silos(), tmp_path / "run").train()
    text = (tmp_path / "run/card.md").read_text()
    assert "| protected | one record |" in text
    assert summary["statement"]["text"] in text
