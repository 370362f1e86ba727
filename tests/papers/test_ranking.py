"""Ranking in a small made-up world, and the sparse gradients against the dense ones."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard.glm import LOGISTIC, Glm
from incrowd.errors import ConfigError
from papers.ddml.ranked_items import TAGS_OF_ITEM, World
from papers.ddml.ranking import ALONE, PRIVATE, Ranking, SparseGradients

SMALL = World(items=300, tags=12, words=30, weights=600)


@pytest.fixture(scope="module")
def study() -> Ranking:
    return Ranking(world=SMALL, devices=1_000, updates=20_000)


def test_the_world_has_the_papers_sizes() -> None:
    world = World()
    assert (world.items, world.weights) == (7_000, 50_000)
    assert world.shared == 50_000 - 1 - 100 - 100 * 400
    assert all(len(set(tags)) == TAGS_OF_ITEM for tags in world.tags_of[:50].tolist())


def test_scores_of_all_items_are_sums_of_the_weights_of_a_text_and_an_item() -> None:
    stream = SeededRandomness(1).stream("texts")
    words, topics = SMALL.texts(5, stream)
    items = SMALL.choices(topics, stream)
    places = SMALL.places(words, items)
    assert places.shape == (5, SMALL.active)
    assert (places >= 0).all()
    assert (places < SMALL.weights).all()
    weights = SeededRandomness(2).stream("weights").normals(SMALL.weights)
    scores = SMALL.scores(weights, words)[np.arange(5), items]
    assert np.allclose(scores + weights[0], weights[places].sum(axis=1))


def test_choices_are_as_frequent_as_they_are_liked() -> None:
    topics = np.full(20_000, 3)
    found = Counter(SMALL.choices(topics, SeededRandomness(1).stream("choices")).tolist())
    chances = np.exp(SMALL.likings[3])
    chances /= chances.sum()
    top = int(chances.argmax())
    assert found[top] / 20_000 == pytest.approx(chances[top], abs=4 * np.sqrt(chances[top] / 20_000))
    assert found[int(chances.argmin())] < found[top] / 10


def test_sparse_gradients_are_those_of_the_dense_model() -> None:
    generator = np.random.Generator(np.random.SFC64(1))
    places = generator.integers(0, 40, (2, 6, 5)).astype(np.int32)
    responses = generator.integers(0, 2, (2, 6))
    dense = np.zeros((2, 6, 40))
    for device, example in np.ndindex(2, 6):
        np.add.at(dense[device, example], places[device, example], 1.0)
    weights = generator.standard_normal(40)
    sparse = SparseGradients(40, places, responses)
    model = Glm(features=40, link=LOGISTIC, intercept=False)
    for device in range(2):
        expected = model.gradient(weights, dense[device], responses[device][:, None].astype(float))
        assert np.allclose(sparse.gradient(sparse.inner(weights), device), expected, atol=1e-6)
    assert np.allclose(sparse.flat(sparse.inner(weights)), weights)


def test_noise_costs_and_learning_helps(study: Ranking) -> None:
    private = study.measure(replace(PRIVATE, clip=0.05))
    alone = study.measure(ALONE)
    loud = study.measure(replace(PRIVATE, clip=0.05, epsilon=0.01))
    assert alone["mean_place"] < private["mean_place"] < loud["mean_place"]
    assert private["mean_place"] < 0.8 * 149.5 < loud["mean_place"]


def test_the_report_has_quality_load_and_memory(study: Ranking) -> None:
    found = study.report()
    assert [row["label"] for row in found["table"]][-2:] == ["the writers' own likings", "no model"]
    assert found["table"][-1]["roc_auc"] == pytest.approx(0.5)
    assert found["load"]["draw_bytes"] == 8 * 600
    assert found["load"]["pool_bytes"] == 22 * 8 * 600
    assert found["load"]["updates_per_second"] > 0
    assert len(found["findings"]) == 4
    assert found["hot_keys"][0]["instances"] == 1
    assert found["instances_needed"]
    assert "600 released numbers" in found["promise"]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="weights"):
        World(items=10, tags=10, words=10, weights=100)
    with pytest.raises(ConfigError, match="tags"):
        World(tags=2)
    with pytest.raises(ConfigError, match="updates"):
        Ranking(updates=0)
