"""Ranking in a small made-up world."""

import pytest

from papers.ddml.ranked_items import World
from papers.ddml.ranking import Ranking

SMALL = World(items=300, tags=12, words=30, buckets=18)


@pytest.fixture(scope="module")
def study() -> Ranking:
    return Ranking(world=SMALL, devices=1_000, updates=20_000)


@pytest.mark.slow
def test_the_report_has_quality_load_and_memory(study: Ranking) -> None:
    found = study.report()
    assert [row["label"] for row in found["table"]][-2:] == ["the writers' own likings", "no model"]
    assert found["table"][-1]["roc_auc"] == pytest.approx(0.5)
    assert found["load"]["draw_bytes"] == 4 * SMALL.weights
    assert found["load"]["pool_bytes"] == (20 + 256) * 4 * SMALL.weights
    assert found["load"]["updates_per_second"] > 0
    assert len(found["findings"]) == 4
    assert found["hot_keys"][0]["instances"] == 1
    assert found["instances_needed"]
    assert f"{SMALL.weights} released numbers" in found["promise"]
