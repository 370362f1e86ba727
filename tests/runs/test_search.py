import json
import math
from typing import Any

import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.account.selection import Repetitions
from incrowd.runs.search import Search, axis

BASE = ("model={kind='linear'}", "features={name='none'}", "data.clients=12", "privacy.rounds=2")


def search(*axes: str, **wanted: Any) -> Search:
    return Search(overrides=BASE, axes=[axis(text) for text in axes or ["local.epochs=2"]], **wanted)


def test_every_point_is_a_whole_config_on_one_thread_with_a_validation_set() -> None:
    found = search("server.learning_rate=2,4", "model={kind='mlp', hidden=[8]},{kind='linear'}").candidates
    assert len(found) == 4
    assert [each.config.server.learning_rate for each in found] == [2, 2, 4, 4]
    assert found[0].settings == {
        "server.learning_rate": 2.0,
        "model": {"init_scale": 1.0, "kind": "mlp", "hidden": [8], "bias": True},
    }
    for each in found:
        assert (each.config.run.threads, each.config.run.plot) == (1, False)
        assert each.config.data.validation == 0.1  # type: ignore[union-attr]  # digits are divided
        assert each.config.privacy.rounds == 2


def test_simulated_runs_have_seeds_of_their_own() -> None:
    seeded = Search(overrides=(*BASE, "run.randomness=seeded", "run.seed=7"), axes=[axis("local.epochs=1,2")])
    seeds = [seeded.config(0, run=run).run.seed for run in (0, 1)]
    assert seeds[0] != seeds[1]
    assert seeds[0] == seeded.config(1, run=0).run.seed  # by the run, whatever its settings are
    assert 7 not in seeds
    asked = Search(overrides=(*BASE, "run.randomness=seeded"), axes=[axis("run.seed=3,4")])
    assert [asked.config(place, run=place).run.seed for place in (0, 1)] == [3, 4]
    assert search().config(0, run=5).run.seed is None


def test_what_a_search_is_survives_json_and_tells_searches_apart() -> None:
    first = search("local.epochs=1,2", select="private", repetitions=Repetitions(mean=2.0, shape=math.inf))
    assert json.loads(json.dumps(first.to_json(), allow_nan=False)) == first.to_json()
    assert first.to_json() != search("local.epochs=1,2").to_json()
    assert search("local.epochs=1,2").to_json() != search("local.epochs=1,3").to_json()
    assert search("local.epochs=1,2").to_json() != search("local.epochs=1,2", budget=9.0).to_json()


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"select": "best"}, "select"),
        ({"select": "private"}, "expected_runs"),
        ({"repetitions": Repetitions(mean=2.0)}, "expected_runs"),
        ({"validation": -0.1}, "validation"),
        ({"validation": 1.0}, "validation"),
        ({"budget": 0.0}, "budget"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_searches_are_refused_by_name(wanted: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        search("local.epochs=1,2", **wanted)
    assert refused.value.field == field


def test_a_point_that_is_no_config_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"local\.epoch\b"):
        _ = search("local.epoch=1,2").candidates
    with pytest.raises(ConfigError, match=r"local\.epochs"):
        _ = search("local.epochs=1,many").candidates
