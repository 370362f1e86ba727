"""Recipes: what they may know, and what of the settings they leave alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd import Budget, Clients, Federation
from incrowd.errors import ConfigError, DataError
from incrowd.runs.config import parse
from incrowd.runs.recipes import MANY, RECIPES, Outline, completed, named, with_recipe

BUDGET = Budget(epsilon=8.0, delta=1e-6)
PROMISE: dict[str, Any] = {"data": {"name": "digits"}, "privacy": {"epsilon": 8.0, "delta": 1e-3}}


FORMS: dict[str, dict[str, Any]] = {"text": {"shape": (12,), "whole": True}}
"""Of the examples of a recipe that is not for all."""


def facts(name: str = "general", **changed: Any) -> Outline:
    usual: dict[str, Any] = {"clients": 100, "budget": BUDGET, "shape": (8, 8), "classes": 10}
    return Outline(**usual | FORMS.get(name, {}) | changed)


STATED: dict[str, dict[str, Any]] = {
    "local": {"learning_rate": 0.7},
    "server": {"kind": "adam", "adaptivity": 0.1},
    "model": {"kind": "mlp", "hidden": (3,)},
    "features": {"name": "none"},
    "privacy": {"epsilon": 2.0, "delta": 1e-3, "rounds": 3},
}


@given(
    clients=st.sampled_from([1, 100, MANY]),
    epsilon=st.sampled_from([0.3, 8.0]),
    own_model=st.booleans(),
    name=st.sampled_from([*RECIPES]),
    sections=st.sets(st.sampled_from([*STATED])),
)
def test_every_recipe_makes_settings_for_whatever_facts_and_what_is_stated_stays(
    clients: int, epsilon: float, own_model: bool, name: str, sections: set[str]
) -> None:
    known = facts(name, clients=clients, budget=Budget(epsilon=epsilon, delta=1e-6), own_model=own_model)
    stated = PROMISE | {section: STATED[section] for section in sections}
    made = completed(stated, named(name), known)
    assert parse(made).privacy.rounds >= (3 if "privacy" in sections else 10)
    for section, values in stated.items():
        assert made[section].items() >= values.items()


def test_facts_are_shapes_and_types_not_numbers() -> None:
    def clients(values: float, label: int) -> Clients:
        features = np.full((20, 3, 4), values, np.float32)
        labels = np.arange(20) % 2 if label else np.zeros(20, np.int64)
        return Clients.from_arrays(features, labels, owner=np.arange(20), classes=2, name="made up", clients=20)

    one, two = (Outline.of(clients(*each), BUDGET, own_model=False) for each in ((0.0, 0), (9.0, 1)))
    assert one == two
    assert one.shape == (3, 4)
    assert one.classes == 2


def test_the_stronger_the_signal_the_more_is_learned() -> None:
    few, many = facts(budget=Budget(epsilon=0.5, delta=1e-5)), facts(clients=2000)
    assert few.signal < 150 < 400 < many.signal
    assert named("images")(few)["features"]["dimensions"] < 512
    assert named("images")(many)["features"]["dimensions"] == 1024


SHARED: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({}, True),
    "label shares of its own": ({"local": {"label_shares": 0.5}}, True),
    "a share of its own": ({"local": {"label_distribution": 0.2}}, True),
    "features of its own": ({"features": {"name": "none"}}, True),
    "no label shares": ({"local": {"label_shares": None}}, False),
    "none": ({"local": {"label_distribution": None}}, False),
    "an adaptive clip": ({"privacy": {**PROMISE["privacy"], "clip": {"kind": "quantile"}}}, False),
    "correlated noise": ({"privacy": {**PROMISE["privacy"], "noise": "correlated"}}, False),
    "a round": ({"privacy": {**PROMISE["privacy"], "rounds": 1}}, False),
}


@pytest.mark.parametrize("recipe", ["general", "images", "tables"])
@pytest.mark.parametrize("name", SHARED)
def test_wherever_clients_have_label_shares_the_label_distribution_is_asked(name: str, recipe: str) -> None:
    stated, asked = SHARED[name]
    made = completed({**PROMISE, **stated}, named(recipe), facts(shape=(28, 28)))
    assert (made["local"].get("label_distribution") is not None) == asked
    assert made["privacy"]["rounds"] == stated.get("privacy", {}).get("rounds", 30 + asked)
    if name == "nothing":
        assert "label_distribution" not in completed(PROMISE, named("general"), facts(classes=None))["local"]
        unbiased = completed(PROMISE, named(recipe), replace(facts(shape=(28, 28)), biased=False))
        assert "label_distribution" not in unbiased["local"]


def numbers(folder: Path, rows: int = 4000, **data: Any) -> dict[str, Any]:
    """Settings for a public table of 200 people, whose label is a line in two columns from 900 to 1,100."""
    draw = np.random.default_rng(0)
    for name, owners in (("train", 200), ("test", 100)):
        columns = draw.random((rows, 2))
        label = 1000 + 100 * (columns[:, 0] - columns[:, 1])
        told = enumerate(np.column_stack([columns, label]))
        lines = [f"{name}{row % owners},{a:.4f},{b:.4f},{c:.3f}" for row, (a, b, c) in told]
        (folder / f"{name}.csv").write_text("\n".join(["who,a,b,label", *lines]))
    known = {"name": "table", "file": "train.csv", "test_file": "test.csv", "folder": str(folder), "public": True}
    meaning = {"client": "who", "label": "label", "columns": {one: {"range": [0, 1]} for one in ("a", "b")}}
    return {"data": known | meaning | data, "privacy": {"epsilon": 8.0, "delta": 1e-3}, "run": {}}


def test_labels_in_a_stated_range_are_learned_in_their_own_units(tmp_path: Path) -> None:
    settings = numbers(tmp_path, label_range=[900, 1100])
    federation = Federation.from_tables({"recipe": "tables", **settings})
    metrics = federation.train(tmp_path / "run", progress=False).summary["metrics"]
    assert metrics["r2"] > 0.8
    with pytest.raises(ConfigError, match=r"state data\.label_range and take tables"):
        Federation.from_tables({"recipe": "tables", **numbers(tmp_path)})
    for wrong in ([1100, 900], [900, 900]):
        with pytest.raises(ConfigError, match=r"data\.label_range"):
            parse(numbers(tmp_path, label_range=wrong))
    with pytest.raises(DataError, match="outside of the stated range of labels, 990 to 1010"):
        Federation.from_tables({"recipe": "tables", **numbers(tmp_path, label_range=[990, 1010])})


def test_a_table_is_of_texts_if_all_columns_are(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("who,note,age,bad\n" + "".join(f"{k},word {k},{k},{k % 2}\n" for k in range(20)))
    note = {"kind": "text", "buckets": 64}

    def made(**columns: Any) -> Any:
        stated: dict[str, Any] = {
            "data": {"name": "table", "file": str(file), "client": "who", "label": "bad", "public": True},
            "privacy": {"epsilon": 8.0, "delta": 1e-3},
        }
        stated["data"] |= {"columns": columns, "features": list(columns), "classes": ["0", "1"]}
        return with_recipe(stated, "text")

    assert made(note=note)["features"]["name"] == "text"
    with pytest.raises(ConfigError, match="examples are no texts"):
        made(note=note, age={"range": [0, 100]})


def records(**privacy: Any) -> dict[str, Any]:
    data = {"name": "digits", "clients": 4, "partition": "iid"}
    return {"data": data, "privacy": {"unit": "record", "epsilon": 2.0, "delta": 1e-4, **privacy}, "run": {}}


def test_records_are_learnt_in_as_many_steps_as_their_signal(tmp_path: Path) -> None:
    made = with_recipe(records(), "general")
    assert made["privacy"]["clip_norm"] == 0.3
    longer = with_recipe(records(epsilon=8.0), "general")
    rates = [one["local"]["learning_rate"] for one in (made, longer)]
    assert rates[0] < rates[1]
    several = with_recipe(records(epsilon=(2.0, 8.0, 8.0, 8.0), records=(400, 300, 400, 300)), "general")
    declared = with_recipe(records(records=300), "general")
    assert several["local"] == declared["local"]  # by the least epsilon and the fewest records
    assert made["local"]["learning_rate"] > declared["local"]["learning_rate"]
    metrics = Federation.from_tables({"recipe": "general", **records()}).train(tmp_path / "run", progress=False).summary
    assert metrics["accuracy"] > 0.6
    own = with_recipe({**records(), "model": {"kind": "mlp"}}, "general")
    assert "features" not in own
    parse(own)


def test_private_records_are_declared(tmp_path: Path) -> None:
    settings = numbers(tmp_path, label_range=[900, 1100], public=False)
    settings["data"] |= {"clients": 200}
    del settings["data"]["test_file"]
    settings["privacy"] |= {"unit": "record"}
    with pytest.raises(ConfigError, match=r"privacy\.records = None: how many records a silo has is private"):
        with_recipe(settings, "tables")
    settings["privacy"] |= {"records": 20}
    ranged = with_recipe(settings, "tables")
    assert ranged["model"]["label_range"] == (900, 1100)
    assert ranged["local"]["learning_rate"] > 0


UNFIT: dict[str, tuple[str, dict[str, Any], str]] = {
    "one class": ("general", {"classes": 1}, "labels are of 1 class, which leaves nothing to learn"),
    "a class a place": ("text", {"places": True}, "an example has a class for each of its places"),
    "tokens": ("general", {"whole": True}, r"examples are whole numbers.*model.module"),
    "whole pixels": ("images", {"whole": True}, "examples are whole numbers, which are tokens.*uint8 with data.scale"),
    "whole numbers": ("tables", {"shape": (6,), "whole": True}, "examples are whole numbers.*one array of float32"),
    "no picture": ("images", {"shape": (64,)}, r"these examples are \(64,\): take general, or tables"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_a_recipe_cannot_learn_from_is_refused_when_it_is_asked_for(name: str) -> None:
    recipe, changed, remedy = UNFIT[name]
    with pytest.raises(ConfigError, match=f"recipe = '{recipe}': .*{remedy}"):
        completed(PROMISE, named(recipe), facts(recipe, **changed))
    if name in ("no picture", "tokens", "whole pixels", "whole numbers"):  # by features of one's own
        completed({**PROMISE, "features": {"name": "tokens"}}, named(recipe), facts(recipe, **changed))
    completed(PROMISE, named(recipe), facts(recipe, own_model=True, **changed))
