"""Ranking in a small made-up world."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from incrowd import Budget, Device, Ledger, Relation
from incrowd._random import SeededRandomness
from incrowd.drawdiscard import Policy
from incrowd.errors import ConfigError, SpecificationRefused
from papers.ddml.ranked_items import TAGS_OF_ITEM, World
from papers.ddml.ranking import ALONE, PRIVATE, Ranking

SMALL = World(items=300, tags=12, words=30, buckets=18)


@pytest.fixture(scope="module")
def study() -> Ranking:
    return Ranking(world=SMALL, devices=1_000, updates=20_000)


def test_the_world_has_about_the_papers_sizes() -> None:
    world = World()
    assert (world.items, world.weights) == (7_000, 1 + 100 + 100 * (400 + 98))
    assert all(len(set(tags)) == TAGS_OF_ITEM for tags in world.tags_of[:50].tolist())


def test_scores_of_all_items_are_sums_of_the_weights_of_a_text_and_an_item() -> None:
    stream = SeededRandomness(1).stream("texts")
    words, topics = SMALL.texts(5, stream)
    items = SMALL.choices(topics, stream)
    features = SMALL.features(words, items)
    assert features.width == SMALL.weights - 1
    weights = SeededRandomness(2).stream("weights").normals(SMALL.weights)
    scores = SMALL.scores(weights, words)[np.arange(5), items]
    assert np.allclose(scores, features.dense() @ weights[1:])


def test_a_device_learns_from_texts_and_tags_in_its_own_table() -> None:
    stream = SeededRandomness(1).stream("texts")
    words, topics = SMALL.texts(5, stream)
    table = SMALL.table(words, SMALL.choices(topics, stream)) | {"chosen": [1, 0, 1, 0, 1]}
    strict = Policy(unit="feature", epsilon=4.0, daily_epsilon=4.0)
    budget = Budget(epsilon=1e4, delta=1e-9)
    policy = Policy(unit="feature", epsilon=1e4, daily_epsilon=1e4, budget=budget)
    ledger = Ledger.in_memory(budget=policy.budget, relation=Relation.REPLACE_ONE)
    asked = SMALL.specification
    with Device(table, ledger=ledger, policy=policy) as device:
        assert device.check(asked).problems == ()
        with pytest.raises(SpecificationRefused, match="per feature"):  # a text is in all numbers of its words and tags
            strict.check(asked, list(table))
        assert device.answer(asked.to_json(), np.zeros(asked.size)).shape == (SMALL.weights,)


def test_choices_are_as_frequent_as_they_are_liked() -> None:
    topics = np.full(20_000, 3)
    found = Counter(SMALL.choices(topics, SeededRandomness(1).stream("choices")).tolist())
    chances = np.exp(SMALL.likings[3])
    chances /= chances.sum()
    top = int(chances.argmax())
    assert found[top] / 20_000 == pytest.approx(chances[top], abs=4 * np.sqrt(chances[top] / 20_000))
    assert found[int(chances.argmin())] < found[top] / 10


@pytest.mark.slow
def test_noise_costs_and_learning_helps(study: Ranking) -> None:
    private = study.measure(replace(PRIVATE, clip=0.05))
    alone = study.measure(ALONE)
    loud = study.measure(replace(PRIVATE, clip=0.05, epsilon=0.01))
    assert alone["mean_place"] < private["mean_place"] < loud["mean_place"]
    assert private["mean_place"] < 0.8 * 149.5 < loud["mean_place"]


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


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="buckets"):
        World(items=10, tags=10, words=10, buckets=0)
    with pytest.raises(ConfigError, match="tags"):
        World(tags=2)
    with pytest.raises(ConfigError, match="updates"):
        Ranking(updates=0)


@pytest.mark.parametrize("weights", [700, 5_000, 50_000, 100_000])
def test_a_world_has_about_as_many_weights_as_are_asked_for(weights: int) -> None:
    world = World.of_size(weights, items=10, seed=1)
    assert weights - world.tags <= world.weights <= weights
    assert World.of_size(50_000, items=7_000, seed=1) == World()
    with pytest.raises(ConfigError, match="weights"):
        World.of_size(400, items=10, seed=1)
